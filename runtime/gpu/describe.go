package gpu

import (
	"fmt"
	"slices"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// describe notes the driver, the devices and what was overridden.
func (r *Record) describe(facts device.Facts, s examination, forced []string) {
	r.Driver, r.CUDA = facts.Driver, facts.CUDA
	for _, d := range s.devices {
		if !slices.ContainsFunc(r.Devices, func(known record.GPUDevice) bool { return known.UUID == d.UUID }) {
			r.Devices = append(r.Devices, record.GPUDevice{UUID: d.UUID, Minor: d.Minor, Name: d.Name, Architecture: d.Architecture, Memory: d.Memory})
		}
	}
	for _, rule := range forced {
		if !slices.Contains(r.Forced, rule) {
			r.Forced = append(r.Forced, rule)
		}
	}
}

// add notes processes that were saved. What one holds on a device that the container has no node of is not its own.
func (r *Record) add(all []cudaProcess) {
	for _, p := range all {
		saved := record.GPUProcess{PID: p.Inner, Command: p.Command, Devices: []string{}, Pieces: p.pieces, Imports: p.imports, Parted: p.parted, Fallback: p.fallback}
		for _, u := range p.uses {
			for i, d := range r.Devices {
				if d.UUID == u.UUID {
					r.Devices[i].Used += u.Memory
					saved.Memory += u.Memory
					saved.Devices = append(saved.Devices, u.UUID)
				}
			}
		}
		for _, piece := range p.pieces {
			if !slices.Contains(saved.Devices, piece.Device) {
				saved.Devices = append(saved.Devices, piece.Device)
			}
		}
		saved.Memory = max(saved.Memory, p.given) // the driver may not tell
		r.Processes = append(r.Processes, saved)
	}
}

// working names a process for people, and the devices it works on.
func (e *Engine) working(p cudaProcess) string {
	var known []device.Device
	for _, d := range e.record.Devices {
		known = append(known, device.Device{UUID: d.UUID, Index: d.Minor})
	}
	return fmt.Sprintf("%s on %s", p.Process, label(known, p.uuids()))
}

// uuids are the devices that a process holds something on.
func (p cudaProcess) uuids() (all []string) {
	for _, u := range p.uses {
		if !slices.Contains(all, u.UUID) {
			all = append(all, u.UUID)
		}
	}
	return all
}
