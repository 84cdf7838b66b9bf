package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// Plan is a restore that was found possible and allowed; nothing is changed yet.
type Plan struct {
	Snapshot *image.Snapshot
	From     image.Fetcher // has its blobs
	Images   string        // directory of CRIU's images, which lack memory at first
	Origin   worker.Origin // of the images
	Unpacked *image.Unpacked
	box      *trust.Sandbox // has reviewed the images; nil: it has ended
	Ref      string         // in the store
	Name     string
	Spec     *specs.Spec
	Policy   trust.Policy // by which Spec was confined
	Etc      string       // directory of files for /etc that are to be made; empty: none
	GPUs     GPUs
	Warnings []string

	compared image.Config  // with this host
	placed   []specs.Mount // those of Spec, in the root file system; nil: it is not known
	was      *specs.Spec   // of the snapshot's container; nil: nothing is restored into a container
}

// newPlan decides how a snapshot is restored, or why not.
func newPlan(ctx context.Context, snapshot *image.Snapshot, ref string, here *Looking, o Options) (_ *Plan, err error) {
	c := snapshot.Config
	p := &Plan{Snapshot: snapshot, Ref: ref, Name: o.Name, Warnings: []string{}}
	if p.Name == "" { // users of nerdctl know its name, and not the id
		p.Name = cmp.Or(c.Container.Labels[daemon.NameLabel], c.Container.ID)
	}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the snapshot's runtime specification: %w: %w", err, errdefs.ErrDataLoss)
	}
	p.Spec = &spec
	if o.Check != nil {
		if err := o.Check(c, p.Name, &spec); err != nil {
			return nil, err
		}
	}
	if o.Spec != nil {
		return p, p.adopt(ctx, &spec, here, o)
	}
	if err := trust.Refuse(trust.Known(c.Spec)); err != nil {
		return nil, err
	}
	worker.SetEnvironment(&spec, o.Env)
	policy := o.Policy
	policy.AppArmor = AppArmor()
	if policy.Mounts, err = replaceMounts(&spec, o.Mounts); err != nil {
		return nil, err
	}
	if o.NetworkNS != "" {
		if err := joinNetwork(&spec, o.NetworkNS); err != nil {
			return nil, err
		}
		policy.Namespaces = append(policy.Namespaces, specs.NetworkNamespace)
	}
	etc := EtcDir(o.Config.Root, o.Address, o.Namespace, p.Name)
	if provided := ProvideEtcFiles(&spec, etc, policy.Mounts, o.Trial == nil && policy.Allows(trust.Mounts)); len(provided) > 0 {
		p.Etc = etc
		policy.Mounts = append(policy.Mounts, provided...)
	}
	if p.GPUs, err = PlanGPUs(ctx, o.Config.GPU, c.GPU, &spec, o.GPUs); err != nil {
		return nil, err
	}
	if err := p.fits(ctx, here, o.Force); err != nil {
		return nil, err
	}
	p.Policy = policy
	dropped, err := trust.Confine(&spec, p.GPUs.devices, policy)
	if err != nil {
		return nil, err
	}
	for _, d := range dropped {
		p.Warnings = append(p.Warnings, "the snapshot does not get "+d)
	}
	if err := p.GPUs.inject(&spec); err != nil {
		return nil, err
	}
	adapt(&spec, o.Namespace, p.Name, exists("/run/systemd/system"))
	return p, nil
}

// AppArmor reports whether clients of containerd confine containers by AppArmor on this host.
func AppArmor() bool {
	profiles, _ := os.ReadFile("/sys/kernel/security/apparmor/profiles") // there may be none
	return trust.HasAppArmor(string(profiles))
}

// adopt decides how the snapshot is restored into a container that has a specification of its own, where was is the snapshot's.
func (p *Plan) adopt(ctx context.Context, was *specs.Spec, here *Looking, o Options) error {
	g := p.Snapshot.Config.GPU
	p.Spec, p.Policy, p.placed = o.Spec, o.Policy, o.Placed
	if !o.Ordered {
		byGPUs, err := editsOf(o.Config.GPU, g, o.Spec)
		if err != nil {
			return err
		}
		if findings := reconcile(was, o.Spec, byGPUs); len(findings) > 0 {
			return mismatch(findings)
		}
	}
	p.was = was
	var err error
	p.GPUs, err = givenGPUs(ctx, g, o.Spec, o.GPUs.LeaveToShim)
	if misfit := (*gpu.MisfitError)(nil); errors.As(err, &misfit) {
		return mismatch([]host.FitFinding{{Rule: misfit.Rule, Fatal: true, Problem: misfit.Problem, Hint: misfit.Hint()}})
	}
	if err != nil {
		return err
	}
	return p.fits(ctx, here, o.Force)
}

// fits compares the snapshot, with the mounts it is to have, with this host. here is nil where a command has done that.
func (p *Plan) fits(ctx context.Context, here *Looking, force []string) (err error) {
	config := p.Snapshot.Config
	if config.Spec, err = json.Marshal(p.Spec); err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	if here == nil {
		p.compared = config
		return nil
	}
	target, err := here.Target(ctx, config.Host.Features)
	if err != nil {
		return err
	}
	target.PathExists = ExistsOr(p.Etc)
	target.GPUs = p.GPUs.Facts
	verdict, err := host.CheckFit(config, target).Force(force...)
	if err != nil {
		return err
	}
	p.compared = config
	for _, w := range verdict.Warnings() {
		p.Warnings = append(p.Warnings, w.Problem)
	}
	return verdict.Err()
}

// Misfit asks the driver why the shim has refused a container whose GPUs were left to it. It returns a [host.Misfit], or nil where the driver does not say why.
func (p *Plan) Misfit(ctx context.Context) error {
	if !p.GPUs.Facts.Unasked {
		return nil
	}
	if err := p.GPUs.ask(ctx); err != nil {
		return nil
	}
	v := host.CheckFit(p.compared, host.FitTarget{PathExists: exists, GPUs: p.GPUs.Facts})
	v.Findings = slices.DeleteFunc(v.Findings, func(f host.FitFinding) bool { return !strings.HasPrefix(f.Rule, "gpu-") })
	return v.Err()
}
