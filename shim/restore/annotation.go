package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/archive"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/baseimage"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restorer"
)

// notAllowed says that the host's configuration does not allow a snapshot for the annotation.
func notAllowed(ref string) error {
	return failure.New(errdefs.ErrPermissionDenied, "add its registry, or the beginning of its repository, to repositories under [restore.annotation] in /etc/cryo/config.toml",
		"restore-annotation: the configuration does not allow a container to be restored from %s by its annotation", ref)
}

// mismatch says that a snapshot cannot be restored into a container with another specification, or root file system.
func mismatch(found []fit.Finding) error {
	text := "the snapshot cannot be restored into this container:"
	for _, f := range found {
		text += fmt.Sprintf("\n  %s: %s", f.Rule, f.Problem)
	}
	return failure.New(errdefs.ErrFailedPrecondition, (&fit.MisfitError{Findings: found}).Hint(), "%s", text)
}

// annotated gives the options of a restore that an annotation asks for. The client has written the container's specification; the host's configuration decides the rest.
func annotated(c config.Config, r restorer.Request) (Options, error) {
	o := Options{
		Config: c, Name: r.ID, Namespace: r.Namespace, Address: r.Address, Choices: restorer.Choices{Pull: PullMissing, Force: c.Restore.Annotation.Force}, Timeout: c.Restore.Annotation.Patience(),
		Registry: registry.Options{DockerConfig: c.Restore.Annotation.Credentials},
	}
	if full, err := store.Normalize(r.Ref); err == nil { // else what it is looked for by says what is wrong
		o.Registry.PlainHTTP = c.Restore.Annotation.Plain(full)
	}
	var err error
	if o.Policy.Allow, err = Grants(c.Restore.Annotation.Allow); err != nil {
		return o, fmt.Errorf("restore.annotation.allow in the configuration: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(r.Bundle, "config.json"))
	if err != nil {
		return o, fmt.Errorf("read the container's specification: %w", err)
	}
	o.Spec = &specs.Spec{}
	if err := json.Unmarshal(data, o.Spec); err != nil {
		return o, fmt.Errorf("read the container's specification: %w", err)
	}
	return o, nil
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

// allowed refuses what the configuration does not allow for the annotation. A digest is of all repositories of which the store has it.
func allowed(ctx context.Context, s *store.Store, a config.Annotation, ref string) error {
	if archive.IsLocation(ref) {
		return notAllowed(ref) // a file of the host's
	}
	full, err := store.Normalize(ref)
	if err != nil {
		return err
	}
	refs := []string{full}
	if desc, err := s.Resolve(ctx, ref); err == nil {
		if refs, err = Names(ctx, s, ref, desc.Digest); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(refs, a.Allows) {
		return notAllowed(ref)
	}
	return nil
}

// checkBase refuses a container whose root file system stands on another image than the snapshot's did: its processes would find other files.
func (v *serving) checkBase(was image.Container) error {
	ctx, client, err := v.connect(v.ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	info, err := client.ContainerService().Get(ctx, v.request.ID)
	if err != nil {
		return fmt.Errorf("find the container's image: %w", err)
	}
	stands, err := baseimage.StandsOn(ctx, client, info, was.ImageDigest)
	if err != nil || stands {
		return err
	}
	from := info.Image
	if info.SnapshotKey == "" {
		from = "no image"
	}
	return mismatch([]fit.Finding{{
		Rule: ruleBaseImage, Fatal: true, Problem: fmt.Sprintf("the snapshot's container was made from %s (%s), and this one from %s", was.Image, was.ImageDigest, from),
		Hint: fmt.Sprintf("create the container from the image with the digest %s", was.ImageDigest),
	}})
}
