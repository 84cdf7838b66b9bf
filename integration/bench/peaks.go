package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// peaks watches how much memory the processes of cryo have on some hosts: the commands, the shims and what they start.
type peaks struct {
	hosts []*lab.Host
	end   chan struct{}
	done  chan struct{}
	off   atomic.Bool // while it is set, the goroutine of watch does not call look

	mu    sync.Mutex
	bytes map[string]int64 // guarded by mu; VmHWM, by what the process is
}

// watch looks fifty times a second; a process knows its peak by itself, so only what it takes in its last moments is missed.
func watch(hosts ...*lab.Host) *peaks {
	p := &peaks{hosts: hosts, end: make(chan struct{}), done: make(chan struct{}), bytes: map[string]int64{}}
	go func() {
		defer close(p.done)
		for {
			select {
			case <-p.end:
				return
			case <-time.After(20 * time.Millisecond):
				if !p.off.Load() {
					p.look()
				}
			}
		}
	}()
	return p
}

func (p *peaks) stop() {
	close(p.end)
	<-p.done
}

func (p *peaks) look() {
	for _, h := range p.hosts {
		for _, pid := range h.Processes() {
			proc := filepath.Join("/proc", strconv.Itoa(pid))
			program, err := os.Readlink(filepath.Join(proc, "exe"))
			if err != nil || !ours(program) {
				continue
			}
			line := read(filepath.Join(proc, "cmdline"))
			if line == "" { // it is about to begin or has ended
				continue
			}
			peak := hwm(read(filepath.Join(proc, "status")))
			if peak == 0 { // it has ended since
				continue
			}
			name := role(filepath.Base(program), strings.Split(strings.TrimRight(line, "\x00"), "\x00")[1:])
			p.mu.Lock()
			p.bytes[name] = max(p.bytes[name], peak)
			p.mu.Unlock()
		}
	}
}

// ours tells whether a program is one of cryo's, by its path.
func ours(program string) bool {
	return slices.Contains([]string{"cryo", "containerd-shim-cryo-v1", "cryo-guard", "cryo-gpu-keeper"}, filepath.Base(program))
}

// role is what a process is, by its program and arguments: the program and its subcommand, if it has one. What has a path in its place was
// forked off a shim for a moment, to mount something or to hold it, under a name of its own each time.
func role(program string, args []string) string {
	valued := []string{"-namespace", "-id", "-address", "-publish-binary", "-bundle", "-socket"} // flags of shims
	for i := 0; i < len(args); i++ {
		if slices.Contains(valued, args[i]) {
			i++
			continue
		}
		if strings.HasPrefix(args[i], "/") {
			return program + " (forks)"
		}
		if !strings.HasPrefix(args[i], "-") {
			return program + " " + args[i]
		}
	}
	return program
}

// hwm is the peak of a process's memory, bytes, of /proc/PID/status; see proc_pid_status(5).
func hwm(status string) int64 {
	var kilobytes int64
	for line := range strings.Lines(status) {
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); n == 1 {
			break
		}
	}
	return kilobytes << 10
}

// forget begins anew: the next figures are of other containers.
func (p *peaks) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.bytes)
}

// figures are the peaks since the last call of forget.
func (p *peaks) figures(s subject) []*figure {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := aim{Most: 512 << 20}
	if len(p.bytes) == 0 {
		return []*figure{{Case: "peak", Subject: s.name(), What: "memory of cryo's processes", Unit: "B", Aim: limit, NotRun: "no case has run any"}}
	}
	var all []*figure
	for name, bytes := range p.bytes {
		all = append(all, &figure{Case: "peak", Subject: s.name(), What: "memory of " + name, Unit: "B", Cryo: []float64{float64(bytes)}, Aim: limit})
	}
	slices.SortFunc(all, func(a, b *figure) int { return strings.Compare(a.What, b.What) })
	return all
}
