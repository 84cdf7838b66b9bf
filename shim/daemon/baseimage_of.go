package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
)

// BaseOf finds the image a container stands on, and the chain ID of its layers. Its name may point at another image by now, so the image counts only
// if its layers are the parent of the container's snapshot; else all images are searched for one.
func BaseOf(ctx context.Context, client *containerd.Client, info containers.Container) (_ images.Image, chain digest.Digest, _ error) {
	parents, err := parentsOf(ctx, client, info)
	if err != nil {
		return images.Image{}, "", fmt.Errorf("examine the rootfs of %s: %w", info.ID, err)
	}
	if named, err := client.ImageService().Get(ctx, info.Image); err == nil {
		if chain, ok := standsOn(ctx, client, named, parents); ok {
			return named, chain, nil
		}
	}
	all, err := client.ImageService().List(ctx)
	if err != nil {
		return images.Image{}, "", fmt.Errorf("search the image of %s: %w", info.ID, err)
	}
	for _, i := range all {
		if chain, ok := standsOn(ctx, client, i, parents[:1]); ok {
			return i, chain, nil
		}
	}
	return images.Image{}, "", failure.New(errdefs.ErrFailedPrecondition, "pull the image again by the digest it had; a snapshot holds only what the container changed in it",
		"checkpoint %s: containerd no longer has the image it was made from (%s)", info.ID, info.Image)
}

// Chains say which layers a container's root file system stands on, by chain IDs; the zero value: it has no snapshot.
type Chains struct {
	All   digest.Digest // of all
	Below digest.Digest // of all but the last; empty: there is one
}

// ChainsOf returns a container's layers. One in which containerd's client has given the image's files to the users that the container's are mapped to is none.
func ChainsOf(ctx context.Context, client *containerd.Client, info containers.Container) (l Chains, err error) {
	if info.SnapshotKey == "" {
		return l, nil
	}
	parents, err := parentsOf(ctx, client, info)
	if err != nil {
		return l, fmt.Errorf("find the container's layers: %w", err)
	}
	var spec struct {
		Linux specs.Linux `json:"linux"`
	}
	if err := json.Unmarshal(info.Spec.GetValue(), &spec); err != nil {
		return l, fmt.Errorf("read the container's specification: %w", err)
	}
	if len(parents) > 1 && shifted(parents[0], parents[1], spec.Linux.UIDMappings, spec.Linux.GIDMappings) {
		stat, err := client.SnapshotService(info.Snapshotter).Stat(ctx, parents[1])
		if err != nil {
			return l, fmt.Errorf("find the container's layers: %w", err)
		}
		parents = []string{parents[1], stat.Parent}
	}
	l.All = digest.Digest(parents[0])
	if len(parents) > 1 {
		l.Below = digest.Digest(parents[1])
	}
	return l, nil
}

// shifted tells by its name whether a snapshot is another one with its files given to other users. Source: containerd's client, snapshotter_opts_unix.go and
// container_opts_unix.go: since 2.1 remappedSnapshot.ID, before PARENT-UID-GID.
func shifted(name, parent string, uids, gids []specs.LinuxIDMapping) bool {
	type maps struct {
		UIDs []specs.LinuxIDMapping `json:"UidMap"`
		GIDs []specs.LinuxIDMapping `json:"GidMap"`
	}
	byInside := func(all []specs.LinuxIDMapping) []specs.LinuxIDMapping {
		return slices.SortedStableFunc(slices.Values(all), func(a, b specs.LinuxIDMapping) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	}
	id, err := json.Marshal(struct {
		Parent string
		IDMap  maps
	}{parent, maps{byInside(uids), byInside(gids)}})
	return err == nil && name == digest.FromBytes(id).String() || strings.HasPrefix(name, parent+"-")
}

// parentsOf returns the parent of a container's snapshot, and the parent of that. The latter is the image's where a layer is between, with the image's files shifted
// to other owners (ctr run --uidmap).
func parentsOf(ctx context.Context, client *containerd.Client, info containers.Container) ([]string, error) {
	sn := client.SnapshotService(info.Snapshotter)
	stat, err := sn.Stat(ctx, info.SnapshotKey)
	if err != nil {
		return nil, err
	}
	if shifted, err := sn.Stat(ctx, stat.Parent); err == nil && shifted.Parent != "" {
		return []string{stat.Parent, shifted.Parent}, nil
	}
	return []string{stat.Parent}, nil
}

// standsOn reports whether the layers of an image are one of the snapshots parents, and their chain ID.
func standsOn(ctx context.Context, client *containerd.Client, i images.Image, parents []string) (chain digest.Digest, ok bool) {
	diffs, err := containerd.NewImage(client, i).RootFS(ctx)
	if err != nil {
		return "", false
	}
	chain = identity.ChainID(diffs)
	return chain, slices.Contains(parents, chain.String())
}

// BaseReferrer returns the image a snapshot refers to, so that registries list it among the image's referrers: the base
// image where the snapshot goes into the same repository, else nothing. A manifest whose subject is not in its repository
// cannot be copied by oras.
func BaseReferrer(base ocispec.Descriptor, image, ref string) *ocispec.Descriptor {
	if repository(image) == "" || repository(image) != repository(ref) {
		return nil
	}
	return &base
}

// repository returns a reference's host and path; nothing if it is none.
func repository(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ""
	}
	return named.Name()
}
