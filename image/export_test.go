package image

import (
	"math/rand/v2"
	"testing"
)

// SampleConfig is a config for tests outside of the package.
var SampleConfig = testConfig

// SampleImages makes a directory of CRIU images of some 3 MiB.
func SampleImages(t testing.TB) string {
	r := rand.New(rand.NewPCG(11, 11))
	forked := randomMemory(r, 0x7f0000000000, 500) // two segments of the same digest
	return fakeImages{
		maps: map[string]memory{
			"pagemap-1.img":          forked,
			"pagemap-3.img":          forked,
			"pagemap-2.img":          randomMemory(r, 0x400000, 200),
			"pagemap-shmem-1048.img": randomMemory(r, 0, 100),
		},
		other: map[string][]byte{"inventory.img": {1}, "descriptors.json": []byte("{}")},
	}.write(t)
}

// Stored waits until all memory that has come is stored.
func Stored(in *Intake) error {
	in.hurry()
	return in.work.Wait()
}

// DevicesStored is Stored for device memory.
func DevicesStored(d *DeviceIntake) error { return Stored(d.in) }
