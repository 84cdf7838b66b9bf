package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// usage is what the processes on a host have, but for containerd.
type usage struct {
	processes, descriptors int
	memory                 int64 // resident, bytes
}

func usageOf(t *testing.T, h *lab.Host) (u usage) {
	t.Helper()
	for _, p := range processes(t, h) {
		if p.command != "fakeapp" && p.command != commands["shim"] {
			continue
		}
		dir := fmt.Sprintf("/proc/%d", p.pid)
		open, err := filepath.Glob(filepath.Join(dir, "fd/*"))
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, "statm"))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		u.processes++
		for _, path := range open {
			// Go closes those of children that the shim's reaper has waited for when it next collects garbage.
			if target, _ := os.Readlink(path); target != "anon_inode:[pidfd]" {
				u.descriptors++
			}
		}
		u.memory += pages * int64(os.Getpagesize())
	}
	return u
}
