package save

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
)

// candidate is a running container of which a snapshot is taken, and all that can be known of it before it is frozen.
type candidate struct {
	name    string // as the caller calls it
	info    containers.Container
	process firstProcess
	asked   bool           // the shim, for a checkpoint
	told    *failure.Error // by the shim, last; nil: nothing
	gpus    bool           // it has device nodes of GPUs
	config  image.Config
	base    ocispec.Descriptor
}

// find finds a running container under cryo's runtime.
func find(ctx context.Context, client *containerd.Client, o Options) (*candidate, error) {
	container, err := daemon.Find(ctx, client, o.Container)
	if err != nil {
		return nil, err
	}
	notRunning := func(status string) error { return checkpoint.NotRunning(o.Container, status) }
	info, err := container.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", o.Container, err)
	}
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil, notRunning("stopped")
	}
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", o.Container, err)
	}
	status, err := task.Status(ctx)
	if errdefs.IsNotFound(err) { // it has ended meanwhile
		return nil, notRunning("stopped")
	}
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", o.Container, err)
	}
	if status.Status != containerd.Running && status.Status != containerd.Paused {
		return nil, notRunning(string(status.Status))
	}
	process, err := identify(task.Pid(), status.Status == containerd.Paused)
	if err != nil {
		return nil, failed(ctx, o.Container, (&candidate{name: o.Container}).is(ended, err))
	}
	if !daemon.OurShim(info.Runtime.Name, task.Pid()) {
		return nil, failure.New(errdefs.ErrFailedPrecondition,
			"start it with --runtime "+daemon.RuntimeNames[1]+" (ctr run, nerdctl run); a container keeps the runtime it was created with",
			"checkpoint %s: it runs under %s, not under cryo's runtime", o.Container, info.Runtime.Name)
	}
	if other := daemon.MadeBy(info.Labels); o.Remove && other != "" {
		return nil, failure.New(errdefs.ErrInvalidArgument, "see cryo checkpoint --help", "--rm removes no container that %s made: have it removed by that", other)
	}
	return &candidate{name: o.Container, info: info, process: process}, nil
}

// examine finds the container and refuses what would fail later.
func (t *taking) examine(ctx context.Context) (*candidate, error) {
	sub, err := find(ctx, t.client, t.Options)
	if err != nil {
		return nil, err
	}
	info := sub.info
	if info.SnapshotKey == "" {
		return nil, fmt.Errorf("checkpoint %s: its rootfs is a plain directory (ctr run --rootfs), not a snapshot of an image: %w", t.Container, errdefs.ErrNotImplemented)
	}
	var spec specs.Spec
	if err := json.Unmarshal(info.Spec.GetValue(), &spec); err != nil {
		return nil, fmt.Errorf("read the runtime specification of %s: %w", t.Container, err)
	}
	here, err := facts(ctx, t.Config, neededFeatures(&spec))
	if err != nil {
		return nil, err
	}
	base, chain, err := daemon.BaseOf(ctx, t.client, info)
	if err != nil {
		return nil, err
	}
	addresses, err := sub.process.addresses(t.Container)
	if err != nil {
		return nil, err
	}
	namespace, _ := namespaces.Namespace(ctx)
	h := image.Host(here)
	h.Features = neededFeatures(&spec)
	sub.base, sub.gpus = base.Target, gpu.HasNVIDIA(&spec)
	sub.config = image.Config{
		Version: image.ConfigVersion,
		Container: image.Container{
			ID: info.ID, Namespace: namespace, Runtime: info.Runtime.Name, Snapshotter: info.Snapshotter, Labels: info.Labels,
			Image: base.Name, ImageDigest: base.Target.Digest, ChainID: chain, Addresses: addresses,
		},
		Spec: json.RawMessage(info.Spec.GetValue()),
		Host: h,
		Process: image.Options{
			TCPEstablished: t.TCPEstablished, FileLocks: t.FileLocks, ExternalUnixSockets: t.ExternalUnixSockets,
			Terminal: spec.Process != nil && spec.Process.Terminal,
		},
	}
	return sub, nil
}

// patience is how long the container may take to be as before, after a checkpoint that has failed.
func (s *candidate) patience() time.Duration {
	if s.gpus {
		return gpuUndoTime
	}
	return undoTime
}

// facts looks over this host. Without a CRIU that is new enough it fails.
func facts(ctx context.Context, c config.Config, features []string) (host.Facts, error) {
	path, err := c.CheckCRIU()
	if cause := context.Cause(ctx); cause != nil {
		return host.Facts{}, fmt.Errorf("look over the host: %w", cause) // CRIU was ended with it
	}
	if err != nil {
		return host.Facts{}, err
	}
	facts, _, err := host.Collect(ctx, host.Options{CRIU: path, Features: features})
	return facts, err
}

// neededFeatures names what the kernel must have, in CRIU's words, for what a container is made of.
func neededFeatures(spec *specs.Spec) []string {
	if _, has := criu.NamespaceIn(spec, specs.TimeNamespace); has {
		return []string{"timens"}
	}
	return nil
}

// Segments of a container that has little memory are small: each is made by one core, and sent over one connection to a registry that has one
// core for it, and there shall be several. With more memory there are several anyway, and a manifest lists no more than some thousands.
const (
	smallSegment = 64 << 20 // bytes
	littleMemory = 16 << 30 // bytes
)

// segmentSize chooses how much memory, in bytes, a segment covers of a container that has so many bytes, and perhaps memory on GPUs.
func segmentSize(gpus bool, memory int64) int64 {
	if gpus || memory > littleMemory {
		return format.DefaultSegmentSize
	}
	return smallSegment
}

// resident is how much memory a process and its descendants have in RAM, in bytes, and how much of that is neither of files nor shared. What several have counts for each, and those that have
// ended for nothing. Source: proc_pid_statm(5).
func resident(pid int) (total, own int64) {
	var size, pages, shared int64
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)); err == nil {
		if _, err := fmt.Sscan(string(text), &size, &pages, &shared); err == nil {
			total, own = pages*int64(os.Getpagesize()), (pages-shared)*int64(os.Getpagesize())
		}
	}
	for _, child := range criu.ChildProcesses(pid) {
		more, ofMore := resident(child)
		total, own = total+more, own+ofMore
	}
	return total, own
}
