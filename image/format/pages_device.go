package format

import (
	"fmt"

	"github.com/cryo-project/cryo/image/record"
)

// Numbers of device memory: those of CRIU's pages files are below.
const (
	deviceFiles = 1 << 42
	gpuBits     = 10
)

// Each GPU of a container has a number of so many bits.
var _ = [1]struct{}{}[record.MaxGPUs-1<<gpuBits]

// DeviceFile is the number of the pages that a process, by its pid, has on a GPU, by its number among those of the container. CRIU
// knows nothing of them.
func DeviceFile(pid, gpu int) uint64 { return deviceFiles + uint64(pid)<<gpuBits + uint64(gpu) }

// DeviceOf returns the process and the GPU of such a number; false for a pages file of CRIU's.
func DeviceOf(id uint64) (pid, gpu int, ok bool) {
	if id < deviceFiles {
		return 0, 0, false
	}
	return int((id - deviceFiles) >> gpuBits), int(id % record.MaxGPUs), true
}

// DeviceMap describes what a process has on a GPU as a pagemap describes its memory. runs are without page numbers.
func DeviceMap(pid, gpu int, runs []PageRun, pageSize int64) *Pagemap {
	m := &Pagemap{Name: fmt.Sprintf("device-%d-%d", pid, gpu), Pages: DeviceFile(pid, gpu)}
	for _, r := range runs {
		r.First = m.Count
		m.Runs = join(m.Runs, r, pageSize)
		m.Count += r.Count
	}
	return m
}
