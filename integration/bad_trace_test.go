package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestBad give cryo what it must refuse, or break it off. All of them compare the
// traces of a host from before and after: what failed has changed nothing.

// trace lists, a line each, all that a command could change or leave behind on a host: what containerd has, processes,
// frozen cgroups, mounts, temporary files, and cryo's store. Processes that fill in memory, which end by themselves, do not count.
func trace(t *testing.T, h *lab.Host) []string {
	t.Helper()
	found := slices.Concat(traceContainerd(t, h), traceCgroups(t, h), traceMounts(t, h), traceNetworks(t, h), traceStore(t, h.CryoRoot()))
	for _, pattern := range []string{"tmp/*", "xdg/*", "run/containerd/s/*", "run/containerd/fifo/*", "run/containerd/runc/*/*",
		"run/containerd/io.containerd.runtime.v2.task/*/*", "run/containerd/io.containerd.runtime.v2.task/*/*/criu-[0-9]*",
		"run/containerd/io.containerd.runtime.v2.task/*/*/cryo-dump"} {
		paths, err := filepath.Glob(filepath.Join(h.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			found = append(found, "file "+path)
		}
	}
	slices.Sort(found)
	return found
}

// traceContainerd is what the daemon knows.
func traceContainerd(t *testing.T, h *lab.Host) (found []string) {
	t.Helper()
	c, err := h.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	containers, err := c.Containers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range containers {
		found = append(found, "container "+container.ID())
		if task, err := container.Task(ctx, nil); err == nil {
			status, err := task.Status(ctx)
			found = append(found, fmt.Sprintf("task %s %d %s %v", container.ID(), task.Pid(), status.Status, err))
		}
	}
	images, err := c.ListImages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		found = append(found, "image "+image.Name())
	}
	held, err := c.LeasesService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range held {
		found = append(found, leaseLine(lease))
	}
	err = c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		found = append(found, "snapshot "+s.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// traceNetworks is what CRIU has put before the networks of containers that run.
func traceNetworks(t *testing.T, h *lab.Host) (found []string) {
	t.Helper()
	for line := range strings.Lines(must(t, h.Ctr(t.Context(), "tasks", "ls")).Stdout) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "RUNNING" {
			continue
		}
		rules := must(t, h.Run(t.Context(), "nsenter", "--target", fields[1], "--net", "sh", "-c", "iptables-save; ip6tables-save; nft list tables")).Stdout
		for rule := range strings.Lines(rules) {
			if strings.Contains(rule, "CRIU") {
				found = append(found, fmt.Sprintf("network of %s: %s", fields[0], strings.TrimSpace(rule)))
			}
		}
	}
	return found
}

func leaseLine(l leases.Lease) string { return "lease " + l.ID }

// cgroupRoot is the host's hierarchy with all of its processes: the freezer's with cgroup v1.
func cgroupRoot(h *lab.Host) string {
	root := fmt.Sprintf("/proc/%d/root/sys/fs/cgroup", h.Pid())
	if freezer := filepath.Join(root, "freezer"); isDir(freezer) {
		return freezer
	}
	return root
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// traceCgroups is the host's cgroups, whether they are frozen, and the processes in them.
func traceCgroups(t *testing.T, h *lab.Host) (found []string) {
	t.Helper()
	root := cgroupRoot(h)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // cgroups come and go
		}
		name := strings.TrimPrefix(path, root)
		if strings.Count(name, "/") > 1 { // runc leaves the parent of containers' cgroups
			found = append(found, "cgroup "+name)
		}
		v1, _ := os.ReadFile(filepath.Join(path, "freezer.state"))
		v2, _ := os.ReadFile(filepath.Join(path, "cgroup.freeze"))
		if state := strings.TrimSpace(string(v1) + string(v2)); state != "" && state != "THAWED" && state != "0" {
			found = append(found, "frozen "+name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes(t, h) {
		if p.command != "cryo-fill" {
			found = append(found, fmt.Sprintf("process %d %s", p.pid, p.command))
		}
	}
	return found
}

// traceMounts is the mounts of the host's namespace.
func traceMounts(t *testing.T, h *lab.Host) (found []string) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		// Others are of the machine, not of the host.
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, "/run/") || strings.HasPrefix(at, h.Dir+"/") {
			found = append(found, "mount "+at)
		}
	}
	return found
}

// traceStore is the files below a root of cryo's, with the names that its index gives.
func traceStore(t *testing.T, root string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && filepath.Base(filepath.Dir(path)) != "work" || strings.HasSuffix(path, ".lock") {
			return nil //nolint:nilerr // not made yet, or gone meanwhile
		}
		switch name := strings.TrimPrefix(path, root); {
		case name == "/store/oci-layout", strings.HasPrefix(name, "/store/.index.json-"): // goes with the next change of the index
		case name == "/store/index.json":
			found = append(found, traceIndex(t, path)...)
		case strings.HasPrefix(name, "/store/blobs/"):
			found = append(found, "blob "+name)
		default:
			found = append(found, "store "+name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// traceIndex is the names of snapshots in a store.
func traceIndex(t *testing.T, path string) (found []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(content, &index); err != nil {
		t.Fatal(err)
	}
	for _, m := range index.Manifests {
		found = append(found, fmt.Sprintf("tag %s %s", m.Digest, m.Annotations))
	}
	return found
}

// abandonedSockets begin the lines of the sockets of shims. Where containerd kills the start of a shim because its client is
// gone, or the task is deleted before containerd has noticed the death of its shim, they stay until the next of that name.
func abandonedSockets(h *lab.Host) string { return "file " + h.Dir + "/run/containerd/s/" }

// unchanged runs do and wants the host to be as it was before, soon after. Lines that begin with one of except do not
// count.
func unchanged(t *testing.T, h *lab.Host, do func(), except ...string) {
	t.Helper()
	before := trace(t, h)
	do()
	wantTrace(t, h, before, except...)
}

// wantTrace waits until a host's trace is as wanted, for at most some seconds.
func wantTrace(t *testing.T, h *lab.Host, want []string, except ...string) {
	t.Helper()
	for deadline := time.Now().Add(8 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got := trace(t, h)
		news, lost := without(got, want, except), without(want, got, except)
		if len(news)+len(lost) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s changed.\nMore than before:\n  %s\nLess than before:\n  %s", h.Name, strings.Join(news, "\n  "), strings.Join(lost, "\n  "))
			return
		}
	}
}

// without gives the lines that are not among others and do not begin with one of except.
func without(lines, others, except []string) (left []string) {
	for _, line := range lines {
		begins := func(with string) bool { return strings.HasPrefix(line, with) }
		if !slices.Contains(others, line) && !slices.ContainsFunc(except, begins) {
			left = append(left, line)
		}
	}
	return left
}
