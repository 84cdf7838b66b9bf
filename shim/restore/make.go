package restore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/daemon"
)

// admit refuses what containerd cannot have, and decides by which runtime and snapshotter it has the rest.
func (m *making) admit(ctx context.Context, c image.Config, name string, spec *specs.Spec) (err error) {
	choices := m.Choices
	check := m.checkName
	if c.Container.Labels[daemon.NameLabel] != "" { // it gets nerdctl's label: see containerLabels
		check = m.checkNames
	}
	if err := check(ctx, name); err != nil {
		return err
	}
	if choices.Trial != nil {
		if err := m.shield(spec); err != nil {
			return err
		}
	}
	if choices.Log != "" {
		if m.log, err = url.Parse(choices.Log); err != nil {
			return Wrong("--log-uri %s: %v", choices.Log, err)
		}
		if m.log.Scheme == "file" && spec.Process != nil && spec.Process.Terminal {
			return Wrong("--log-uri file:// does not work for a container with a terminal: use binary://, or leave it out and attach")
		}
	}
	if m.runtime = choices.Runtime; m.runtime == "" {
		m.runtime = c.Container.Runtime
		if !slices.Contains(daemon.RuntimeNames, m.runtime) {
			m.runtime = daemon.RuntimeNames[0]
		}
	}
	m.snapshotter, err = daemon.Snapshotter(ctx, m.Client, choices.Snapshotter, c.Container.Snapshotter)
	return err
}

// checkName refuses a name that containerd does not take, or that is taken.
func (m *making) checkName(ctx context.Context, name string) error {
	if err := identifiers.Validate(name); err != nil {
		return Wrong("restore as %s: %v", name, err)
	}
	_, err := m.Client.ContainerService().Get(ctx, name)
	switch {
	case err == nil:
		return m.taken(name)
	case !errdefs.IsNotFound(err):
		return fmt.Errorf("restore as %s: %w", name, err)
	}
	return nil
}

// checkNames is checkName, and refuses a name that nerdctl knows a container by.
func (m *making) checkNames(ctx context.Context, name string) error {
	if err := m.checkName(ctx, name); err != nil {
		return err
	}
	named, err := m.Client.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%s", daemon.NameLabel, strconv.Quote(name)))
	if err != nil {
		return fmt.Errorf("restore as %s: %w", name, err)
	}
	if len(named) > 0 {
		return m.taken(name)
	}
	return nil
}

// taken returns the error that a container of this name exists.
func (m *making) taken(name string) error {
	return failure.New(errdefs.ErrAlreadyExists, "choose another with --name, or remove that one first",
		"restore as %s: containerd's namespace %s has a container of this name", name, m.Namespace)
}

// make makes the container: the base image, and what [making.create] makes.
func (m *making) make(ctx context.Context, o registry.Options) error {
	p := m.plan
	leased, _, err := Lease(ctx, m.Client, m.work.Dir)
	if err != nil {
		return err
	}
	release := func(o ...leases.DeleteOpt) error {
		id, _ := leases.FromContext(leased)
		return IgnoreNotFound(m.Client.LeasesService().Delete(context.WithoutCancel(ctx), leases.Lease{ID: id}, o...))
	}
	m.img, m.unget, err = daemon.GetBase(leased, m.Client, p.Snapshot.Config.Container, p.Ref, m.snapshotter, o)
	if err == nil {
		m.container, err = m.create(leased)
	}
	if err != nil { // with what only the lease has kept: the name of a root file system is free then
		return errors.Join(err, release(leases.SynchronousDelete))
	}
	m.releasing.Go(func() { _ = release() }) // else containerd does it after a day
	return nil
}

// create makes the container, and files for it: a root file system of the base image, and the specification. The shim writes into the root file system what the snapshot's container
// had changed.
func (m *making) create(ctx context.Context) (containerd.Container, error) {
	p := m.plan
	if p.Etc != "" {
		if err := WriteEtcFiles(p.Etc, p.Spec.Hostname); err != nil {
			return nil, Full(m.Config.Root, err)
		}
	}
	rootFS := containerd.WithNewSnapshot(p.Name, m.img)
	if l := p.Spec.Linux; l != nil && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
		rootFS = containerd.WithUserNSRemappedSnapshot(p.Name, m.img, l.UIDMappings, l.GIDMappings)
	}
	old := p.Snapshot.Config.Container.Labels
	labels := containerLabels(old, m.Namespace, p.Name, p.Ref)
	if m.member {
		labels[daemon.PoolLabel] = p.Ref
	}
	if m.Choices.Trial != nil { // no client takes it for one of its own, and the next command removes it if this one is killed
		labels = map[string]string{daemon.WorkLabel: Mark(m.work.Dir)}
	}
	// Cancelling a call to containerd does not take back what it does, so short ones are let end and are undone then.
	container, err := m.Client.NewContainer(context.WithoutCancel(ctx), p.Name,
		containerd.WithSnapshotter(m.snapshotter),
		rootFS,
		containerd.WithSpec(p.Spec),
		containerd.WithRuntime(m.runtime, runtimeOptions(p.Spec)),
		containerd.WithContainerLabels(labels),
		daemon.WithDigest(daemon.RestoredExtension, m.snapshot.Digest),
	)
	if errdefs.IsAlreadyExists(err) {
		return nil, m.taken(p.Name)
	}
	m.etc = p.Etc // else it is another's
	if err != nil {
		return nil, fmt.Errorf("create the container: %w", Full("containerd's root", err))
	}
	return container, nil
}

// containerLabels are those of the restored container.
func containerLabels(old map[string]string, namespace, name, ref string) map[string]string {
	labels := trust.Labels(old)
	if ref != "" {
		labels[daemon.ReferenceLabel] = ref
	}
	// nerdctl lists a container of its own by this name, and finds it by these.
	if old[daemon.NameLabel] != "" {
		labels[daemon.NameLabel] = name
		labels["nerdctl/namespace"] = namespace
		if p := old["nerdctl/platform"]; p != "" {
			labels["nerdctl/platform"] = p
		}
	}
	return labels
}
