package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Leaks lists what the hosts' containers and clients left behind on hosts that should be idle by now: processes,
// mounts, cgroups, sockets, temporary and working files. It waits a little for what is about to go.
func (l *Lab) Leaks() []string {
	l.mu.Lock()
	hosts := slices.Clone(l.hosts)
	l.mu.Unlock()
	var found []string
	for _, h := range hosts {
		found = append(found, h.Leaks()...)
		if h.options.Node != nil {
			found = append(found, h.leaks(100*time.Second, func() []string { return h.leakedFiles(collectedFiles) })...)
		}
	}
	return found
}

// Leaks is [Lab.Leaks] of one host.
func (h *Host) Leaks() []string {
	return h.leaks(30*time.Second, func() []string {
		return slices.Concat(h.leakedProcesses(), h.leakedCgroups(), h.leakedMounts(), h.leakedFiles(busyFiles))
	})
}

// leaks gives what is found after the time, or nothing as soon as nothing is.
func (h *Host) leaks(within time.Duration, find func() []string) []string {
	deadline := time.Now().Add(within)
	for {
		found := find()
		if len(found) == 0 || time.Now().After(deadline) {
			for i := range found {
				found[i] = h.Name + ": " + found[i]
			}
			return found
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// leakedProcesses are all in the host's cgroups but its init, its daemon and registries.
func (h *Host) leakedProcesses() []string {
	own := map[int]bool{h.Pid(): true}
	h.mu.Lock()
	if h.daemon != nil {
		own[h.daemon.command.Process.Pid] = true
	}
	for _, p := range h.programs {
		own[p.Pid()] = true
	}
	h.mu.Unlock()
	h.lab.mu.Lock()
	for _, r := range h.lab.registries {
		if r.options.Host == h && r.command != nil {
			own[r.command.Process.Pid] = true
		}
	}
	h.lab.mu.Unlock()
	seen := map[int]bool{}
	var found []string
	for _, dir := range h.cgroups() {
		for _, pid := range members(dir) {
			if own[pid] || seen[pid] {
				continue
			}
			seen[pid] = true
			line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
			found = append(found, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// cgroups lists the host's cgroups in all hierarchies.
func (h *Host) cgroups() []string {
	all, _ := hierarchies()
	var dirs []string
	for _, hi := range all {
		dirs = append(dirs, subtree(filepath.Join(hi.mount, h.lab.instance.name(), h.Name))...)
	}
	return dirs
}

// leakedCgroups are those of containers.
func (h *Host) leakedCgroups() []string {
	var found []string
	for _, dir := range h.cgroups() {
		_, below, _ := strings.Cut(dir, "/"+h.lab.instance.name()+"/"+h.Name+"/")
		if !h.ownCgroup(below) && h.ownCgroup(filepath.Dir(below)) {
			found = append(found, "cgroup "+dir)
		}
	}
	return found
}

// leakedMounts are those below the host's /run, where bundles are, and below its directory.
func (h *Host) leakedMounts() []string {
	points, err := mountPoints(filepath.Join("/proc", strconv.Itoa(h.Pid()), "mountinfo"))
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, point := range points {
		if strings.HasPrefix(point, "/run/cgroup1/") {
			continue // the host's own, see host.sh
		}
		if strings.HasPrefix(point, "/run/") || strings.HasPrefix(point, h.Dir+"/") && point != h.runDir() || h.options.Node != nil && strings.HasPrefix(point, "/var/lib/kubelet/") {
			found = append(found, "mount "+point)
		}
	}
	return found
}

// busyFiles are in directories of hosts that an idle one has empty. FIFOs are not among them: ctr leaves those of what it
// starts and detaches from.
var busyFiles = []string{
	"tmp/*", "xdg/*", "cryo/work/*", "run/containerd/s/*",
	"run/containerd/io.containerd.runtime.v2.task/*/*", "run/containerd/runc/*/*", "containerd/io.containerd.runtime.v2.task/*/*",
	"run/netns/*", "node/disk/var/lib/kubelet/pods/*", "node/upper/var/lib/cni/networks/*/[0-9]*",
}

// collectedFiles are those that a kubelet removes once a minute.
var collectedFiles = []string{
	"run/containerd/io.containerd.grpc.v1.cri/*/*", "containerd/io.containerd.grpc.v1.cri/*/*",
	"node/disk/var/log/pods/*", "node/upper/var/log/containers/*",
}

func (h *Host) leakedFiles(patterns []string) []string {
	var found []string
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(filepath.Join(h.Dir, pattern)) // the patterns are well formed
		for _, path := range paths {
			what := "file " + path
			if inside, _ := filepath.Glob(filepath.Join(path, "*")); len(inside) > 0 {
				what += fmt.Sprint(" with ", inside)
			}
			found = append(found, what)
		}
	}
	return found
}
