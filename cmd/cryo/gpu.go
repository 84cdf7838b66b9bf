package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	snapshotspec "github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// gpuPlan is how a snapshot gets its GPUs on this host. The zero value is for one that has none.
type gpuPlan struct {
	devices []string // CDI devices that are to be injected
	host    *cdi.Host
	facts   fit.GPUs
	pairs   []keeper.Pair
	known   keeper.Facts    // of the driver
	places  []keeper.Device // of the snapshot's devices, and others that the container gets
	driver  *driverOpen     // by the keeper that was asked; nil: none was

	was    []image.GPUDevice // the snapshot's
	minors []int             // of the nodes that the container gets
	wanted []gpuPair
	asked  *asked // nil: nobody was, or all is decided
}

// planGPUs decides which GPUs of this host a snapshot gets, and makes room for their CDI devices in its specification. What
// this host lacks is for the rules of fit to find. The driver stays open until the caller closes that.
func (a *app) planGPUs(ctx context.Context, g *image.GPU, spec *specs.Spec, f gpuFlags) (gpuPlan, error) {
	p, err := a.beginGPUs(ctx, g, spec, f)
	if err == nil {
		err = p.decide()
	}
	if err != nil {
		p.close()
		return gpuPlan{}, err
	}
	return p, nil
}

// beginGPUs is planGPUs, but for what the driver says: that may be on its way, and [gpuPlan.decide] waits for it. The caller closes it.
func (a *app) beginGPUs(ctx context.Context, g *image.GPU, spec *specs.Spec, f gpuFlags) (gpuPlan, error) {
	if g == nil {
		if len(f.devices)+len(f.pairs) > 0 {
			return gpuPlan{}, &usageError{command: "cryo restore", problem: "the snapshot has no GPUs: leave --device and --gpu out"}
		}
		return gpuPlan{}, nil
	}
	settings, err := a.config()
	if err != nil {
		return gpuPlan{}, err
	}
	p := gpuPlan{devices: f.devices, host: cdi.Open(settings.GPU.CDI...), was: g.Devices, wanted: f.pairs}
	if len(f.loaded) == 0 {
		p.asked = ask(ctx) // which takes longer than all else
	}
	if g.Library != nil {
		lib, err := library.Locate()
		p.facts.Library, p.facts.NoLibrary = lib.Digest, err
	}
	if len(p.devices) == 0 {
		if err := cdi.Validate(g.CDI); err != nil {
			return p, fmt.Errorf("read the names of the snapshot's devices: %w: %w", err, errdefs.ErrDataLoss)
		}
		p.devices = g.CDI
	}
	edits, err := p.host.Edits(p.devices)
	if err != nil {
		p.facts.NoGPU = err
	}
	edits.Displace(spec)
	for _, m := range edits.Mounts {
		p.facts.Mounts = append(p.facts.Mounts, m.Destination)
	}
	if p.facts.NoGPU == nil {
		has, err := p.injected(spec)
		if err != nil {
			return p, err
		}
		p.minors = cdi.Minors(has)
	}
	// Nobody asks the driver then. The shim looks at what is free besides.
	for _, l := range f.loaded {
		with := p
		if err := with.place(l.Facts); err != nil || p.facts.NoGPU != nil || !slices.Equal(gpu.Pieces(g, with.places), l.Pieces) {
			continue // another error may come of what the driver says now
		}
		for i := range with.facts.Devices {
			with.facts.Devices[i].Free = with.facts.Devices[i].Memory
		}
		return with, nil
	}
	if p.asked == nil {
		p.asked = ask(ctx)
	}
	p.facts.Unasked = true
	return p, nil
}

// decide waits for what the driver says, and decides the rest by that.
func (p *gpuPlan) decide() error {
	if p.asked == nil {
		return nil
	}
	known, driver, err := p.asked.wait()
	p.asked, p.driver, p.facts.Unasked = nil, driver, false
	var missing *keeper.MissingError
	var gone *unaskedError
	switch {
	case errors.As(err, &gone):
		return err
	case errors.As(err, &missing):
		p.facts.NoKeeper = err
	case err != nil && p.facts.NoGPU == nil:
		p.facts.NoGPU = err
	}
	if p.facts.NoKeeper != nil || p.facts.NoGPU != nil {
		return nil
	}
	return p.place(known)
}

// clear tells whether it is known before the driver has said anything which GPUs the container gets, each in the place of one. Then the shim refuses what
// the driver's words stand against, so nothing is lost by hearing them late.
func (p *gpuPlan) clear(g *image.GPU) bool {
	return p.facts.NoGPU == nil && len(p.wanted) == 0 && len(g.Processes) > 0 && len(p.minors) == len(g.Devices)
}

// close ends what the plan has begun, and waits for that.
func (p *gpuPlan) close() {
	if p.asked != nil {
		p.asked.cancel()
		_, p.driver, _ = p.asked.wait()
		p.asked = nil
	}
	p.driver.close()
}

// place decides which GPU takes the place of which.
func (p *gpuPlan) place(known keeper.Facts) (err error) {
	p.facts.Driver, p.known = known.Driver, known
	if p.places, err = assign(p.was, visible(known.Devices, p.minors), known.Devices, p.wanted); err != nil {
		return err
	}
	for i, d := range p.places {
		p.facts.Devices = append(p.facts.Devices, d.Spec())
		if i < len(p.was) {
			p.pairs = append(p.pairs, keeper.Pair{Old: p.was[i].UUID, New: d.UUID})
		}
	}
	return nil
}

// injected gives the specification with the CDI devices in it, and leaves the one given as it is.
func (p gpuPlan) injected(spec *specs.Spec) (*specs.Spec, error) {
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
// counts for nothing then. Where nobody has said which takes the place of which they do so in order, as the shim finds by itself.
func (p gpuPlan) inject(spec *specs.Spec) error {
	if p.host == nil {
		return nil
	}
	if err := p.host.Inject(spec, p.devices); err != nil {
		return err
	}
	cdi.Annotate(spec, p.devices)
	delete(spec.Annotations, gpu.MapAnnotation) // of an earlier restore
	if len(p.wanted) == 0 {
		return nil
	}
	var pairs []string
	for _, pair := range p.pairs {
		pairs = append(pairs, pair.Old+"="+pair.New)
	}
	spec.Annotations[gpu.MapAnnotation] = strings.Join(pairs, ",")
	return nil
}

// visible gives the devices with some minor numbers, in the order of these.
func visible(all []keeper.Device, minors []int) []keeper.Device {
	var seen []keeper.Device
	for _, minor := range minors {
		if i := slices.IndexFunc(all, func(d keeper.Device) bool { return d.Minor == minor }); i >= 0 {
			seen = append(seen, all[i])
		}
	}
	return seen
}

// assign puts in the place of each old GPU the new one that the user names, and the others of the container in order. Those
// left over come last; where there are too few, the result is shorter than old.
func assign(old []image.GPUDevice, container, host []keeper.Device, named []gpuPair) ([]keeper.Device, error) {
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
			return nil, &usageError{command: "cryo restore", problem: fmt.Sprintf("--gpu %s: that GPU is named twice", n)}
		}
		wanted[old[from].UUID], taken[to.UUID] = to.UUID, true
	}
	return snapshotspec.Place(old, container, func(d keeper.Device) string { return d.UUID }, wanted)
}
