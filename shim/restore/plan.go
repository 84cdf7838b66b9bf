package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/order"
)

// Plan is a restore that was found possible and allowed; nothing is changed yet.
type Plan struct {
	Snapshot *image.Snapshot
	From     image.Fetcher // has its blobs
	Images   string        // directory of CRIU's images, which lack memory at first
	Origin   order.Origin  // of the images
	Unpacked *image.Unpacked
	Ref      string // in the store
	Name     string
	Spec     *specs.Spec
	Policy   trust.Policy // by which Spec was confined
	Etc      string       // directory of files for /etc that are to be made; empty: none
	GPUs     GPUs
	Loaded   gpu.Loaded // how, once the container runs
	Warnings []string

	compared image.Config // with what the driver of GPUs will say; see DriverCheck
}

// newPlan decides how a snapshot is restored, or why not. If it may be early, what the driver of its GPUs says is left to [Plan.CheckDriver]. The caller closes
// the plan of its GPUs.
func newPlan(ctx context.Context, snapshot *image.Snapshot, ref string, here *Looking, early bool, o Options) (_ *Plan, err error) {
	c := snapshot.Config
	p := &Plan{Snapshot: snapshot, Ref: ref, Name: o.Name, Warnings: []string{}}
	defer func() {
		if err != nil {
			p.GPUs.Close()
		}
	}()
	if p.Name == "" {
		p.Name = c.Container.ID
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
		return p, p.adopt(ctx, &spec, here, early, o)
	}
	policy := o.Policy
	if policy.Mounts, err = replaceMounts(&spec, o.Mounts); err != nil {
		return nil, err
	}
	if o.NetworkNS != "" {
		if err := joinNetwork(&spec, o.NetworkNS); err != nil {
			return nil, err
		}
		policy.Namespaces = append(policy.Namespaces, specs.NetworkNamespace)
	}
	root := o.Config.Root
	etc := EtcDir(root, o.Address, o.Namespace, p.Name)
	if provided := ProvideEtcFiles(&spec, etc, policy.Mounts, policy.Allows(trust.Mounts)); len(provided) > 0 {
		p.Etc = etc
		policy.Mounts = append(policy.Mounts, provided...)
	}
	if c.GPU != nil {
		o.GPUs.Loaded = loadedOf(ctx, root, snapshot.Descriptor.Digest)
	}
	if p.GPUs, err = beginGPUs(ctx, o.Config.GPU, c.GPU, &spec, o.GPUs); err != nil {
		return nil, err
	}
	if err := p.fits(ctx, here, host.Known(filepath.Join(root, knownFeatures)), o.Force, early); err != nil {
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

// adopt decides how the snapshot is restored into a container that has a specification of its own, where was is the snapshot's.
func (p *Plan) adopt(ctx context.Context, was *specs.Spec, here *Looking, early bool, o Options) error {
	findings := reconcile(was, o.Spec)
	if p.Snapshot.Config.GPU != nil {
		findings = append(findings, fit.Finding{Rule: ruleGPUs, Fatal: true, Problem: "the snapshot has GPUs, which the annotation does not restore yet", Hint: "use cryo restore"})
	}
	if len(findings) > 0 {
		return &MismatchError{Findings: findings}
	}
	p.Spec, p.Policy = o.Spec, o.Policy
	return p.fits(ctx, here, host.Known(filepath.Join(o.Config.Root, knownFeatures)), o.Force, early)
}

// knownFeatures is the file in cryo's root of what CRIU has said that the host has.
const knownFeatures = "features.json"

// fits compares the snapshot, with the mounts it is to have, with this host. What the driver of its GPUs says is waited for, unless nothing else is wrong and
// it may be looked at while the container is made.
func (p *Plan) fits(ctx context.Context, here *Looking, known host.Known, force []string, early bool) error {
	target, err := here.Target(ctx, p.Snapshot.Config.Host.Features, known.Features)
	if err != nil {
		return err
	}
	target.PathExists = ExistsOr(p.Etc)
	target.GPUs = p.GPUs.Facts
	config := p.Snapshot.Config
	if config.Spec, err = json.Marshal(p.Spec); err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	verdict, err := fit.Check(config, target).Force(force...)
	if err != nil {
		return err
	}
	if p.GPUs.asked != nil && !(early && verdict.Fits() && p.GPUs.clear(config.GPU)) {
		if err := p.GPUs.decide(); err != nil {
			return err
		}
		target.GPUs = p.GPUs.Facts
		if verdict, err = fit.Check(config, target).Force(force...); err != nil {
			return err
		}
	}
	if p.GPUs.asked != nil {
		p.compared = config
	}
	for _, w := range verdict.Warnings() {
		p.Warnings = append(p.Warnings, w.Problem)
	}
	return verdict.Err()
}
