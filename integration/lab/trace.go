package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Trace lists, a line each and sorted, all that a command could change or leave behind on a host: what containerd has, processes,
// cgroups and whether they are frozen, mounts, what CRIU has put before containers' networks, temporary files, and cryo's store.
// Processes that fill in memory, which end by themselves, do not count.
func (h *Host) Trace(ctx context.Context) ([]string, error) {
	daemon, err := h.traceContainerd(ctx)
	if err != nil {
		return nil, fmt.Errorf("trace containerd of %s: %w", h.Name, err)
	}
	networks, err := h.traceNetworks(ctx)
	if err != nil {
		return nil, fmt.Errorf("trace networks of %s: %w", h.Name, err)
	}
	mounts, err := h.traceMounts()
	if err != nil {
		return nil, err
	}
	store, err := TraceStore(h.CryoRoot())
	if err != nil {
		return nil, err
	}
	found := slices.Concat(daemon, networks, mounts, store, h.traceCgroups(), h.traceFiles())
	slices.Sort(found)
	return found, nil
}

// traceContainerd is what the daemon knows.
func (h *Host) traceContainerd(ctx context.Context) (found []string, err error) {
	c, err := h.Client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx = namespaces.WithNamespace(ctx, "default")
	containers, err := c.Containers(ctx)
	if err != nil {
		return nil, err
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
		return nil, err
	}
	for _, image := range images {
		found = append(found, "image "+image.Name())
	}
	held, err := c.LeasesService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, lease := range held {
		found = append(found, "lease "+lease.ID)
	}
	err = c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		found = append(found, "snapshot "+s.Name)
		return nil
	})
	return found, err
}

// traceNetworks is what CRIU has put before the networks of containers that run.
func (h *Host) traceNetworks(ctx context.Context) (found []string, err error) {
	all, err := h.tasks(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.Status != task.Status_RUNNING {
			continue
		}
		// Tables of iptables as it was before nftables are listed by the kernel. A program that is not there has made no rules either.
		rules := h.Run(ctx, "nsenter", "--target", strconv.Itoa(int(t.Pid)), "--net", "sh", "-c",
			"nft list ruleset; if read table < /proc/self/net/ip_tables_names || read table < /proc/self/net/ip6_tables_names; then iptables-save; ip6tables-save; fi; true")
		if err := rules.Err(); err != nil {
			return nil, err
		}
		for rule := range strings.Lines(rules.Stdout) {
			if strings.Contains(rule, "CRIU") {
				found = append(found, fmt.Sprintf("network of %s: %s", t.ID, strings.TrimSpace(rule)))
			}
		}
	}
	return found, nil
}

// CgroupRoot is the host's hierarchy with all of its processes: the freezer's with cgroup v1.
func (h *Host) CgroupRoot() string {
	root := fmt.Sprintf("/proc/%d/root/sys/fs/cgroup", h.Pid())
	freezer := filepath.Join(root, "freezer")
	if info, err := os.Stat(freezer); err == nil && info.IsDir() {
		return freezer
	}
	return root
}

// traceCgroups is the host's cgroups, whether they are frozen, and the processes in them.
func (h *Host) traceCgroups() (found []string) {
	root := h.CgroupRoot()
	for _, path := range subtree(root) {
		name := strings.TrimPrefix(path, root)
		if strings.Count(name, "/") > 1 { // runc leaves the parent of containers' cgroups
			found = append(found, "cgroup "+name)
		}
		v1, _ := os.ReadFile(filepath.Join(path, "freezer.state"))
		v2, _ := os.ReadFile(filepath.Join(path, "cgroup.freeze"))
		if state := strings.TrimSpace(string(v1) + string(v2)); state != "" && state != "THAWED" && state != "0" {
			found = append(found, "frozen "+name)
		}
	}
	for _, p := range h.Running() {
		found = append(found, fmt.Sprintf("process %d %s", p.PID, p.Command))
	}
	return found
}

// traceMounts is the mounts of the host's namespace. Others are of the machine, not of the host.
func (h *Host) traceMounts() (found []string, err error) {
	points, err := mountPoints(fmt.Sprintf("/proc/%d/mountinfo", h.Pid()))
	for _, at := range points {
		if strings.HasPrefix(at, "/run/") || strings.HasPrefix(at, h.Dir+"/") && at != h.runDir() {
			found = append(found, "mount "+at)
		}
	}
	return found, err
}

// traceFiles is what containers and clients leave in directories that many use.
func (h *Host) traceFiles() (found []string) {
	for _, pattern := range []string{"tmp/*", "xdg/*", "run/containerd/s/*", "run/containerd/fifo/*", "run/containerd/runc/*/*",
		"run/containerd/io.containerd.runtime.v2.task/*/*", "run/containerd/io.containerd.runtime.v2.task/*/*/criu-[0-9]*",
		"run/containerd/io.containerd.runtime.v2.task/*/*/cryo-dump"} {
		paths, _ := filepath.Glob(filepath.Join(h.Dir, pattern)) // the patterns are well formed
		for _, path := range paths {
			found = append(found, "file "+path)
		}
	}
	return found
}

// TraceStore is the files below a root of cryo's, with the names that its index gives.
func TraceStore(root string) (found []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && filepath.Base(filepath.Dir(path)) != "work" || strings.HasSuffix(path, ".lock") {
			return nil //nolint:nilerr // not made yet, or gone meanwhile
		}
		switch name := strings.TrimPrefix(path, root); {
		case name == "/store/oci-layout", name == "/index.backup.json", name == "/id", strings.HasPrefix(name, "/store/.index.json-"), strings.HasPrefix(name, "/.index.backup.json-"): // goes with the next change of the index
		case name == "/store/index.json":
			tags, err := traceIndex(path)
			found = append(found, tags...)
			return err
		case strings.HasPrefix(name, "/suspect/"): // which blobs are to be verified, after damage was found
		case strings.HasPrefix(name, "/store/blobs/"):
			found = append(found, "blob "+name)
		default:
			found = append(found, "store "+name)
		}
		return nil
	})
	return found, err
}

// traceIndex is the names of snapshots in a store; none where the file has gone meanwhile.
func traceIndex(path string) (found []string, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trace store: %w", err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(content, &index); err != nil {
		return nil, fmt.Errorf("trace store: decode %s: %w", path, err)
	}
	for _, m := range index.Manifests {
		found = append(found, fmt.Sprintf("tag %s %s", m.Digest, m.Annotations))
	}
	return found, nil
}
