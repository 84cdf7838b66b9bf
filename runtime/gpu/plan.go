package gpu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// MapAnnotation of a container that is restored says which GPU takes the place of which: "OLD=NEW,…". Each is a UUID, or a number from 0: OLD among the
// snapshot's GPUs, NEW among the container's, by ascending device nodes. Where it says nothing, they do so in order.
const MapAnnotation = "io.cryo.gpu.map"

// Map is what a [MapAnnotation] says; nil: nothing.
type Map []Moved

// Moved is a GPU of a snapshot and the one that takes its place, each by UUID or number.
type Moved struct{ Old, New string }

// ParseMap reads a [MapAnnotation]. Its error is of kind InvalidArgument.
func ParseMap(text string) (all Map, err error) {
	if text == "" {
		return nil, nil
	}
	for _, pair := range strings.Split(text, ",") {
		m := Moved{}
		m.Old, m.New, _ = strings.Cut(pair, "=")
		for _, id := range []string{m.Old, m.New} {
			if n, err := strconv.Atoi(id); err == nil && n >= 0 && strconv.Itoa(n) == id {
				continue
			}
			if _, err := device.ParseUUID(id); err != nil {
				return nil, failure.New(errdefs.ErrInvalidArgument, "write OLD=NEW,OLD=NEW, each the number of a GPU from 0 or its UUID", "read annotation %s=%q: %q is neither", MapAnnotation, text, id)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// Place returns for each GPU of a snapshot the one of a container that takes its place, as [record.PlaceGPUs] does. What is said of a UUID that the snapshot does not have
// is of an earlier restore and counts for nothing. The error is a [*MisfitError].
func (m Map) Place(old []record.GPUDevice, container []device.Device) ([]device.Device, error) {
	wrong := func(format string, args ...any) ([]device.Device, error) {
		return nil, &MisfitError{"gpu-missing", fmt.Sprintf(format, args...), "name GPUs the container gets, each once"}
	}
	wanted := map[string]string{}
	for _, moved := range m {
		from := identify(moved.Old, old, func(d record.GPUDevice) string { return d.UUID })
		to := identify(moved.New, container, func(d device.Device) string { return d.UUID })
		switch {
		case from == "":
			return wrong("the snapshot has no GPU %s, but %d", moved.Old, len(old))
		case to == "":
			return wrong("the container has no GPU %s, but %d", moved.New, len(container))
		case wanted[from] != "":
			return wrong("two GPUs shall take the place of GPU %s", moved.Old)
		}
		wanted[from] = to
	}
	places, err := record.PlaceGPUs(old, container, func(d device.Device) string { return d.UUID }, wanted)
	if err != nil {
		return wrong("%v", err)
	}
	return places, nil
}

// identify returns the UUID of one of all, by its number or by that; empty where there is no such number.
func identify[D any](id string, all []D, uuid func(D) string) string {
	n, err := strconv.Atoi(id)
	if err != nil {
		return id
	}
	if n >= len(all) {
		return ""
	}
	return uuid(all[n])
}

// places finds for each device of the record the one that takes its place among those the container now can see.
func (r Record) places(visible []device.Device, wanted Map) ([]device.Device, error) {
	if len(visible) < len(r.Devices) {
		return nil, &MisfitError{"gpu-count", fmt.Sprintf("the snapshot has %d GPUs, and the container would get %d", len(r.Devices), len(visible)), "give it as many GPUs"}
	}
	places, err := wanted.Place(r.Devices, visible)
	if err != nil {
		return nil, err
	}
	return places[:len(r.Devices)], nil
}

// fits returns a [*MisfitError] unless what the record says can be loaded onto these devices.
func (r Record) fits(facts device.Facts, places []device.Device) error {
	var have []record.HostGPU
	for _, d := range places {
		have = append(have, d.Spec())
	}
	for _, m := range r.Compare(facts.Driver, have) {
		return &MisfitError{m.Rule, m.Problem, m.Hint}
	}
	return nil
}

// pairs are what the driver is told: each device of the record once, or nothing where all stay.
func (r Record) pairs(places []device.Device) []device.DevicePair {
	var pairs []device.DevicePair
	moved := false
	for i, d := range r.Devices {
		pairs = append(pairs, device.DevicePair{Old: d.UUID, New: places[i].UUID})
		moved = moved || d.UUID != places[i].UUID
	}
	if !moved {
		return nil
	}
	return pairs
}
