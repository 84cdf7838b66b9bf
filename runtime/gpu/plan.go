package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// MapAnnotation of a container that is restored says which GPU takes the place of which: "OLD=NEW,…", by UUIDs. Where it
// says nothing, they do so in order.
const MapAnnotation = "cryo.gpu/map"

// ParseMap reads a [MapAnnotation].
func ParseMap(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	wanted := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		old, now, _ := strings.Cut(pair, "=")
		for _, uuid := range []string{old, now} {
			if _, err := keeper.ParseUUID(uuid); err != nil {
				return nil, fmt.Errorf("read annotation %s: %w", MapAnnotation, err)
			}
		}
		wanted[old] = now
	}
	return wanted, nil
}

// places finds for each device of the record the one that takes its place among those the container now can see. What is
// wanted of devices that the record does not have is of an earlier restore and counts for nothing.
func (r Record) places(visible []keeper.Device, wanted map[string]string) ([]keeper.Device, error) {
	if len(visible) < len(r.Devices) {
		return nil, &MisfitError{"gpu-count", fmt.Sprintf("the snapshot has %d GPUs, and the container would get %d", len(r.Devices), len(visible)), "give it as many GPUs"}
	}
	free := slices.Clone(visible)
	take := func(uuid string) (keeper.Device, bool) {
		i := slices.IndexFunc(free, func(d keeper.Device) bool { return d.UUID == uuid })
		if i < 0 {
			return keeper.Device{}, false
		}
		d := free[i]
		free = slices.Delete(free, i, i+1)
		return d, true
	}
	places := make([]keeper.Device, len(r.Devices))
	for i, d := range r.Devices {
		uuid, ok := wanted[d.UUID]
		if !ok {
			continue
		}
		if places[i], ok = take(uuid); !ok {
			return nil, &MisfitError{"gpu-missing", fmt.Sprintf("GPU %s shall take the place of %s, and the container does not get it, or not twice", uuid, d.UUID), "name GPUs the container gets, each once"}
		}
	}
	for i := range places {
		if places[i].UUID == "" {
			places[i], free = free[0], free[1:]
		}
	}
	return places, nil
}

// branch is the first number of a driver's version.
func branch(version string) string {
	first, _, _ := strings.Cut(version, ".")
	return first
}

// fits returns a [*MisfitError] unless what the record says can be loaded onto these devices.
func (r Record) fits(facts keeper.Facts, places []keeper.Device) error {
	if branch(r.Driver) != branch(facts.Driver) {
		return &MisfitError{"gpu-driver", fmt.Sprintf("the snapshot is by NVIDIA driver %s, this host has %s, which is of another branch", r.Driver, facts.Driver), "restore on a host with driver " + r.Driver}
	}
	var need, have int64
	for i, old := range r.Devices {
		now := places[i]
		if old.Architecture != now.Architecture {
			return &MisfitError{"gpu-architecture", fmt.Sprintf("GPU %d of the snapshot is of architecture %s (%s), the one in its place of %s (%s)", i, old.Architecture, old.Name, now.Architecture, now.Name), "restore onto a GPU of the same architecture"}
		}
		if held := max(old.Used, r.on(old.UUID)); held > now.Free { // the driver does not always tell what is used
			return &MisfitError{"gpu-memory", fmt.Sprintf("GPU %d of the snapshot held %s, and the one in its place (GPU %d, %s) has %s free", i, size(held), now.Index, now.UUID, size(now.Free)), "end what uses the GPU's memory (see nvidia-smi and cryo prewarm ls), or restore onto another"}
		}
		have += now.Free
	}
	for _, p := range r.Processes {
		need += p.Memory
	}
	if need > have {
		return &MisfitError{"gpu-memory", fmt.Sprintf("processes held %s on GPUs, and those in their places have %s free", size(need), size(have)), "end what uses the GPUs' memory (see nvidia-smi and cryo prewarm ls), or restore onto others"}
	}
	return nil
}

// on is what was handed over on a device.
func (r Record) on(uuid string) (bytes int64) {
	for _, p := range r.Processes {
		for _, piece := range p.Pieces {
			if piece.Device == uuid {
				bytes += piece.Size
			}
		}
	}
	return bytes
}

// pairs are what the driver is told: each device of the record once, or nothing where all stay.
func (r Record) pairs(places []keeper.Device) []keeper.Pair {
	var pairs []keeper.Pair
	moved := false
	for i, d := range r.Devices {
		pairs = append(pairs, keeper.Pair{Old: d.UUID, New: places[i].UUID})
		moved = moved || d.UUID != places[i].UUID
	}
	if !moved {
		return nil
	}
	return pairs
}
