package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
)

// GPUs is how a snapshot gets its GPUs on this host. The zero value is for one that has none.
type GPUs struct {
	devices []string // CDI devices that are to be injected
	host    *gpu.CDI
	Facts   host.FitGPUs        // of this host, for the rules of fit
	Pairs   []device.DevicePair // which GPU takes the place of which
	Known   device.Facts        // of the driver
	Places  []device.Device     // of the snapshot's devices, and others that the container gets

	was    []image.GPUDevice // the snapshot's
	minors []int             // of the nodes that the container gets
	wanted []GPUPair
	mapped gpu.Map // by an annotation

	programs string // see [GPUOptions]
}

// PlanGPUs decides which GPUs of this host a snapshot gets, and makes room for their CDI devices in its specification. What
// this host lacks is for the rules of fit to find.
func PlanGPUs(ctx context.Context, c config.GPU, g *image.GPU, spec *specs.Spec, o GPUOptions) (GPUs, error) {
	if g == nil {
		if len(o.Devices)+len(o.Pairs) > 0 {
			return GPUs{}, Wrong("the snapshot has no GPUs: leave --device and --gpu out")
		}
		return GPUs{}, nil
	}
	p := GPUs{devices: o.Devices, host: gpu.OpenCDI(c.CDI...), was: g.Devices, wanted: o.Pairs, programs: o.Programs}
	p.findLibrary(g)
	if len(p.devices) == 0 {
		if err := gpu.ValidateDevices(g.CDI); err != nil {
			return p, fmt.Errorf("read the names of the snapshot's devices: %w: %w", err, errdefs.ErrDataLoss)
		}
		p.devices = g.CDI
	}
	edits, err := p.host.Edits(p.devices)
	if err != nil {
		p.Facts.NoGPU = err
	}
	edits.Displace(spec)
	for _, m := range edits.Mounts {
		p.Facts.Mounts = append(p.Facts.Mounts, m.Destination)
	}
	if p.Facts.NoGPU == nil {
		has, err := p.injected(spec)
		if err != nil {
			return p, err
		}
		p.minors = gpu.DeviceMinors(has)
	}
	if p.Facts.Unasked = o.LeaveToShim && p.clear(g); p.Facts.Unasked {
		return p, nil
	}
	return p, p.ask(ctx)
}

// givenGPUs decides which of the GPUs that a container's own specification has take the places of the snapshot's. Its client has given it these, of which CRI leaves
// device nodes and mounts, and no names: nothing is injected.
func givenGPUs(ctx context.Context, g *image.GPU, spec *specs.Spec, leaveToShim bool) (p GPUs, err error) {
	if g == nil {
		return p, nil
	}
	p.was, p.minors = g.Devices, gpu.DeviceMinors(spec)
	if p.mapped, err = gpu.ParseMap(spec.Annotations[gpu.MapAnnotation]); err != nil {
		return p, err
	}
	p.findLibrary(g)
	if p.Facts.Unasked = leaveToShim && p.clear(g); p.Facts.Unasked {
		return p, nil
	}
	return p, p.ask(ctx)
}

// findLibrary looks for the library that processes of a snapshot have loaded, where they have one.
func (p *GPUs) findLibrary(g *image.GPU) {
	if g.Library != nil {
		lib, err := library.Locate(p.programs)
		p.Facts.Library, p.Facts.NoLibrary = lib.Digest, err
	}
}

// ask asks the driver, and decides by its answer which GPU takes the place of which.
func (p *GPUs) ask(ctx context.Context) error {
	known, err := device.ReadFacts(ctx, device.ProgramIn(p.programs))
	p.Facts.Unasked = false
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("look at the GPUs: %w", context.Cause(ctx))
	case errors.Is(err, device.ErrNoHelper):
		p.Facts.NoHelper = err
	case err != nil && p.Facts.NoGPU == nil:
		p.Facts.NoGPU = err
	}
	if p.Facts.NoHelper != nil || p.Facts.NoGPU != nil {
		return nil
	}
	return p.place(known)
}

// clear reports whether it is known without the driver which GPUs the container gets, each in the place of one.
func (p *GPUs) clear(g *image.GPU) bool {
	return p.Facts.NoGPU == nil && len(p.wanted)+len(p.mapped) == 0 && len(g.Processes) > 0 && len(p.minors) == len(g.Devices)
}

// place decides which GPU takes the place of which.
func (p *GPUs) place(known device.Facts) (err error) {
	p.Facts.Driver, p.Known = known.Driver, known
	container := visible(known.Devices, p.minors)
	if len(p.mapped) > 0 && len(container) >= len(p.was) {
		p.Places, err = p.mapped.Place(p.was, container)
	} else {
		p.Places, err = assign(p.was, container, known.Devices, p.wanted)
	}
	if err != nil {
		return err
	}
	for i, d := range p.Places {
		p.Facts.Devices = append(p.Facts.Devices, d.Spec())
		if i < len(p.was) {
			p.Pairs = append(p.Pairs, device.DevicePair{Old: p.was[i].UUID, New: d.UUID})
		}
	}
	return nil
}

// injected returns the specification with the CDI devices in it, and leaves the one given as it is.
func (p GPUs) injected(spec *specs.Spec) (*specs.Spec, error) {
	var with specs.Spec
	data, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(data, &with)
	}
	if err != nil {
		return nil, fmt.Errorf("copy the runtime specification: %w", err)
	}
	return &with, p.host.Inject(&with, p.devices)
}

// inject puts the devices into a specification that was confined, and tells the shim so: what a snapshot's images say of devices
// counts for nothing then. Without a map they take each other's places in order, as the shim finds by itself.
func (p GPUs) inject(spec *specs.Spec) error {
	if p.host == nil {
		return nil
	}
	if err := p.host.Inject(spec, p.devices); err != nil {
		return err
	}
	gpu.AnnotateDevices(spec, p.devices)
	delete(spec.Annotations, gpu.MapAnnotation) // of an earlier restore
	if len(p.wanted) == 0 {
		return nil
	}
	var pairs []string
	for _, pair := range p.Pairs {
		pairs = append(pairs, pair.Old+"="+pair.New)
	}
	spec.Annotations[gpu.MapAnnotation] = strings.Join(pairs, ",")
	return nil
}

// visible returns the devices with some minor numbers, in the order of these.
func visible(all []device.Device, minors []int) []device.Device {
	var seen []device.Device
	for _, minor := range minors {
		if i := slices.IndexFunc(all, func(d device.Device) bool { return d.Minor == minor }); i >= 0 {
			seen = append(seen, all[i])
		}
	}
	return seen
}

// assign puts in the place of each old GPU the new one that the user names, and the others of the container in order. Those
// left over come last; where there are too few, the result is shorter than old.
func assign(old []image.GPUDevice, container, host []device.Device, named []GPUPair) ([]device.Device, error) {
	wanted := map[string]string{}
	taken := map[string]bool{}
	for _, n := range named {
		from, err := n.from(old)
		if err != nil {
			return nil, err
		}
		to, err := n.to(host, container)
		if err != nil {
			return nil, err
		}
		if wanted[old[from].UUID] != "" || taken[to.UUID] {
			return nil, Wrong("--gpu %s: that GPU is named twice", n)
		}
		wanted[old[from].UUID], taken[to.UUID] = to.UUID, true
	}
	return record.PlaceGPUs(old, container, func(d device.Device) string { return d.UUID }, wanted)
}

// sharing is what a process has imported, and whether it has let go of anything that it shares.
type sharing struct {
	imports []image.GPUImport
	parted  bool
}

// shares is that of each process.
func shares(g *image.GPU) (all []sharing) {
	for _, p := range g.Processes {
		all = append(all, sharing{p.Imports, p.Parted})
	}
	return all
}

// checkRecord refuses images that say something of GPUs to the shim of which the config, by which everything was decided,
// says nothing, and the reverse.
func checkRecord(c image.Config, images string) error {
	r, err := gpu.ReadRecord(images)
	if err != nil {
		return err
	}
	if (r == nil) != (c.GPU == nil) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about GPUs: %w", errdefs.ErrDataLoss)
	}
	if r == nil {
		return nil
	}
	if r.Engine != c.GPU.Engine || !slices.Equal(r.Pieces(), c.GPU.Pieces()) || !reflect.DeepEqual(shares(&r.GPU), shares(c.GPU)) || !reflect.DeepEqual(r.Library, c.GPU.Library) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about the memory of GPUs: %w", errdefs.ErrDataLoss)
	}
	return nil
}
