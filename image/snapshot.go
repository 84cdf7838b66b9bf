package image

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// Fetcher opens blobs. It need not be trusted: what it gives is verified here. oras-go's content.Fetcher has this shape.
type Fetcher interface {
	Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error)
}

// Snapshot is a snapshot whose manifest and config were read and verified.
type Snapshot struct {
	Descriptor ocispec.Descriptor
	Manifest   ocispec.Manifest
	Config     Config
	layout     layout
}

// Open reads and verifies a snapshot's manifest and config. What is not a snapshot gives DataLoss, one of another version
// NotImplemented, what is damaged an error of kind DataLoss; errors of src are passed on.
func Open(ctx context.Context, src Fetcher, d ocispec.Descriptor) (*Snapshot, error) {
	if d.MediaType != "" && d.MediaType != ocispec.MediaTypeImageManifest {
		return nil, notSnapshot(d.Digest, "its media type is %.100q", d.MediaType)
	}
	b, err := readBlob(ctx, src, "manifest", d, maxManifest)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Descriptor: d}
	if s.Manifest, s.layout, err = parseManifest(b, d.Digest); err != nil {
		return nil, err
	}
	if err := CheckContents(s.Manifest.Layers); err != nil {
		return nil, err
	}
	if b, err = readBlob(ctx, src, "config", s.Manifest.Config, maxConfig); err != nil {
		return nil, err
	}
	if s.Config, err = parseConfig(b, s.Manifest.Config.Digest); err != nil {
		return nil, err
	}
	if p, n := s.Config.Parent, len(s.Segments()); p != nil && p.Segments > n {
		return nil, damaged("config", s.Manifest.Config.Digest, fmt.Errorf("%d of its %d segments are its parent's", p.Segments, n))
	}
	return s, nil
}

// Index is the layer that says where memory is.
func (s *Snapshot) Index() ocispec.Descriptor { return s.Manifest.Layers[0] }

// CRIU is the layer with CRIU's images.
func (s *Snapshot) CRIU() ocispec.Descriptor { return s.Manifest.Layers[1] }

// RootFS is the layer with the rootfs difference; false where the snapshot has none.
func (s *Snapshot) RootFS() (ocispec.Descriptor, bool) {
	if !s.layout.rootFS {
		return ocispec.Descriptor{}, false
	}
	return s.Manifest.Layers[2], true
}

// RunnableChain is the chain ID of the layers that make the container's root file system: those of its base image and the rootfs difference.
// It is false if the chain ID of the base image is unknown.
func (s *Snapshot) RunnableChain() (digest.Digest, bool) {
	base := s.Config.Container.ChainID
	if base == "" {
		return "", false
	}
	d, ok := s.RootFS()
	if !ok {
		return base, true
	}
	return identity.ChainID([]digest.Digest{base, digest.Digest(d.Annotations[AnnotationRawDigest])}), true
}

// Segments are the layers that hold memory, in order.
func (s *Snapshot) Segments() []ocispec.Descriptor { return s.Manifest.Layers[s.layout.segments:] }

// Size is that of all blobs in bytes, the manifest included.
func (s *Snapshot) Size() int64 {
	n := s.Descriptor.Size + s.Manifest.Config.Size
	for _, l := range s.Manifest.Layers {
		n += l.Size
	}
	return n
}

// Shared is how many bytes of its segments are its parent's.
func (s *Snapshot) Shared() (n int64) {
	for _, l := range s.Segments()[:s.shared()] {
		n += l.Size
	}
	return n
}

// CheckContents refuses, with an error of kind DataLoss, layers of a snapshot that unpack to more than they may, and a rootfs difference without a DiffID.
func CheckContents(layers []ocispec.Descriptor) (err error) {
	for _, d := range layers {
		switch d.MediaType {
		case MediaTypeIndex:
			_, err = contentsOf(d, indexLimit(d))
		case MediaTypeCRIU, MediaTypeRootFS:
			_, err = contentsOf(d, maxContents(d.Size))
		}
		if err == nil && d.MediaType == MediaTypeRootFS {
			_, err = diffID(d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// indexLimit bounds the text of an index: digests and numbers never compress a hundredfold.
func indexLimit(d ocispec.Descriptor) int64 {
	return min(int64(format.MaxIndexText), 1<<20+100*min(d.Size, format.MaxIndexText))
}

// ReadIndex reads and verifies the index and compares it with manifest and config.
func (s *Snapshot) ReadIndex(ctx context.Context, src Fetcher) (*format.Index, error) {
	d := s.Index()
	var x *format.Index
	err := readLayer(ctx, src, d, indexLimit(d), func(r io.Reader) (err error) {
		x, err = format.DecodeIndex(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.checkIndex(x); err != nil {
		return nil, damaged(titleIndex, d.Digest, err)
	}
	return x, nil
}

// openIndex is [Open] and [Snapshot.ReadIndex].
func openIndex(ctx context.Context, src Fetcher, d ocispec.Descriptor) (*Snapshot, *format.Index, error) {
	s, err := Open(ctx, src, d)
	if err != nil {
		return nil, nil, err
	}
	x, err := s.ReadIndex(ctx, src)
	return s, x, err
}

// checkIndex returns an error unless the index fits manifest and config.
func (s *Snapshot) checkIndex(x *format.Index) error {
	segments := s.Segments()
	if len(segments) != len(x.Segments) {
		return fmt.Errorf("it lists %d segments, the manifest %d", len(x.Segments), len(segments))
	}
	used := x.Used()
	for i, d := range segments {
		if is := x.Segments[i]; d.Size != is.Size || d.Digest.Encoded() != fmt.Sprintf("%x", is.Digest) {
			return fmt.Errorf("its segment %d is not that of the manifest", i)
		}
		if i >= s.shared() && used[i] != d.Size {
			return fmt.Errorf("its frames leave gaps in segment %d, which is not the parent's", i)
		}
	}
	if n := s.Config.Host.PageSize; int64(n) != x.PageSize {
		return fmt.Errorf("its page size is %d, that of the config %d", x.PageSize, n)
	}
	if err := checkDevices(x, s.Config.GPU); err != nil {
		return err
	}
	if totals(x) != s.Config.Memory {
		return errors.New("it does not sum up to the memory totals of the config")
	}
	return nil
}

// totals sums up an index.
func totals(x *format.Index) Memory {
	total, device := x.MemoryBytes()
	m := Memory{Total: total, Zero: total - x.RawBytes(), Device: device}
	for i, used := range x.Used() {
		m.Stored += x.Segments[i].Size
		m.Unused += x.Segments[i].Size - used
	}
	return m
}

// ReadImages hands each of CRIU's images but those of memory to take, by name. It fails, after that, if the layer did not verify.
func (s *Snapshot) ReadImages(ctx context.Context, src Fetcher, take func(name string, r io.Reader) error) error {
	d := s.CRIU()
	wrong := func(err error) error { return damaged(titleCRIU, d.Digest, err) }
	return readLayer(ctx, src, d, maxContents(d.Size), func(r io.Reader) error { return readCRIU(r, wrong, take) })
}

// readChecked is [Snapshot.ReadImages], and compares what the images say about memory with the index. take may be nil; else it must have each image checked.
func (s *Snapshot) readChecked(ctx context.Context, src Fetcher, check *pagemapCheck, take func(name string, r io.Reader) error) error {
	if take == nil {
		take = check.file
	}
	if err := s.ReadImages(ctx, src, take); err != nil {
		return err
	}
	if err := check.finish(); err != nil {
		return damaged(titleCRIU, s.CRIU().Digest, err)
	}
	return nil
}

// MaxRootFS is what the rootfs difference may take where it is unpacked, in bytes.
func (s *Snapshot) MaxRootFS() int64 {
	d, _ := s.RootFS()
	return maxContents(d.Size)
}

// ReadRootFS hands the rootfs difference, an uncompressed tar, to read. It fails, after read returned, if the layer did not
// verify: what read did must then be thrown away. A snapshot without a rootfs difference gives an error of kind NotFound.
func (s *Snapshot) ReadRootFS(ctx context.Context, src Fetcher, read func(io.Reader) error) error {
	d, ok := s.RootFS()
	if !ok {
		return fmt.Errorf("read %s: the snapshot has no rootfs difference: %w", titleRootFS, errdefs.ErrNotFound)
	}
	return readLayer(ctx, src, d, maxContents(d.Size), read)
}
