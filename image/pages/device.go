package pages

import "fmt"

// deviceFiles is where the numbers of device memory begin; those of CRIU's pages files are below.
const deviceFiles = 1 << 32

// DeviceFile is the number of the pages that a process, by its pid, has on devices. CRIU knows nothing of them.
func DeviceFile(pid int) uint64 { return deviceFiles + uint64(pid) }

// DevicePID gives the pid of the process that has these pages on devices; false for a pages file of CRIU's.
func DevicePID(id uint64) (int, bool) { return int(id - deviceFiles), id >= deviceFiles }

// DeviceMap describes the device memory of a process as a pagemap describes its memory. runs are without page numbers.
func DeviceMap(pid int, runs []Run, pageSize int64) *Pagemap {
	m := &Pagemap{Name: fmt.Sprintf("device-%d", pid), Pages: DeviceFile(pid)}
	for _, r := range runs {
		r.First = m.Count
		m.Runs = join(m.Runs, r, pageSize)
		m.Count += r.Count
	}
	return m
}
