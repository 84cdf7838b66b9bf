package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// states of a container as a user sees it.
const (
	runs     = "running"
	stopped  = "stopped"
	absent   = "absent" // neither container nor task
	taskless = "container without task"
	silent   = "running without an answer"
	wrong    = "running with wrong memory"
	another  = "started anew"
	idle     = "running without its GPU"
	// and containerd's own for others: created, paused
)

// settleTime is how long a container may take to be in a state that it stays in.
const (
	settleTime = 20 * time.Second
	stockTime  = 3 * time.Second
)

// look waits until a container is in a state in which it can stay, and gives it. One that was harmed is looked at twice.
func (r *round) look(ctx context.Context, h *lab.Host, id, life string) (string, error) {
	steady := 0
	last := ""
	wait := settleTime
	if r.op.stock {
		wait = stockTime
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		state, err := r.glance(ctx, h, id, life)
		if err != nil {
			return "", err
		}
		if state != last {
			r.note("%s is %s", id, state)
			steady = 0
		}
		last = state
		switch state {
		case runs, stopped, absent:
			if steady++; steady > 5 || !r.hit || r.result.Code == 0 {
				return state, nil
			}
		case wrong, another, idle:
			return state, nil
		}
		if time.Now().After(deadline) {
			return state, nil
		}
	}
}

// glance is one look.
func (r *round) glance(ctx context.Context, h *lab.Host, id, life string) (string, error) {
	_, status, err := h.Task(ctx, id)
	if err != nil {
		return "", err
	}
	switch status {
	case "STOPPED":
		return stopped, nil
	case "RUNNING":
		asking, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		a, err := h.Ask(asking, id)
		sum, _ := a.State["sha256"].(string)
		switch {
		case err != nil:
			r.note("ask %s: %v", id, err)
			return silent, nil
		case !a.OK || r.op.engine == "" && sum != r.world.sum:
			r.note("answer of %s: %+v", id, a)
			return wrong, nil
		case life != "" && a.Life != life:
			return another, nil
		}
		if r.op.engine != "" && !r.works(asking, h, id, a) {
			return idle, nil
		}
		return runs, nil
	case "":
		list := h.Ctr(ctx, "containers", "ls", "--quiet")
		if err := list.Err(); err != nil {
			return "", err
		}
		switch there := slices.Contains(strings.Fields(list.Stdout), id); {
		case !there:
			return absent, nil
		case r.hit && (r.choice.Fault == "kill" && r.choice.Target == "shim" || r.choice.Fault == "reboot" || r.choice.Fault == "power" || r.choice.Target == "containerd"):
			return stopped, nil // containerd itself deletes the task of a shim that has died, and of one without processes when it starts
		}
		return taskless, nil
	default:
		return strings.ToLower(status), nil
	}
}

// works tells whether a container goes on using its GPU.
func (r *round) works(ctx context.Context, h *lab.Host, id string, before lab.Answer) bool {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		a, err := h.Ask(ctx, id)
		if err != nil || !a.OK {
			r.note("ask %s: %+v %v", id, a, err)
			return false
		}
		if ticks(a) > ticks(before) {
			return true
		}
	}
	return false
}

// ticks are how often the processes of an answer have counted on their GPU.
func ticks(a lab.Answer) (sum float64) {
	processes, _ := a.State["processes"].([]any)
	for _, p := range processes {
		p, _ := p.(map[string]any)
		n, _ := p["ticks"].(float64)
		sum += n
	}
	return sum
}

// deviceMemory lists what is in use on a host's GPUs: files that somebody has locked, see integration/fakecuda.
func deviceMemory(h *lab.Host) (found []string) {
	devices, _ := filepath.Glob(filepath.Join(h.Dir, "run/gpu/GPU-*")) // the pattern is well formed
	for _, device := range devices {
		var used int64
		files, _ := filepath.Glob(filepath.Join(device, "mem-*"))
		for _, path := range files {
			f, err := os.Open(path)
			if err != nil {
				continue // gone meanwhile
			}
			info, err := f.Stat()
			if err == nil && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
				used += info.Size()
			}
			_ = f.Close() // it was only read
		}
		if used > 0 {
			found = append(found, fmt.Sprintf("device memory on %s: %d bytes", filepath.Base(device), used))
		}
	}
	return found
}

// stored tells whether a host's store has a name, and whether what it names is whole.
func (r *round) stored(ctx context.Context, h *lab.Host, ref string) (listed, whole bool, err error) {
	if listed, err = lists(ctx, h, ref); err != nil {
		return false, false, err
	}
	verified := h.Cryo(ctx, "verify", "--allow", "all", ref)
	if !listed { // it may have come between
		if listed, err = lists(ctx, h, ref); err != nil {
			return false, false, err
		}
	}
	switch {
	case verified.Code == 0 && !listed:
		r.violate("cryo ls does not list %s, which cryo verify finds whole", ref)
	case verified.Code == exitNotFound && listed:
		r.violate("cryo ls lists %s, which cryo verify does not find", ref)
	case verified.Code != 0:
		r.note("verify %s: exit %d: %s", ref, verified.Code, verified.Stderr)
	}
	return listed, verified.Code == 0, nil
}

// lists tells whether cryo ls has a name. It asks twice: the disk whose power can be cut has no file for a moment where one is being replaced.
func lists(ctx context.Context, h *lab.Host, ref string) (bool, error) {
	list := h.Cryo(ctx, "ls", "--json")
	if list.Code != exitOK {
		list = h.Cryo(ctx, "ls", "--json")
	}
	if err := list.Err(); err != nil {
		return false, err
	}
	var all []struct {
		Reference string `json:"reference"`
	}
	if err := json.Unmarshal([]byte(list.Stdout), &all); err != nil {
		return false, fmt.Errorf("cryo ls --json: %w", err)
	}
	for _, s := range all {
		if s.Reference == ref {
			return true, nil
		}
	}
	return false, nil
}

// pushed tells the same of the registry, past the line. Every byte is read.
func (r *round) pushed(ctx context.Context, ref string) (listed, whole bool, err error) {
	name := strings.TrimSuffix(strings.TrimPrefix(ref, r.world.line.address+"/"), ":1")
	content, status, err := r.get(ctx, "/v2/"+name+"/manifests/1")
	if err != nil || status == http.StatusNotFound {
		return false, false, err
	}
	var index ocispec.Index
	if json.Unmarshal(content, &index) != nil || len(index.Manifests) == 0 {
		return r.entire(ctx, ref, name, content)
	}
	for _, d := range index.Manifests { // an image and the snapshot
		content, _, err := r.get(ctx, "/v2/"+name+"/manifests/"+d.Digest.String())
		if err != nil {
			return true, false, err
		}
		if digest.FromBytes(content) != d.Digest {
			r.note("manifest %s of %s in the registry: %d bytes of %d", d.Digest, ref, len(content), d.Size)
			return true, false, nil
		}
		if _, whole, err = r.entire(ctx, ref, name, content); err != nil || !whole {
			return true, false, err
		}
	}
	return true, true, nil
}

// entire tells whether the registry has all that a manifest lists.
func (r *round) entire(ctx context.Context, ref, name string, content []byte) (listed, whole bool, err error) {
	var manifest ocispec.Manifest
	if err := json.Unmarshal(content, &manifest); err != nil {
		return true, false, nil //nolint:nilerr // it is not whole
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		content, status, err := r.get(ctx, "/v2/"+name+"/blobs/"+d.Digest.String())
		if err != nil {
			return true, false, err
		}
		if status != http.StatusOK || digest.FromBytes(content) != d.Digest {
			r.note("blob %s of %s in the registry: status %d, %d bytes of %d", d.Digest, ref, status, len(content), d.Size)
			return true, false, nil
		}
	}
	return true, true, nil
}

func (r *round) get(ctx context.Context, path string) (content []byte, status int, err error) {
	answer, err := r.world.registry.Get(ctx, path, ocispec.MediaTypeImageManifest+", "+ocispec.MediaTypeImageIndex)
	if err != nil {
		return nil, 0, err
	}
	content, err = io.ReadAll(answer.Body)
	return content, answer.StatusCode, errors.Join(err, answer.Body.Close())
}

var daemonLine = regexp.MustCompile(`^process \d+ containerd$`)

// trace is a host's, in which one boot is like another.
func trace(ctx context.Context, h *lab.Host) ([]string, error) {
	lines, err := h.Trace(ctx)
	for i, line := range lines {
		if daemonLine.MatchString(line) {
			lines[i] = "process of containerd"
		}
		if line == fmt.Sprintf("process %d sleep", h.Pid()) {
			lines[i] = "init"
		}
	}
	return append(lines, deviceMemory(h)...), err
}

// compare waits for a while until a host is as wanted, and gives what is more and what is less.
func compare(ctx context.Context, h *lab.Host, want []string) (more, less []string, err error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		got, err := trace(ctx, h)
		if err != nil {
			return nil, nil, err
		}
		more, less = without(got, want), without(want, got)
		if len(more)+len(less) == 0 || time.Now().After(deadline) {
			return more, less, nil
		}
	}
}

// without gives the lines that are not among others.
func without(lines, others []string) (left []string) {
	for _, line := range lines {
		if !slices.Contains(others, line) {
			left = append(left, line)
		}
	}
	return left
}
