package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"

	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/host"
)

// margin is what the driver needs beside the device memory itself: a part of it, and something.
func margin(need int64) int64 { return need/16 + 64<<20 }

// hostMemory: the driver moves device memory into anonymous memory of its process. If there is not enough, the kernel ends
// a process; it chooses that of the container if the container's own limit is hit.
func hostMemory(s examination) (found []Finding, err error) {
	need := s.need()
	if need == 0 || len(s.processes) == 0 {
		return nil, nil
	}
	need += margin(need)
	takes := fmt.Sprintf("device memory of %s takes %s of", list(names(s.processes)), size(need))
	available, err := host.AvailableMemory(s.host.root)
	if err != nil {
		return nil, err
	}
	if available < need {
		found = append(found, Finding{
			Problem: fmt.Sprintf("%s this host's memory while it is saved, and %s are available", takes, size(available)),
			Hint:    "make room on this host",
		})
	}
	for _, p := range s.processes[:1] { // all are in one cgroup, or below it
		group, room, err := s.host.room(p.PID)
		if err != nil {
			return nil, err
		}
		if group != "" && room < need {
			found = append(found, Finding{
				Problem: fmt.Sprintf("%s memory while it is saved, and the limit of its cgroup %s leaves %s", takes, group, size(room)),
				Hint:    "raise the container's memory limit by the size of its device memory",
			})
		}
	}
	return found, nil
}

// need is what the driver has to move of what the processes hold on devices, bytes. Where it does not say, that is all that is taken on
// the device. What a process that can hand memory over has left is not known before it has done so.
func (s examination) need() (need int64) {
	unknown := map[string]bool{}
	var handed int64
	for _, p := range s.processes {
		if p.able {
			continue
		}
		handed += p.given
		need += p.memory()
		for _, u := range p.uses {
			unknown[u.UUID] = unknown[u.UUID] || u.Memory == 0
		}
	}
	for _, d := range s.facts.Devices {
		if unknown[d.UUID] {
			need += max(0, d.Memory-d.Free-used(s.facts.Uses, d.UUID))
		}
	}
	return max(0, need-handed)
}

// used is what processes are known to hold on a device, bytes.
func used(uses []device.DeviceUse, uuid string) (all int64) {
	for _, u := range uses {
		if u.UUID == uuid {
			all += u.Memory
		}
	}
	return all
}

// hierarchy is where limits of memory are in one of the two versions of cgroups.
type hierarchy struct {
	controller, mount   string
	limit, usage, cache string   // files
	caches              []string // counters in the file cache that can be given back
}

// Sources: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
var hierarchies = []hierarchy{
	{"", "sys/fs/cgroup", "memory.max", "memory.current", "memory.stat", []string{"active_file", "inactive_file"}},
	{"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", []string{"total_active_file", "total_inactive_file"}},
}

// room finds the limit of memory that leaves a process least, in its cgroup or one above, and what it leaves in bytes. No
// group: there is none.
func (p proc) room(pid int) (group string, least int64, err error) {
	v1, v2, err := cgroups.ParseCgroupFileUnified(p.path(pid, "cgroup"))
	if err != nil {
		return "", 0, ended(gone(err))
	}
	for _, h := range hierarchies {
		at, in := v1[h.controller]
		if h.controller == "" {
			at, in = v2, true
		}
		for path := filepath.Clean("/" + at); in; path = filepath.Dir(path) {
			left, limited, err := h.left(filepath.Join(p.root, h.mount, path))
			if err != nil {
				return "", 0, err
			}
			if limited && (group == "" || left < least) {
				group, least = path, left
			}
			in = path != "/"
		}
	}
	return group, least, nil
}

// left is what the limit of one cgroup leaves; files that are not there mean no limit.
func (h hierarchy) left(dir string) (left int64, limited bool, err error) {
	limit, err := number(filepath.Join(dir, h.limit))
	if err != nil || limit < 0 {
		return 0, false, ended(err)
	}
	usage, err := number(filepath.Join(dir, h.usage))
	if err != nil {
		return 0, false, ended(err)
	}
	stat, err := os.ReadFile(filepath.Join(dir, h.cache))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, fmt.Errorf("look at a cgroup's memory: %w", err)
	}
	for line := range strings.Lines(string(stat)) {
		fields := strings.Fields(line)
		for _, name := range h.caches {
			if len(fields) == 2 && fields[0] == name {
				n, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel's
				usage -= n
			}
		}
	}
	return limit - max(0, usage), true, nil
}

// number reads a file with one number; max, or what is no limit in version 1, is -1.
func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("look at a cgroup's memory: %w", err)
	}
	text := strings.TrimSpace(string(data))
	n, err := strconv.ParseUint(text, 10, 64)
	const unlimited = 1 << 62 // more than any machine has
	if text == "max" || err == nil && n >= unlimited {
		return -1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at a cgroup's memory: %w", err)
	}
	return int64(n), nil
}

// size prints bytes for people.
func size(n int64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
