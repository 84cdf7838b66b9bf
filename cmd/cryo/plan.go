package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/order"
)

// plan is a restore that was found possible and allowed; nothing is changed yet.
type plan struct {
	snapshot    *image.Snapshot
	from        image.Fetcher // has its blobs
	images      string        // directory of CRIU's images, which lack memory at first
	origin      order.Origin  // of the images
	unpacked    *image.Unpacked
	ref         string // in the store
	name        string
	spec        *specs.Spec
	policy      trust.Policy // by which spec was confined
	etc         string       // directory of files for /etc that are to be made; empty: none
	runtime     string
	snapshotter string
	gpus        gpuPlan
	compared    image.Config // with what the driver of gpus will say; see late
	loaded      gpu.Loaded   // how, once the container runs
	warnings    []string
}

// plan decides how a snapshot is restored, or why not. If it may be early, what the driver of its GPUs says is left to [plan.late]. The caller closes the plan of its GPUs.
func (a *app) plan(ctx context.Context, client *containerd.Client, snapshot *image.Snapshot, ref string, f restoreFlags, here *looking, early bool) (_ *plan, err error) {
	c := snapshot.Config
	p := &plan{snapshot: snapshot, ref: ref, name: f.name, runtime: f.runtime, warnings: []string{}}
	defer func() {
		if err != nil {
			p.gpus.close()
		}
	}()
	if p.name == "" {
		p.name = c.Container.ID
	}
	if err := a.checkName(ctx, client, p.name); err != nil {
		return nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the snapshot's runtime specification: %w: %w", err, errdefs.ErrDataLoss)
	}
	p.spec = &spec
	if f.log != nil && f.log.Scheme == "file" && spec.Process != nil && spec.Process.Terminal {
		return nil, &usageError{command: "cryo restore", problem: "--log-uri file:// does not work for a container with a terminal: use binary://, or leave it out and attach"}
	}
	policy := f.policy
	if policy.Mounts, err = replaceMounts(&spec, f.replace); err != nil {
		return nil, err
	}
	if f.networkNS != "" {
		if err := joinNetwork(&spec, f.networkNS); err != nil {
			return nil, err
		}
		policy.Namespaces = append(policy.Namespaces, specs.NetworkNamespace)
	}
	settings, err := a.config()
	if err != nil {
		return nil, err
	}
	etc := etcDir(settings.Root, a.address, a.namespace, p.name)
	if provided := provideEtcFiles(&spec, etc, policy.Mounts, policy.Allows(trust.Mounts)); len(provided) > 0 {
		p.etc = etc
		policy.Mounts = append(policy.Mounts, provided...)
	}
	if c.GPU != nil {
		f.gpu.loaded = loadedOf(ctx, settings.Root, snapshot.Descriptor.Digest)
	}
	if p.gpus, err = a.beginGPUs(ctx, c.GPU, &spec, f.gpu); err != nil {
		return nil, err
	}
	if err := p.fits(ctx, here, host.Known(filepath.Join(settings.Root, knownFeatures)), f.force, early); err != nil {
		return nil, err
	}
	p.policy = policy
	dropped, err := trust.Confine(&spec, p.gpus.devices, policy)
	if err != nil {
		return nil, err
	}
	for _, d := range dropped {
		p.warnings = append(p.warnings, "the snapshot does not get "+d)
	}
	if err := p.gpus.inject(&spec); err != nil {
		return nil, err
	}
	adapt(&spec, a.namespace, p.name, exists("/run/systemd/system"))
	if p.runtime == "" {
		p.runtime = c.Container.Runtime
		if !slices.Contains(runtimeNames, p.runtime) {
			p.runtime = runtimeNames[0]
		}
	}
	p.snapshotter, err = chooseSnapshotter(ctx, client, f.snapshotter, c.Container.Snapshotter)
	return p, err
}

// knownFeatures is the file in cryo's root of what CRIU has said that the host has.
const knownFeatures = "features.json"

// fits compares the snapshot, with the mounts it is to have, with this host. What the driver of its GPUs says is waited for, unless nothing else is wrong and
// it may be looked at while the container is made.
func (p *plan) fits(ctx context.Context, here *looking, known host.Known, force []string, early bool) error {
	target, err := here.target(ctx, p.snapshot.Config.Host.Features, known.Features)
	if err != nil {
		return err
	}
	target.PathExists = existsOr(p.etc)
	target.GPUs = p.gpus.facts
	config := p.snapshot.Config
	if config.Spec, err = json.Marshal(p.spec); err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	verdict, err := fit.Check(config, target).Force(force...)
	if err != nil {
		return err
	}
	if p.gpus.asked != nil && !(early && verdict.Fits() && p.gpus.clear(config.GPU)) {
		if err := p.gpus.decide(); err != nil {
			return err
		}
		target.GPUs = p.gpus.facts
		if verdict, err = fit.Check(config, target).Force(force...); err != nil {
			return err
		}
	}
	if p.gpus.asked != nil {
		p.compared = config
	}
	for _, w := range verdict.Warnings() {
		p.warnings = append(p.warnings, w.Problem)
	}
	return verdict.Err()
}

// checkName refuses a name that containerd does not take, or that is taken.
func (a *app) checkName(ctx context.Context, client *containerd.Client, name string) error {
	if err := identifiers.Validate(name); err != nil {
		return &usageError{command: "cryo restore", problem: fmt.Sprintf("restore as %s: %v", name, err)}
	}
	switch _, err := client.ContainerService().Get(ctx, name); {
	case err == nil:
		return &nameTakenError{name: name, namespace: a.namespace}
	case errdefs.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("restore as %s: %w", name, err)
	}
}

// chooseSnapshotter takes the one asked for, else the snapshot's if this containerd has it, else containerd's default.
func chooseSnapshotter(ctx context.Context, client *containerd.Client, asked, had string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	if had != "" {
		plugins, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
		if err != nil {
			return "", fmt.Errorf("list containerd's snapshotters: %w", err)
		}
		for _, p := range plugins.Plugins {
			if p.ID == had && p.InitErr == nil {
				return had, nil
			}
		}
	}
	name, err := client.GetLabel(ctx, "containerd.io/defaults/snapshotter")
	if err != nil {
		return "", fmt.Errorf("find containerd's default snapshotter: %w", err)
	}
	if name == "" {
		name = defaultSnapshotter
	}
	return name, nil
}

// defaultSnapshotter is containerd's own default on Linux.
const defaultSnapshotter = "overlayfs"
