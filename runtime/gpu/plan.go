package gpu

import (
	"fmt"
	"strings"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// MapAnnotation of a container that is restored says which GPU takes the place of which: "OLD=NEW,…", by UUIDs. Where it
// says nothing, they do so in order.
const MapAnnotation = "io.cryo.gpu.map"

// ParseMap reads a [MapAnnotation].
func ParseMap(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	wanted := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		old, now, _ := strings.Cut(pair, "=")
		for _, uuid := range []string{old, now} {
			if _, err := driver.ParseUUID(uuid); err != nil {
				return nil, fmt.Errorf("read annotation %s: %w", MapAnnotation, err)
			}
		}
		wanted[old] = now
	}
	return wanted, nil
}

// places finds for each device of the record the one that takes its place among those the container now can see. What is
// wanted of devices that the record does not have is of an earlier restore and counts for nothing.
func (r Record) places(visible []driver.Device, wanted map[string]string) ([]driver.Device, error) {
	if len(visible) < len(r.Devices) {
		return nil, &MisfitError{"gpu-count", fmt.Sprintf("the snapshot has %d GPUs, and the container would get %d", len(r.Devices), len(visible)), "give it as many GPUs"}
	}
	places, err := spec.Place(r.Devices, visible, func(d driver.Device) string { return d.UUID }, wanted)
	if err != nil {
		return nil, &MisfitError{"gpu-missing", err.Error(), "name GPUs the container gets, each once"}
	}
	return places[:len(r.Devices)], nil
}

// fits returns a [*MisfitError] unless what the record says can be loaded onto these devices.
func (r Record) fits(facts driver.Facts, places []driver.Device) error {
	var have []spec.HostGPU
	for _, d := range places {
		have = append(have, d.Spec())
	}
	for _, m := range r.Compare(facts.Driver, have) {
		return &MisfitError{m.Rule, m.Problem, m.Hint}
	}
	return nil
}

// pairs are what the driver is told: each device of the record once, or nothing where all stay.
func (r Record) pairs(places []driver.Device) []driver.Pair {
	var pairs []driver.Pair
	moved := false
	for i, d := range r.Devices {
		pairs = append(pairs, driver.Pair{Old: d.UUID, New: places[i].UUID})
		moved = moved || d.UUID != places[i].UUID
	}
	if !moved {
		return nil
	}
	return pairs
}
