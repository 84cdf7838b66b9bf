package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// NotAllowed returns the error that the host's configuration does not allow a container to ask for a snapshot.
func NotAllowed(ref string) error {
	return failure.New(errdefs.ErrPermissionDenied, "add its registry, or the beginning of its repository, to repositories under [restore.policy] in /etc/cryo/config.toml",
		"restore-policy: the configuration does not allow a container to be restored from %s", ref).By("restore-policy")
}

// mismatch returns the error that a snapshot cannot be restored into a container with another specification, or root file system.
func mismatch(found []host.FitFinding) error {
	return host.RefuseMisfit(errdefs.ErrFailedPrecondition, "the snapshot cannot be restored into this container:", found...)
}

// annotated returns the options of a restore that a container asks for. The client has written the container's specification; the host's configuration decides the rest.
func annotated(c config.Config, r worker.Request) (Options, error) {
	o := Options{
		Config: c, Name: r.ID, Namespace: r.Namespace, Address: r.Address, Choices: worker.Choices{Force: c.Restore.Policy.Force}, Timeout: c.Restore.Policy.Patience(),
		Registry: registry.Options{DockerConfig: c.Restore.Policy.Credentials, Hosts: c.Registry.Hosts},
	}
	if full, err := store.Normalize(r.Ref); err == nil { // else what it is looked for by says what is wrong
		o.Registry.PlainHTTP = c.Restore.Policy.Plain(full)
	}
	var err error
	if o.Policy.Allow, err = Grants(c.Restore.Policy.Allow); err != nil {
		return o, fmt.Errorf("restore.policy.allow in the configuration: %w", err)
	}
	if o.Spec, err = readSpec(r.Bundle); err == nil {
		o.Move = o.Spec.Annotations[worker.AsAnnotation] == worker.AsMove
	}
	return o, err
}

// Grants reads the names of grants.
func Grants(names []string) (all []trust.Grant, err error) {
	for _, name := range names {
		g, err := trust.ParseGrant(name)
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// allowed refuses references that the configuration does not allow containers to name. pull says where the snapshot is to be looked up, as in [worker.Choices]. A digest without a repository
// is allowed if the store has the snapshot under a name that is allowed. A digest with a repository is looked up in that repository, unless the store has the snapshot from there: otherwise
// the digest of any snapshot in the store could be asked for under an allowed repository.
func allowed(ctx context.Context, s *store.Store, a config.Registries, ref string) (pull string, err error) {
	if registry.IsLocation(ref) {
		return "", NotAllowed(ref) // a file of the host's
	}
	full, err := store.Normalize(ref)
	if err != nil {
		return "", err
	}
	refs, pull := []string{full}, PullMissing
	if desc, err := s.Resolve(ctx, ref); err == nil && strings.HasSuffix(full, desc.Digest.String()) {
		names, err := Names(ctx, s, desc.Digest.String(), desc.Digest)
		switch {
		case err != nil:
			return "", err
		case full == desc.Digest.String():
			refs = names
		case !slices.ContainsFunc(names, func(name string) bool { return signature.RepositoryOf(name) == signature.RepositoryOf(full) }):
			pull = PullAlways
		}
	}
	if !slices.ContainsFunc(refs, a.Allows) {
		return "", NotAllowed(ref)
	}
	return pull, nil
}

// repositoryOf is a normalised reference without its tag and digest.
func repositoryOf(full string) string {
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return full
	}
	return named.Name()
}

// asker is what containerd says of a container that asks for a restore.
type asker struct {
	client *containerd.Client
	ctx    context.Context // with the namespace
	info   containers.Container
	chains daemon.Chains
}

// look asks containerd for the container.
func (v *serving) look() (*asker, error) {
	ctx, client, err := v.connect(v.ctx)
	if err != nil {
		return nil, err
	}
	o := &asker{client: client, ctx: ctx}
	if o.info, err = client.ContainerService().Get(ctx, v.request.ID); err != nil {
		return nil, errors.Join(fmt.Errorf("find the container: %w", err), client.Close())
	}
	return o, nil
}

// close ends the connection; nil: there is none.
func (o *asker) close() {
	if o != nil {
		_ = o.client.Close()
	}
}

// snapshotOf names the snapshot that a container's image is the runnable one of: in the image's repository, by the digest that the image was made with, so that no tag
// pairs the image with another snapshot. false: the image is an ordinary one.
func (o *asker) snapshotOf(named string) (ref string, ok bool, err error) {
	d := o.info.Labels[image.RunnableLabel]
	if d == "" {
		return "", false, nil
	}
	full, err := store.Normalize(named)
	if err == nil {
		ref, err = store.Normalize(repositoryOf(full) + "@" + d)
	}
	if err != nil {
		return "", false, fmt.Errorf("find the snapshot of the image %s: label %s: %w", named, image.RunnableLabel, err)
	}
	return ref, true, nil
}

// rootfs returns the difference of a snapshot from containerd's content, where the container's image has it as its last layer.
func (o *asker) rootfs(d ocispec.Descriptor) image.Fetcher {
	last := digest.Digest(d.Annotations[image.AnnotationRawDigest])
	if o.chains.Below == "" || identity.ChainID([]digest.Digest{o.chains.Below, last}) != o.chains.All {
		return nil
	}
	space, _ := namespaces.Namespace(o.ctx) // which has it
	return daemon.Content{Provider: o.client.ContentStore(), Namespace: space}
}

// checkBase refuses a container whose root file system stands on another image than the snapshot's did: its processes would find other files. changed tells whether that has
// the snapshot's difference already.
func checkBase(s *image.Snapshot, chains daemon.Chains, name string) (changed bool, err error) {
	was := s.Config.Container
	own, known := s.RunnableChain()
	switch {
	case known && chains.All == was.ChainID:
		return false, nil
	case known && chains.All == own:
		return true, nil
	}
	from := name
	if chains.All == "" {
		from = "no image"
	}
	return false, mismatch([]host.FitFinding{{
		Rule: ruleBaseImage, Fatal: true,
		Problem: fmt.Sprintf("the snapshot's container was made from %s (%s, layers %s), and this one from %s (layers %s)", was.Image, was.ImageDigest, was.ChainID, from, chains.All),
		Hint:    fmt.Sprintf("create the container from the snapshot's own image, or from the image with the digest %s", was.ImageDigest),
	}})
}
