package format

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// written gives an entry with its contents, and the end of a tar.
func written(t testing.TB, h *tar.Header, content []byte, spans ...DataSpan) []byte {
	t.Helper()
	b, err := EncodeTarHeader(h, spans)
	if err != nil {
		t.Fatal(err)
	}
	stored := int64(0)
	for _, x := range spans {
		b = append(b, content[x.Offset:x.Offset+x.Length]...)
		stored += x.Length
	}
	return append(b, make([]byte, TarPadding(stored)+2*TarBlock)...)
}

// TestArchiveTar has archive/tar and this package read the same entries.
func TestArchiveTar(t *testing.T) {
	content := make([]byte, 10000)
	copy(content[100:], "content")
	copy(content[9000:], "more")
	moment := time.Unix(-7, 1e8)
	for name, test := range map[string]struct {
		header tar.Header
		spans  []DataSpan
	}{
		"directory":   {header: tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o1777}},
		"link":        {header: tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("l", 1000)}},
		"device":      {header: tar.Header{Name: "c", Typeflag: tar.TypeChar, Devmajor: 4095, Devminor: 1048575}},
		"large ids":   {header: tar.Header{Name: "i", Typeflag: tar.TypeFifo, Uid: 1<<32 - 2, Gid: 1<<32 - 1}},
		"empty":       {header: tar.Header{Name: "e", Typeflag: tar.TypeReg}},
		"whole":       {tar.Header{Name: "w", Typeflag: tar.TypeReg, Size: 10000}, []DataSpan{{0, 10000}}},
		"a hole":      {header: tar.Header{Name: "h", Typeflag: tar.TypeReg, Size: 10000}},
		"parts":       {tar.Header{Name: strings.Repeat("long/", 30) + "p", Typeflag: tar.TypeReg, Size: 10000}, []DataSpan{{100, 7}, {9000, 4}}},
		"to the end":  {tar.Header{Name: "p", Typeflag: tar.TypeReg, Size: 10000}, []DataSpan{{9000, 1000}}},
		"like a hole": {tar.Header{Name: "GNU.sparse.name", Typeflag: tar.TypeReg, Size: 10000, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "\n22 GNU.sparse.major=1\n"}}, []DataSpan{{100, 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			want := test.header
			want.Format, want.ModTime, want.AccessTime = tar.FormatPAX, moment, time.Unix(3, 4)
			b := written(t, &want, content, test.spans...)
			archive := tar.NewReader(bytes.NewReader(b))
			by, err := archive.Next()
			if err != nil {
				t.Fatal(err)
			}
			r := bytes.NewReader(b)
			h, err := ReadTarHead(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range []tar.Header{*by, h.Header} {
				if g.Name != want.Name || g.Typeflag != want.Typeflag || g.Linkname != want.Linkname || g.Size != want.Size || g.Mode != want.Mode || g.Uid != want.Uid ||
					g.Gid != want.Gid || !g.ModTime.Equal(want.ModTime) || !g.AccessTime.Equal(want.AccessTime) || g.Devmajor != want.Devmajor || g.Devminor != want.Devminor ||
					g.PAXRecords["SCHILY.xattr.user.a"] != want.PAXRecords["SCHILY.xattr.user.a"] {
					t.Errorf("%+v is read as %+v", want, g)
				}
			}
			got, spans := make([]byte, h.Size), []DataSpan{{Length: h.Size}}
			if h.Sparse {
				if spans, err = h.ReadMap(r); err != nil {
					t.Fatal(err)
				}
			}
			for _, x := range spans {
				if _, err := io.ReadFull(r, got[x.Offset:x.Offset+x.Length]); err != nil {
					t.Fatal(err)
				}
			}
			if its, err := io.ReadAll(archive); err != nil || !bytes.Equal(its, got) {
				t.Errorf("archive/tar reads other contents (%v)", err)
			}
			if _, err := r.Seek(TarPadding(h.Stored), io.SeekCurrent); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadTarHead(r); err != io.EOF {
				t.Errorf("after it comes %v", err)
			}
			if h.Sparse { // without its holes it is an empty file
				if hidden, err := tar.NewReader(bytes.NewReader(h.Raw)).Next(); err != nil || hidden.Size != 0 || hidden.Name != want.Name {
					t.Errorf("without its holes it is %+v (%v)", hidden, err)
				}
			}
		})
	}
}

func TestExtents(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 64 << 20
	for _, at := range []int64{0, 1 << 19, 4 << 20, size - 1<<16} { // the first hole is too short
		if _, err := f.WriteAt(bytes.Repeat([]byte{1}, 1<<16), at); err != nil {
			t.Fatal(err)
		}
	}
	got, err := DataSpans(f, size)
	if want := []DataSpan{{0, 1<<19 + 1<<16}, {4 << 20, 1 << 16}, {size - 1<<16, 1 << 16}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, want %v (%v)", got, want, err)
	}
}

// FuzzReadHead reads anything: lengths are right where it is taken for an entry.
func FuzzReadHead(f *testing.F) {
	h := &tar.Header{Format: tar.FormatPAX, Name: "s", Typeflag: tar.TypeReg, Size: 1 << 40}
	f.Add(written(f, h, nil))
	f.Add(written(f, &tar.Header{Format: tar.FormatPAX, Name: "d", Typeflag: tar.TypeBlock, Devmajor: 1}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			h, err := ReadTarHead(r)
			if err != nil {
				if err != io.EOF && err != io.ErrUnexpectedEOF && !errors.Is(err, ErrTar) {
					t.Fatalf("%T: %v", err, err)
				}
				return
			}
			if h.Size < 0 || h.Stored < 0 || !h.Sparse && h.Stored != h.Size {
				t.Fatalf("lengths of %+v", h)
			}
			left := h.Stored
			if h.Sparse {
				spans, err := h.ReadMap(r)
				if err != nil {
					return
				}
				left = 0
				for _, x := range spans {
					if x.Length < 0 || x.Offset < 0 || x.Offset+x.Length > h.Size {
						t.Fatalf("%v of %d", x, h.Size)
					}
					left += x.Length
				}
			}
			if _, err := io.CopyN(io.Discard, r, min(left+TarPadding(h.Stored), int64(len(b)))); err != nil {
				return
			}
		}
	})
}
