package registry

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
)

// Export writes the snapshot desc to a location. It gets the location's tag there, or else the name ref. A directory may hold
// other images already, an archive is replaced as a whole. The same snapshot and name give the same archive, byte for byte.
func Export(ctx context.Context, src *store.Store, desc ocispec.Descriptor, ref, location string) error {
	l, err := parseLocation(location)
	if err != nil {
		return err
	}
	op, err := src.Begin(ctx)
	if err != nil {
		return fmt.Errorf("export to %s: %w", l, err)
	}
	defer op.Close()
	e, err := newExport(ctx, src, desc, ref, l)
	if err != nil {
		return fmt.Errorf("export to %s: %w", l, err)
	}
	if l.tar {
		err = e.toTar(ctx)
	} else {
		err = e.toDir(ctx)
	}
	if err != nil {
		return fmt.Errorf("export to %s: %w", l, mapError(l, err))
	}
	return nil
}

// export is a snapshot on its way out.
type export struct {
	src    *store.Store
	l      location
	entry  ocispec.Descriptor   // for index.json
	signed []ocispec.Descriptor // signatures of it, likewise
	blobs  []ocispec.Descriptor // each once, in the order of their digests
}

func newExport(ctx context.Context, src *store.Store, desc ocispec.Descriptor, ref string, l location) (*export, error) {
	name := l.tag
	if name == "" {
		full, err := store.Normalize(ref)
		if err != nil {
			return nil, err
		}
		name = full
	}
	m, _, err := store.ReadSnapshot(ctx, src, ref, desc)
	if err != nil {
		return nil, err
	}
	entry := ocispec.Descriptor{
		MediaType:    desc.MediaType,
		Digest:       desc.Digest,
		Size:         desc.Size,
		ArtifactType: m.ArtifactType,
		Annotations:  map[string]string{ocispec.AnnotationRefName: name},
	}
	if full, ok := fullName(name); ok {
		entry.Annotations[store.AnnotationName] = full
	}
	blobs := append(store.Blobs(m), desc)
	all, err := src.Signatures(ctx, desc.Digest)
	if err != nil {
		return nil, err
	}
	var signed []ocispec.Descriptor
	for _, a := range all {
		if a.Err != nil {
			continue
		}
		signed = append(signed, a.Manifest.Descriptor)
		for _, b := range append(a.Blobs(), a.Manifest) {
			blobs = append(blobs, b.Descriptor)
		}
	}
	blobs = store.Unique(blobs)
	slices.SortFunc(blobs, func(a, b ocispec.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	return &export{src: src, l: l, entry: entry, signed: signed, blobs: blobs}, nil
}

// toTar writes beside the file and renames, so that no part of an archive is ever there.
func (e *export) toTar(ctx context.Context) error {
	return store.ReplaceFile(e.l.path, func(w io.Writer) error {
		buf := bufio.NewWriterSize(w, 1<<20)
		if err := e.writeTar(ctx, buf); err != nil {
			return err
		}
		return buf.Flush()
	})
}

func (e *export) writeTar(ctx context.Context, w io.Writer) error {
	index, err := json.Marshal(store.NewIndex(append([]ocispec.Descriptor{e.entry}, e.signed...)...))
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	// Small files first: the reader of a stream knows soon what comes.
	for _, f := range []struct {
		name string
		data []byte
	}{{ocispec.ImageLayoutFile, store.LayoutFile()}, {ocispec.ImageIndexFile, index}} {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := t.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o700}); err != nil {
			return err
		}
	}
	for _, d := range e.blobs {
		if err := t.WriteHeader(&tar.Header{Name: blobName(d.Digest), Typeflag: tar.TypeReg, Mode: 0o600, Size: d.Size}); err != nil {
			return err
		}
		if err := store.Copy(ctx, t, e.src, d); err != nil {
			return err
		}
	}
	return t.Close()
}

func blobName(d digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}
