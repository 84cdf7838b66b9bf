package registry

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxEntries = 1 << 17 // entries of a tar archive
	maxIndex   = 16 << 20
)

// layout is an OCI image layout to read from. It implements oras-go's content.Fetcher.
type layout interface {
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// openLayout opens a directory or an archive.
func openLayout(ctx context.Context, l location) (layout, error) {
	if !l.tar {
		root, err := os.OpenRoot(l.path)
		if err != nil {
			return nil, err
		}
		return dirLayout{root}, nil
	}
	i, err := os.Stat(l.path)
	if err != nil {
		return nil, err
	}
	if !i.Mode().IsRegular() {
		return nil, misspelt(l.text, "not a regular file; directories are written oci:DIR")
	}
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	t, err := scanTar(ctx, l, f, i.Size())
	if err != nil {
		f.Close()
		return nil, err
	}
	return &tarLayout{r: f, close: f.Close, files: t}, nil
}

// dirLayout reads below a directory; symbolic links do not lead out of it.
type dirLayout struct{ root *os.Root }

func (d dirLayout) Close() error { return d.root.Close() }

func (d dirLayout) open(name string) (io.ReadCloser, int64, error) {
	i, err := d.root.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !i.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, i.Size(), nil
}

// span is where a file lies in an archive.
type span struct{ off, size int64 }

// tarLayout reads from an archive where it lies, without unpacking it.
type tarLayout struct {
	r     io.ReaderAt
	close func() error
	files map[string]span
}

func (t *tarLayout) Close() error { return t.close() }

func (t *tarLayout) open(name string) (io.ReadCloser, int64, error) {
	s, ok := t.files[name]
	if !ok {
		return nil, 0, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	}
	return io.NopCloser(io.NewSectionReader(t.r, s.off, s.size)), s.size, nil
}

// scanTar finds the files of an archive. Of each entry only the header is read. One that is not one, is cut or holds what it may not is damaged.
func scanTar(ctx context.Context, l location, f io.ReaderAt, size int64) (map[string]span, error) {
	r := io.NewSectionReader(f, 0, size)
	t := tar.NewReader(r)
	files := make(map[string]span)
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) && n > 0 {
			return files, nil
		}
		if err != nil {
			return nil, damaged(l, scanError(f, err))
		}
		if n == maxEntries {
			return nil, damaged(l, fmt.Errorf("more than %d entries", maxEntries))
		}
		name, err := entryName(h)
		if err != nil {
			return nil, damaged(l, err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		off, err := r.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if h.Size < 0 || h.Size > size-off {
			return nil, damaged(l, fmt.Errorf("entry %q: %w", name, io.ErrUnexpectedEOF))
		}
		if _, ok := files[name]; ok {
			return nil, damaged(l, fmt.Errorf("entry %q is there twice", name))
		}
		files[name] = span{off, h.Size}
	}
}

// scanError recognises archives that are compressed as a whole.
func scanError(f io.ReaderAt, err error) error {
	var magic [4]byte
	if _, rerr := f.ReadAt(magic[:], 0); rerr == nil {
		switch {
		case magic[0] == 0x1f && magic[1] == 0x8b:
			return errors.New("it is compressed with gzip; unpack it with gunzip")
		case string(magic[:]) == "\x28\xb5\x2f\xfd":
			return errors.New("it is compressed with zstd; unpack it with unzstd")
		}
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// entryName accepts plain files and directories below the top, nothing else.
func entryName(h *tar.Header) (string, error) {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
	default:
		return "", fmt.Errorf("entry %.200q is neither file nor directory (type %q)", h.Name, h.Typeflag)
	}
	name := strings.TrimPrefix(h.Name, "./")
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
		if name == "" || name == "." {
			return ".", nil
		}
	}
	if !fs.ValidPath(name) || name == "." || path.Clean(name) != name || strings.ContainsAny(name, "\\\x00") {
		return "", fmt.Errorf("entry %.200q: a name that is not allowed", h.Name)
	}
	return name, nil
}

// fetcher is a layout as oras-go sees it.
type fetcher struct {
	layout
	l location
}

// Fetch implements content.Fetcher. What is not there is damage: the manifest says that it should be.
func (f fetcher) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if d.Digest.Validate() != nil || d.Digest.Algorithm() != digest.SHA256 {
		return nil, damaged(f.l, fmt.Errorf("digest %.80q: not sha256", string(d.Digest)))
	}
	rc, size, err := f.open(blobName(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged(f.l, fmt.Errorf("blob %s is missing", d.Digest))
	}
	if err != nil {
		return nil, err
	}
	if size != d.Size {
		rc.Close()
		return nil, damaged(f.l, fmt.Errorf("blob %s has %d bytes, not %d", d.Digest, size, d.Size))
	}
	return rc, nil
}
