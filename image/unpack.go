package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// UnpackOptions are the choices of [Snapshot.Unpack]; the zero value is good.
type UnpackOptions struct {
	// Progress is told how many bytes of memory were written, as "unpack".
	Progress Progress
	// Lazy leaves out of the pages files what [Pages.Lazy] gives, and reads no more of the segments than it needs for the rest.
	// The files are as long as ever: CRIU, which must be told to restore with lazy pages, steps over what is left out.
	Lazy bool
	// Wipe puts zeros where fork(2) would have wiped memory in a child (madvise(2), MADV_WIPEONFORK).
	Wipe bool
}

// Unpack writes a complete directory of CRIU images to dir, which it makes: all images, and the pages files as
// sparse files. Directories get mode 0700, files 0600. On an error nothing is left of dir.
//
// Damage gives an error of kind DataLoss, a full disk one of kind ResourceExhausted; errors of src are passed on.
func (s *Snapshot) Unpack(ctx context.Context, src Fetcher, dir string, o UnpackOptions) error {
	images, err := s.UnpackImages(ctx, src, dir)
	if err != nil {
		return err
	}
	return images.Memory(ctx, src, o)
}

// Unpacked are CRIU's images in a directory, which may lack the pages files still.
type Unpacked struct {
	s    *Snapshot
	x    *format.Index
	dir  string
	maps []*format.Pagemap // those with pages
}

// UnpackImages is Unpack without pages files, which [Unpacked.Memory] adds. It reads no segments: src may still lack them.
func (s *Snapshot) UnpackImages(ctx context.Context, src Fetcher, dir string) (*Unpacked, error) {
	x, err := s.ReadIndex(ctx, src)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, full(fmt.Errorf("unpack: %w", err))
	}
	i := &Unpacked{s: s, x: x, dir: dir}
	if err := i.ended(ctx, i.images(ctx, src)); err != nil {
		return nil, err
	}
	return i, nil
}

// Memory adds the pages files. If it fails, nothing is left of the images either.
func (i *Unpacked) Memory(ctx context.Context, src Fetcher, o UnpackOptions) error {
	return i.ended(ctx, i.memory(ctx, src, o))
}

// ended removes the directory where an error, or the end of ctx, means that it is not wanted any more.
func (i *Unpacked) ended(ctx context.Context, err error) error {
	if err == nil {
		err = ctx.Err() // cancelled while the last was written: the directory is not taken for wanted
	}
	if err == nil {
		return nil
	}
	return full(errors.Join(err, os.RemoveAll(i.dir)))
}

// OfProcesses lists the segments that hold memory of processes, of which some may hold device memory too. All others hold nothing but that.
func (i *Unpacked) OfProcesses() []ocispec.Descriptor {
	all := i.s.Segments()
	has := make([]bool, len(all))
	for j := range i.x.Frames {
		if f := &i.x.Frames[j]; !onDevice(*f) {
			has[f.Segment] = true
		}
	}
	var some []ocispec.Descriptor
	for n, d := range all {
		if has[n] {
			some = append(some, d)
		}
	}
	return some
}

// onDevice reports whether a frame is of device memory.
func onDevice(f format.Frame) bool {
	_, _, ok := format.DeviceOf(f.Runs[0].File) // an index has one file in a frame
	return ok
}

// images unpacks CRIU's images and compares what they say about memory with the index.
func (i *Unpacked) images(ctx context.Context, src Fetcher) error {
	check := newPagemapCheck(i.x)
	err := i.s.readChecked(ctx, src, check, func(name string, r io.Reader) error {
		f, err := i.create(name)
		if err != nil {
			return err
		}
		h := holes{f: f}
		if err = check.file(name, io.TeeReader(r, &h)); err == nil {
			err = f.Truncate(h.at)
		}
		return cmp.Or(err, f.Close())
	})
	i.maps = check.seen
	return err
}

func (i *Unpacked) create(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(i.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return f, nil
}

// holes writes a file from its beginning, and leaves out zeros: it must be given its length at the end.
type holes struct {
	f  *os.File
	at int64
}

// Write implements [io.Writer].
func (h *holes) Write(p []byte) (int, error) {
	if len(bytes.Trim(p, "\x00")) > 0 {
		if n, err := h.f.WriteAt(p, h.at); err != nil {
			return n, err
		}
	}
	h.at += int64(len(p))
	return len(p), nil
}

// memory makes pages files that hold zeros, and writes the pages, but for those that are restored lazily.
func (i *Unpacked) memory(ctx context.Context, src Fetcher, o UnpackOptions) error {
	p := newPages(i.x, i.maps)
	defer p.Close()
	if o.Wipe {
		if err := p.wipe(i.dir); err != nil {
			return err
		}
	}
	var parts []Part
	var total int64 // bytes that are written
	for _, file := range i.x.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if file.IsDevice() {
			continue
		}
		f, err := i.create(format.PagesFileName(file.ID))
		if err != nil {
			return err
		}
		if err := cmp.Or(f.Truncate(file.Count*i.x.PageSize), f.Close()); err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
		some := p.parts(file.ID, false)
		if !o.Lazy {
			some = p.all(file.ID)
		}
		for _, part := range some {
			total += part.bytes(i.x.PageSize)
		}
		parts = append(parts, some...)
	}
	if o.Lazy {
		if err := addEmptyParent(i.dir, i.maps); err != nil {
			return err
		}
	}
	if err := p.open(ctx, src, i.s); err != nil {
		return err
	}
	var next, done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(parts)) {
		g.Go(func() error {
			r, err := p.Reader()
			if err != nil {
				return err
			}
			defer r.Close()
			for n := next.Add(1) - 1; n < int64(len(parts)); n = next.Add(1) - 1 {
				if err := ctx.Err(); err != nil {
					return err
				}
				raw, err := r.Read(parts[n])
				if err != nil {
					return err
				}
				if err := i.write(parts[n].Runs, raw); err != nil {
					return fmt.Errorf("unpack: %w", err)
				}
				if o.Progress != nil {
					o.Progress("unpack", done.Add(int64(len(raw))), total)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// write writes pages, which raw has one run after the other, to their places.
func (i *Unpacked) write(runs []format.Run, raw []byte) error {
	f, err := os.OpenFile(filepath.Join(i.dir, format.PagesFileName(runs[0].File)), os.O_WRONLY, 0) // an index has one file in a frame
	if err != nil {
		return err
	}
	for _, r := range runs {
		n := r.Count * i.x.PageSize
		if _, err := f.WriteAt(raw[:n], r.First*i.x.PageSize); err != nil {
			return errors.Join(err, f.Close())
		}
		raw = raw[n:]
	}
	return f.Close()
}
