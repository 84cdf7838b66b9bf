package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// AnnotationRawSize is the length in bytes of a compressed layer's contents. A reader takes no more, and no less.
const AnnotationRawSize = "io.cryo.raw.size"

// AnnotationRawDigest is the SHA-256 of what the rootfs difference decompresses to: its DiffID as a layer of an image. Source: OCI image
// specification, config.md, "Layer DiffID".
const AnnotationRawDigest = "io.cryo.raw.digest"

const (
	// zstdWindow of compressed layers, in bytes; jobs that are compressed at once are four times as long.
	zstdWindow = 1 << 20
	// maxZstdWindow is the largest window a reader accepts, what RFC 8878 asks every decoder to support.
	maxZstdWindow = 8 << 20
	// maxLayerWorkers bounds the memory of a compressor to some 80 MiB.
	maxLayerWorkers = 8
)

// Bounds of what a layer decompresses to: contentsFree bytes, and contentsFactor times the length of the layer.
const (
	contentsFree   = 64 << 20
	contentsFactor = 100
)

// maxContents is how many bytes a layer of a size may decompress to.
func maxContents(size int64) int64 {
	return contentsFree + contentsFactor*min(size, math.MaxInt64/contentsFactor-contentsFree)
}

// contentsOf reads how many bytes a layer decompresses to, and refuses more than limit.
func contentsOf(d ocispec.Descriptor, limit int64) (int64, error) {
	said := d.Annotations[AnnotationRawSize]
	n, err := strconv.ParseInt(said, 10, 64)
	if err == nil && n >= 0 && n <= limit {
		return n, nil
	}
	return 0, damaged(d.Annotations[ocispec.AnnotationTitle], d.Digest, fmt.Errorf("it unpacks to %.100q bytes; of its %d bytes, 0 to %d are allowed (rule unpacked-size)", said, d.Size, limit))
}

// diffID reads the digest of what the rootfs difference decompresses to.
func diffID(d ocispec.Descriptor) (digest.Digest, error) {
	said := digest.Digest(d.Annotations[AnnotationRawDigest])
	if validDigest(said) {
		return said, nil
	}
	return "", damaged(d.Annotations[ocispec.AnnotationTitle], d.Digest, fmt.Errorf("the digest %.100q of what it unpacks to is not valid", said))
}

// pad appends skippable frames (RFC 8878, section 3.1.2) to a layer of size bytes, until it is long enough for its contents.
func pad(w io.Writer, size, contents int64) error {
	const head, most = 8, 1 << 30
	for maxContents(size) < contents {
		n := min(max((contents-maxContents(size)+contentsFactor-1)/contentsFactor-head, 0), most)
		frame := binary.LittleEndian.AppendUint32([]byte{0x50, 0x2a, 0x4d, 0x18}, uint32(n))
		if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(frame), io.LimitReader(zeros{}, n))); err != nil {
			return err
		}
		size += head + n
	}
	return nil
}

// zeros reads as zeros, without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// writeLayer stores what write writes as a zstd-compressed layer.
func writeLayer(ctx context.Context, dst BlobStore, mediaType, title string, workers int, write func(io.Writer) error) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	blob, err := dst.Create(ctx)
	if err != nil {
		return none, fmt.Errorf("write %s: %w", title, err)
	}
	defer blob.Close()
	// With two or more goroutines the output does not depend on their number.
	stored := &contextWriter{ctx: ctx, w: blob}
	z, err := zstd.NewWriter(stored, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(zstdWindow),
		zstd.WithConcurrentBlocks(true), zstd.WithEncoderConcurrency(min(max(workers, 2), maxLayerWorkers)))
	if err != nil {
		return none, fmt.Errorf("write %s: %w", title, err)
	}
	counted, raw := &contextWriter{ctx: ctx, w: z}, digest.SHA256.Digester()
	if mediaType == MediaTypeRootFS {
		counted.w = io.MultiWriter(raw.Hash(), z)
	}
	if err := write(counted); err != nil {
		z.Close()
		return none, fmt.Errorf("write %s: %w", title, err)
	}
	if err := z.Close(); err != nil {
		return none, fmt.Errorf("write %s: %w", title, err)
	}
	if err := pad(stored, stored.n, counted.n); err != nil {
		return none, fmt.Errorf("write %s: %w", title, err)
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	d, err := blob.Commit(ctx, mediaType)
	if err != nil {
		return none, fmt.Errorf("write %s: %w", title, err)
	}
	d.Annotations = map[string]string{
		ocispec.AnnotationTitle: title,
		AnnotationRawSize:       strconv.FormatInt(counted.n, 10),
	}
	if mediaType == MediaTypeRootFS {
		d.Annotations[AnnotationRawDigest] = raw.Digest().String()
	}
	return d, nil
}

// contextWriter counts, and ends when its context does.
type contextWriter struct {
	ctx context.Context
	w   io.Writer
	n   int64
}

func (c *contextWriter) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// readLayer hands the contents of a compressed layer to read and says whether the whole layer is sound: length and digest of
// the blob, length of its contents, and of a rootfs difference their digest. limit bounds the contents.
func readLayer(ctx context.Context, src Fetcher, d ocispec.Descriptor, limit int64, read func(io.Reader) error) error {
	title := d.Annotations[ocispec.AnnotationTitle]
	size, err := contentsOf(d, limit)
	if err != nil {
		return err
	}
	blob, err := openBlob(ctx, src, title, d)
	if err != nil {
		return err
	}
	defer blob.Close()
	z, err := zstd.NewReader(blob, zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderMaxMemory(maxZstdWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return fmt.Errorf("read %s: %w", title, err)
	}
	defer z.Close()
	c := &layerReader{z: z, blob: blob, left: size}
	if d.MediaType == MediaTypeRootFS {
		id, err := diffID(d)
		if err != nil {
			return err
		}
		c.raw = id.Verifier()
	}
	if err := read(c); err != nil {
		// What the reader made of damaged bytes says less than that they are damaged.
		if damage := c.failed(); damage != nil {
			return damage
		}
		return err
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	z.Close()
	if err := blob.finish(); err != nil {
		return err
	}
	if c.raw != nil && !c.raw.Verified() {
		return blob.damaged(fmt.Errorf("it does not unpack to what has the digest %s", d.Annotations[AnnotationRawDigest]))
	}
	return nil
}

// layerReader reads the contents of a layer, exactly left bytes.
type layerReader struct {
	z    *zstd.Decoder
	blob *blobReader
	left int64
	raw  digest.Verifier // of what was read; nil: that has no digest of its own
	err  error
}

func (c *layerReader) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if int64(len(p)) > c.left+1 {
		p = p[:c.left+1]
	}
	n, err := c.z.Read(p)
	if int64(n) > c.left {
		n, err = int(c.left), c.blob.damaged(errors.New("its contents are longer than its descriptor says"))
	}
	c.left -= int64(n)
	if c.raw != nil {
		_, _ = c.raw.Write(p[:n]) // a hash does not fail
	}
	switch {
	case err == io.EOF && c.left > 0:
		err = c.blob.damaged(errors.New("its contents are cut short"))
	case err != nil && err != io.EOF && !errdefs.IsDataLoss(err):
		err = c.blob.damaged(fmt.Errorf("it does not decompress: %w", err))
	}
	c.err = err
	if cause := c.blob.failed(); cause != nil && err != nil {
		c.err = cause // the decompressor wraps, or replaces, what reading the blob gave
	}
	return n, c.err
}

// failed is the reason why the contents could not be read, if they could not.
func (c *layerReader) failed() error {
	if c.err == io.EOF {
		return nil
	}
	return c.err
}
