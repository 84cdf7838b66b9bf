package gpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// units are the GPUs that NVIDIA's kernel module lists, with nothing but their UUIDs and minor numbers. It need not be initialised for that, but may
// not know the UUIDs then: such a GPU is left out.
func (p proc) units() (units []driver.Device) {
	files, err := filepath.Glob(filepath.Join(p.root, "proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		return nil
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		d := driver.Device{Minor: -1}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch key {
			case "GPU UUID":
				d.UUID = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					d.Minor = n
				}
			}
		}
		if _, err := driver.ParseUUID(d.UUID); err == nil && d.Minor >= 0 {
			units = append(units, d)
		}
	}
	return units
}

// likely are the devices that memory will be taken on, as far as that can be told before the driver has said anything; none: it cannot.
func (r *Restore) likely() []string {
	places, err := r.Record.places(r.visible(driver.Facts{Devices: r.host().units()}), r.Map)
	if err != nil {
		return nil
	}
	return r.devices(places)
}

// devices are those that what was handed over is to be on, by their UUIDs.
func (r *Restore) devices(places []driver.Device) []string {
	return keeper.DevicesOf(Pieces(&r.Record.GPU, places))
}
