package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// PackSource is what a snapshot is made of.
type PackSource struct {
	// Images is the directory with CRIU's images, pages-*.img included unless there is Memory. It must not change meanwhile.
	Images string
	// Memory, unless nil, has taken in all pages, and its options count for the segments; it is of no use afterwards.
	Memory *Intake
	// Device has taken in what processes have handed over of their device memory, which the config's GPU must describe; nil if that
	// says that there was nothing. Its options must be those of the rest, and it is of no use afterwards.
	Device *DeviceIntake
	// RootFS writes the rootfs difference as an uncompressed OCI layer tar; nil: the snapshot has none. It runs beside the rest.
	RootFS func(ctx context.Context, w io.Writer) error
	// Config describes the snapshot; Version, Host.PageSize, Memory and Processes are filled in by [Pack].
	Config Config
	// Subject is the base image, where a registry shall list the snapshot as its referrer; nil: none.
	Subject *ocispec.Descriptor
}

// PackOptions are the choices of [Pack]; the zero value is good.
type PackOptions struct {
	// SegmentSize is the window of memory that one segment covers, in bytes: a power of two from 1 MiB to 8 GiB; of device memory, 256 MiB at most. 0: 256 MiB.
	SegmentSize int64
	// Compression is "zstd" (or empty), by which each kind of memory is compressed where that pays ([format.Compression]), or "none".
	Compression string
	// Workers is how many goroutines hash and compress. 0: as many as there are cores.
	Workers int
	// Parent, unless nil, is a snapshot in the store that the new one is written to: what it has is not stored again.
	Parent *Parent
	// Progress is told how many bytes of memory are packed, as "pack".
	Progress Progress
}

// complete checks options and fills in defaults.
func (o PackOptions) complete(pageSize int64) (PackOptions, error) {
	if o.Compression != "" && o.Compression != "zstd" && o.Compression != "none" {
		return o, fmt.Errorf("pack snapshot: compression %q is neither zstd nor none: %w", o.Compression, errdefs.ErrInvalidArgument)
	}
	if pageSize < 4<<10 || pageSize > 64<<10 || pageSize&(pageSize-1) != 0 {
		return o, fmt.Errorf("pack snapshot: page size %d: %w", pageSize, errdefs.ErrInvalidArgument)
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = format.DefaultSegmentSize
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	return o, format.CheckSegmentSize(o.SegmentSize)
}

// policy is p, where anything is to be compressed.
func (o PackOptions) policy(p format.Compression) format.Compression {
	if o.Compression == "none" {
		return format.NeverCompress
	}
	return p
}

// Pack writes the blobs of a snapshot to dst and returns the descriptor of its manifest. Nothing is tagged. The same source
// and options give the same snapshot, byte for byte, on any number of cores. With a parent, blobs that it lists may be listed
// again: they must stay in dst.
//
// Images that CRIU did not write give errors of package image/format, a full disk one of kind ResourceExhausted; what src.RootFS and dst
// return is passed on. Blobs that were committed before an error stay in dst, where no manifest names them.
func Pack(ctx context.Context, dst BlobStore, src PackSource, o PackOptions) (ocispec.Descriptor, error) {
	d, err := pack(ctx, dst, src, o)
	return d, full(err)
}

func pack(ctx context.Context, dst BlobStore, src PackSource, o PackOptions) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	cfg := src.Config
	cfg.SchemaVersion, cfg.MediaType = 2, MediaTypeConfig
	cfg.Version, cfg.Memory, cfg.Parent = ConfigVersion, Memory{}, nil
	if cfg.Host.PageSize == 0 {
		cfg.Host.PageSize = os.Getpagesize()
	}
	pageSize := int64(cfg.Host.PageSize)
	if src.Memory != nil {
		o = src.Memory.o
	}
	o, err := o.complete(pageSize)
	if err != nil {
		return none, err
	}
	maps, err := src.pagemaps(pageSize)
	if err != nil {
		return none, err
	}
	if cfg.Processes, err = processes(src.Images, maps, pageSize); err != nil {
		return none, err
	}
	if src.Memory == nil {
		if src.Memory, err = newIntakeOfFiles(ctx, dst, src.Images, maps, pageSize, o); err != nil {
			return none, err
		}
		defer src.Memory.Close()
	}
	parts, err := src.parts(cfg, maps, o)
	if err != nil {
		return none, err
	}
	var packed []packedSegment
	layers := make([]ocispec.Descriptor, 2)
	var rootFS ocispec.Descriptor
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		packed, err = packMemory(gctx, parts, o)
		return err
	})
	g.Go(func() (err error) {
		layers[1], err = writeLayer(gctx, dst, MediaTypeCRIU, titleCRIU, o.Workers, func(w io.Writer) error {
			return writeCRIU(gctx, w, src.Images)
		})
		return err
	})
	if src.RootFS != nil {
		g.Go(func() (err error) {
			rootFS, err = writeLayer(gctx, dst, MediaTypeRootFS, titleRootFS, o.Workers, func(w io.Writer) error {
				return src.RootFS(gctx, w)
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return none, err
	}

	x := newIndex(packed, parts, pageSize)
	if err := checkDevices(x, cfg.GPU); err != nil {
		return none, fmt.Errorf("pack device memory: %w: %w", err, errdefs.ErrInternal)
	}
	layers[0], err = writeLayer(ctx, dst, MediaTypeIndex, titleIndex, o.Workers, func(w io.Writer) error {
		return format.EncodeIndex(w, x)
	})
	if err != nil {
		return none, err
	}
	if src.RootFS != nil {
		layers = append(layers, rootFS)
	}
	for _, s := range packed {
		layers = append(layers, s.desc)
	}
	cfg.Memory = totals(x)
	if o.Parent != nil {
		cfg.Parent = &ParentRecord{Digest: o.Parent.digest, Segments: inherited(packed)}
	}
	config, err := writeJSON(ctx, dst, MediaTypeConfig, cfg, maxConfig)
	if err != nil {
		return none, fmt.Errorf("write config: %w", err)
	}
	d, err := writeJSON(ctx, dst, ocispec.MediaTypeImageManifest, newManifest(cfg, config, layers, src.Subject), maxManifest)
	if err != nil {
		return none, fmt.Errorf("write manifest: %w", err)
	}
	d.ArtifactType = ArtifactType
	return d, nil
}

// pagemaps reads CRIU's pagemaps.
func (s PackSource) pagemaps(pageSize int64) ([]*format.Pagemap, error) {
	if s.Memory == nil {
		return format.ReadPagemapDir(s.Images, pageSize)
	}
	if s.Memory.pageSize != pageSize {
		return nil, fmt.Errorf("pack snapshot: pages of %d bytes, not %d: %w", s.Memory.pageSize, pageSize, errdefs.ErrInvalidArgument)
	}
	return format.ReadPagemaps(s.Images, pageSize)
}

// processes returns what the config says about processes.
func processes(dir string, maps []*format.Pagemap, pageSize int64) ([]Process, error) {
	tree, err := format.PagedProcesses(dir)
	if err != nil {
		return nil, err
	}
	memory := make(map[int]int64)
	for _, m := range maps {
		if pid, ok := format.PagemapPID(m.Name); ok {
			memory[pid] = m.Count * pageSize
		}
	}
	var out []Process
	for _, p := range tree {
		out = append(out, Process{PID: p.PID, Command: p.Command, Threads: p.Threads, Memory: memory[p.PID]})
	}
	return out, nil
}

func writeJSON(ctx context.Context, dst BlobStore, mediaType string, v any, limit int) (ocispec.Descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if len(b) > limit {
		return ocispec.Descriptor{}, fmt.Errorf("%d bytes are more than %d: %w", len(b), limit, errdefs.ErrInvalidArgument)
	}
	if mediaType == MediaTypeConfig {
		if _, err := decodeConfig(b); err != nil { // no reader would take it
			return ocispec.Descriptor{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	w, err := dst.Create(ctx)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer w.Close()
	if _, err := w.Write(b); err != nil {
		return ocispec.Descriptor{}, err
	}
	return w.Commit(ctx, mediaType)
}
