package restore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// GPUOptions choose the GPUs that a snapshot gets. The zero value has each by the name that it had, in order.
type GPUOptions struct {
	Devices []string  // names of CDI devices, which are granted by that
	Pairs   []GPUPair // which GPU takes the place of which
	// LeaveToShim has the driver not asked where it is known without it which GPUs the container gets. The shim asks it, and refuses what does not fit.
	LeaveToShim bool
	// Programs is the directory of cryo's programs; empty: the running program is one of them.
	Programs string
}

// GPUPair is a GPU of the snapshot and one of this host that takes its place, each by UUID or number.
type GPUPair struct{ oldID, newID string }

func (p GPUPair) String() string { return p.oldID + "=" + p.newID }

// ParseGPUPair reads OLD=NEW.
func ParseGPUPair(text string) (GPUPair, error) {
	var p GPUPair
	var ok bool
	if p.oldID, p.newID, ok = strings.Cut(text, "="); !ok {
		return p, fmt.Errorf("is not of the form OLD=NEW")
	}
	for _, id := range []string{p.oldID, p.newID} {
		if _, err := device.ParseUUID(id); err == nil {
			continue
		}
		if n, err := strconv.Atoi(id); err != nil || n < 0 || strconv.Itoa(n) != id {
			return p, fmt.Errorf("%q is neither the number of a GPU nor its UUID", id)
		}
	}
	return p, nil
}

// from returns the place of the old GPU among those of the snapshot; its number is that place.
func (p GPUPair) from(old []image.GPUDevice) (int, error) {
	i := slices.IndexFunc(old, func(d image.GPUDevice) bool { return d.UUID == p.oldID })
	if n, err := strconv.Atoi(p.oldID); err == nil && n < len(old) {
		i = n
	}
	if i < 0 {
		var have []string
		for i, d := range old {
			have = append(have, fmt.Sprintf("%d (%s)", i, d.UUID))
		}
		return 0, Wrong("--gpu %s: the snapshot has no GPU %s, but %s", p, p.oldID, strings.Join(have, ", "))
	}
	return i, nil
}

// to returns the new GPU; its number is that of nvidia-smi on this host. The container must have it.
func (p GPUPair) to(host, container []device.Device) (device.Device, error) {
	is := func(d device.Device) bool { return d.UUID == p.newID || strconv.Itoa(d.Index) == p.newID }
	i := slices.IndexFunc(host, is)
	if i < 0 {
		return device.Device{}, Wrong("--gpu %s: this host has no GPU %s", p, p.newID)
	}
	if !slices.ContainsFunc(container, is) {
		return device.Device{}, Wrong("--gpu %s: the container does not get GPU %s: name it with --device too", p, p.newID)
	}
	return host[i], nil
}
