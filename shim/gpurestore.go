package shim

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// bringGPUs makes the specification of a container that is restored one for this host's GPUs. A stock client gives it as it was on
// the snapshot's host: what CDI devices had put there is replaced by what those of the same names do here, and plain device
// nodes get the numbers they have here, in the rules of the cgroup as well. The cryo command has done its own, and says so. A container that asks for the restore by its
// annotation has GPUs of this host, which its client has given it: it keeps these and gets no others, whatever the snapshot's names are here.
func (s *service) bringGPUs(c *container, spec *specs.Spec, record *gpu.Record) error {
	if record == nil || c.asks() {
		return nil
	}
	if _, noted, err := gpu.AnnotatedDevices(spec); err != nil {
		return err
	} else if !noted && len(record.CDI) > 0 {
		if err := s.giveCDI(spec, record); err != nil {
			return err
		}
	}
	return renumber(spec, gpu.HostNode)
}

// giveCDI puts what a record's CDI devices are on this host in the place of what they were. The record is part of the snapshot: it says which, and never
// more than the specification has.
func (s *service) giveCDI(spec *specs.Spec, record *gpu.Record) error {
	granted := nodesOf(spec)
	host := gpu.OpenCDI(s.config.GPU.CDI...)
	edits, err := host.Edits(record.CDI)
	if err != nil {
		return err
	}
	if record.Edits != nil {
		record.Edits.Strip(spec)
	}
	edits.Displace(spec)
	if err := host.Inject(spec, record.CDI); err != nil {
		return err
	}
	return granted.covers(spec)
}

// nodes are the device nodes in a specification: how many GPUs, and the paths of all others.
type nodes struct {
	gpus   int
	others map[string]bool
}

func nodesOf(spec *specs.Spec) nodes {
	n := nodes{others: make(map[string]bool)}
	if spec.Linux == nil {
		return n
	}
	for _, d := range spec.Linux.Devices {
		if at := path.Clean(d.Path); gpuNode().MatchString(at) {
			n.gpus++
		} else if !isNVIDIA(at) {
			n.others[at] = true
		}
	}
	return n
}

// gpuNode is the device node of a GPU, where the others of the driver are of no use without one.
var gpuNode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/dev/nvidia[0-9]+$`) })

// covers refuses a specification that has more devices than were granted: which ones there are on this host the record beside CRIU's images says, and that
// the container has any its client has to say.
func (n nodes) covers(spec *specs.Spec) error {
	now := nodesOf(spec)
	if now.gpus > n.gpus {
		return fmt.Errorf("the snapshot's record names CDI devices with %d GPUs, and the container's specification has %d: %w", now.gpus, n.gpus, errdefs.ErrPermissionDenied)
	}
	for at := range now.others {
		if !n.others[at] {
			return fmt.Errorf("the snapshot's record names a CDI device with %s, which the container's specification does not have: %w", at, errdefs.ErrPermissionDenied)
		}
	}
	return nil
}

// renumber gives NVIDIA's device nodes in a specification the numbers they have on this host.
func renumber(spec *specs.Spec, host func(path string) (specs.LinuxDevice, error)) error {
	if spec.Linux == nil {
		return nil
	}
	for i, d := range spec.Linux.Devices {
		if !isNVIDIA(d.Path) {
			continue
		}
		here, err := host(path.Clean(d.Path))
		if err != nil {
			return err
		}
		if here.Major == d.Major && here.Minor == d.Minor {
			continue
		}
		spec.Linux.Devices[i].Major, spec.Linux.Devices[i].Minor = here.Major, here.Minor
		if spec.Linux.Resources == nil {
			spec.Linux.Resources = &specs.LinuxResources{}
		}
		allow(spec.Linux.Resources, d, here)
	}
	return nil
}

// allow makes the rule for an old device one for the new, or adds one.
func allow(r *specs.LinuxResources, old, here specs.LinuxDevice) {
	major, minor := here.Major, here.Minor
	i := slices.IndexFunc(r.Devices, func(rule specs.LinuxDeviceCgroup) bool {
		return rule.Allow && rule.Major != nil && rule.Minor != nil && *rule.Major == old.Major && *rule.Minor == old.Minor
	})
	if i >= 0 {
		r.Devices[i].Major, r.Devices[i].Minor = &major, &minor
		return
	}
	r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
}

// beginGPUs begins to load the container's GPUs, and to make sure that this host can take what the snapshot has of them. CRIU need not
// wait for that.
func (s *service) beginGPUs(ctx context.Context, c *container) (*gpu.Restore, error) {
	spec, err := c.bundle.spec()
	if err != nil {
		return nil, err
	}
	wanted, err := gpu.ParseMap(spec.Annotations[gpu.MapAnnotation])
	if err != nil {
		return nil, err
	}
	r := &gpu.Restore{Container: c.gpuContainer(spec), Record: *c.gpus.record, Map: wanted}
	r.Thaw = c.thawRestored
	if c.prepared.Devices {
		r.Bring = func() (gpu.Source, error) {
			l, err := worker.StartLoading(c.process)
			if err != nil {
				return nil, err // not l, which would be an interface that is not nil
			}
			return l, nil
		}
		r.Kept = func(fits func(gpu.Prewarmed) bool) (*gpu.PrewarmedLease, error) {
			return gpu.NewPrewarmedDir(c.prepared.Root).Lease(c.prepared.Digest.String(), fits)
		}
	}
	if err := r.Begin(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// loadGPUs gives the restored processes, of which pid is the first, their device nodes and what they had on GPUs.
func (s *service) loadGPUs(ctx context.Context, c *container, r *gpu.Restore, pid int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	if err := gpu.MakeNodes(fmt.Sprintf("/proc/%d/root", pid), nvidiaNodes(spec), c.gpus.record.Nodes); err != nil {
		return err
	}
	took, err := r.Load(ctx)
	if err != nil {
		return err
	}
	c.loaded = r.Loaded(took)
	return nil
}

// freezeRestored freezes a restored container that has something on GPUs, while CRIU still has it stopped: a process runs none of its code before the driver has brought back what it
// had, see package gpu. So does a member of a pool.
func (c *container) freezeRestored(init int) error {
	if !c.isPooled() && (c.gpus.record == nil || len(c.gpus.record.Processes) == 0) {
		return nil
	}
	all, err := guard.ProcessesOf(init)
	if err != nil {
		return err
	}
	thaw, err := runc.FreezeRestored(all)
	c.thaw = thaw
	return err
}

// thawRestored lets it run.
func (c *container) thawRestored(ctx context.Context) error {
	if c.thaw == nil {
		return nil
	}
	return c.thaw(ctx)
}

// endRestored ends a container that was restored, but for its GPUs.
func (s *service) endRestored(ctx context.Context, c *container) error {
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	err := c.runtime.Kill(again)
	s.awaitEnd(ctx, c.request.ID)
	return err
}
