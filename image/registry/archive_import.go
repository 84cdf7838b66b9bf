package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
)

// Import reads a snapshot from a location into the store and tags it with the name that it has there, which it returns. All of it
// is verified; where something is wrong nothing of it stays in the store. A location without a tag must hold one manifest only.
// A snapshot whose name there is just a tag is named after the file or directory. A name that another snapshot has in the store is AlreadyExists,
// unless the location says it in full. What the store has of it already is left unread, unless it is to be repaired, or damage was found in it before.
//
// judge, unless it is nil, decides by its signatures, which come along, whether the snapshot may be imported. Where the location does not say the name in full,
// the archive's author has chosen it, so what holds for a snapshot without a repository must hold as well.
func Import(ctx context.Context, dst *store.Store, location string, judge signature.Judge, repair bool) (ref string, desc ocispec.Descriptor, err error) {
	l, err := parseLocation(location)
	if err != nil {
		return "", desc, err
	}
	ref, desc, err = importFrom(ctx, dst, l, judge, repair)
	if err != nil {
		return "", ocispec.Descriptor{}, fmt.Errorf("import from %s: %w", l, l.classify(ctx, err))
	}
	return ref, desc, nil
}

// classify makes an error for users.
func (l location) classify(ctx context.Context, err error) error {
	var hint interface{ Hint() string }
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &hint):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return unknown(l, err)
	}
	return mapError(l, err)
}

func importFrom(ctx context.Context, dst *store.Store, l location, judge signature.Judge, repair bool) (string, ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	lay, err := openLayout(ctx, l)
	if err != nil {
		return "", none, err
	}
	defer lay.Close()
	index, err := readIndex(l, lay)
	if err != nil {
		return "", none, err
	}
	entry, err := choose(l, index)
	if err != nil {
		return "", none, err
	}
	ref, err := l.name(entry)
	if err != nil {
		return "", none, err
	}
	src := fetcher{lay, l}
	if store.IsIndex(entry.MediaType) { // as registries have it, with an image beside the snapshot
		entry = ocispec.Descriptor{MediaType: entry.MediaType, Digest: entry.Digest, Size: entry.Size}
		data, err := store.ReadAll(ctx, src, entry, store.MaxManifest)
		if err != nil {
			return "", none, err
		}
		if entry, _, err = store.ParseRunnable(ref, entry, data); err != nil {
			return "", none, err
		}
	}
	// A user who names it by the location means that name; else the layout's author chose it.
	if old, err := dst.Resolve(ctx, ref); err == nil && old.Digest != entry.Digest && !sameName(ref, l.tag) {
		return "", none, failure.New(errdefs.ErrAlreadyExists, "to replace that one, remove it first: cryo rm "+ref,
			"the snapshot there is called %s, as another one is in the local store", ref)
	}
	var signed []signature.Attached
	if judge != nil {
		refs := []string{ref}
		if !sameName(ref, l.tag) {
			refs = append(refs, "")
		}
		if signed, err = store.SignaturesIn(ctx, index, entry.Digest, src); err != nil {
			return "", none, err
		}
		if err := judge(refs, entry.Digest, signed, nil); err != nil {
			return "", none, err
		}
	}
	op, err := dst.Begin(ctx)
	if err != nil {
		return "", none, err
	}
	desc, err := copyIn(ctx, dst, src, entry, signed, ref, repair)
	if err != nil {
		return "", none, errors.Join(err, op.Abandon())
	}
	return ref, desc, op.Close()
}

func copyIn(ctx context.Context, dst *store.Store, src fetcher, entry ocispec.Descriptor, signed []signature.Attached, ref string, repair bool) (ocispec.Descriptor, error) {
	desc := ocispec.Descriptor{MediaType: entry.MediaType, Digest: entry.Digest, Size: entry.Size}
	m, data, err := store.ReadSnapshot(ctx, src, ref, desc)
	if err != nil {
		return desc, err
	}
	// Decision: not oras-go's CopyGraph. It skips a snapshot whose manifest is in the store, also if blobs are damaged or missing, and the wrappers that prevent this are as long as
	// this loop.
	blobs := store.Blobs(m)
	if all := append(blobs, desc); repair || dst.Suspects(all) {
		if err := dst.SuspectBlobs(all); err != nil {
			return desc, err
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, d := range blobs {
		group.Go(func() error {
			rc, err := src.Fetch(gctx, d)
			if err != nil {
				return err
			}
			defer rc.Close()
			return dst.Push(gctx, d, rc)
		})
	}
	if err := group.Wait(); err != nil {
		return desc, err
	}
	if err := dst.Push(ctx, desc, bytes.NewReader(data)); err != nil {
		return desc, err
	}
	if err := dst.Attach(ctx, signed); err != nil {
		return desc, err
	}
	desc.ArtifactType = m.ArtifactType
	return desc, dst.Tag(ctx, desc, ref)
}

// readIndex reads oci-layout and index.json.
func readIndex(l location, lay layout) (ocispec.Index, error) {
	data, err := readSmall(l, lay, ocispec.ImageLayoutFile, 64<<10)
	if err != nil {
		return ocispec.Index{}, err
	}
	if err := store.CheckLayout(data); err != nil {
		return ocispec.Index{}, damaged(l, fmt.Errorf("oci-layout: %w", err))
	}
	if data, err = readSmall(l, lay, ocispec.ImageIndexFile, maxIndex); err != nil {
		return ocispec.Index{}, err
	}
	i, err := store.ParseIndex(data)
	if err != nil {
		return i, damaged(l, fmt.Errorf("index.json: %w", err))
	}
	return i, nil
}

func readSmall(l location, lay layout, name string, limit int64) ([]byte, error) {
	rc, size, err := lay.open(name)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	if size > limit {
		return nil, damaged(l, fmt.Errorf("%s has %d bytes, at most %d are allowed", name, size, limit))
	}
	data, err := io.ReadAll(io.LimitReader(rc, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// choose finds the entry that the location means.
func choose(l location, index ocispec.Index) (ocispec.Descriptor, error) {
	var tags []string
	for _, d := range index.Manifests {
		if d.ArtifactType == signature.MediaType {
			continue // they come with what they are of
		}
		name := d.Annotations[ocispec.AnnotationRefName]
		if l.tag != "" && (name == l.tag || sameName(name, l.tag)) {
			return d, nil
		}
		if name == "" {
			name = d.Digest.String()
		}
		tags = append(tags, name)
	}
	switch {
	case l.tag != "":
		if i := slices.IndexFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.Digest.String() == l.tag }); i >= 0 {
			return index.Manifests[i], nil
		}
		return ocispec.Descriptor{}, failure.New(errdefs.ErrNotFound, holds(tags), "%s: no such tag", l.text)
	case len(tags) == 0:
		return ocispec.Descriptor{}, unknown(l, errors.New("it is empty"))
	case len(tags) > 1:
		return ocispec.Descriptor{}, failure.New(errdefs.ErrInvalidArgument, "name one behind a colon; "+holds(tags), "%s holds %d manifests", l.text, len(tags))
	}
	return index.Manifests[slices.IndexFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.ArtifactType != signature.MediaType })], nil
}

// holds lists what there is.
func holds(tags []string) string { return "it holds " + strings.Join(tags[:min(len(tags), 20)], ", ") }

// fullName normalises what is more than a tag.
func fullName(name string) (string, bool) {
	if !strings.ContainsAny(name, "/:@") || digest.Digest(name).Validate() == nil {
		return "", false
	}
	full, err := store.Normalize(name)
	return full, err == nil
}

func sameName(a, b string) bool {
	x, ok := fullName(a)
	y, ok2 := fullName(b)
	return ok && ok2 && x == y
}

var notInNames = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^a-z0-9]+`) })

// name is what the snapshot is called in the store.
func (l location) name(entry ocispec.Descriptor) (string, error) {
	tag := entry.Annotations[ocispec.AnnotationRefName]
	for _, n := range []string{tag, entry.Annotations[store.AnnotationName]} {
		if full, ok := fullName(n); ok {
			return full, nil
		}
	}
	if tag == "" {
		tag = "latest"
	}
	base := filepath.Base(l.path)
	base = strings.Trim(notInNames().ReplaceAllString(strings.ToLower(strings.TrimSuffix(base, ".tar")), "-"), "-")
	if base == "" {
		base = "imported"
	}
	return store.Normalize(base + ":" + tag)
}
