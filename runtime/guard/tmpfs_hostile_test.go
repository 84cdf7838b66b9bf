package guard

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// wrap makes an image of a tar.
func wrap(tar []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.NoCompression) // a level that there is
	_, _ = z.Write(tar)                                 // into memory
	_ = z.Close()
	return b.Bytes()
}

// entries makes a tar of entries without contents.
func entries(t testing.TB, all ...tar.Header) (b []byte) {
	t.Helper()
	for _, h := range all {
		h.Format = tar.FormatPAX
		head, err := format.EncodeTarHeader(&h, []format.DataSpan{{Length: h.Size}})
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, head...)
	}
	return append(b, make([]byte, 2*format.TarBlock)...)
}

func TestHostile(t *testing.T) {
	directory := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}
	for _, test := range []struct {
		name string
		all  []tar.Header
	}{
		{"up", []tar.Header{{Name: "../evil", Typeflag: tar.TypeReg}}},
		{"up in between", []tar.Header{{Name: "./a/", Typeflag: tar.TypeDir}, {Name: "./a/../../evil", Typeflag: tar.TypeReg}}},
		{"absolute", []tar.Header{{Name: "/evil", Typeflag: tar.TypeReg}}},
		{"below a symbolic link", []tar.Header{{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "./a/evil", Typeflag: tar.TypeReg}}},
		{"below a symbolic link in the directory", []tar.Header{{Name: "./b/", Typeflag: tar.TypeDir}, {Name: "./a", Typeflag: tar.TypeSymlink, Linkname: "b"}, {Name: "./a/evil", Typeflag: tar.TypeReg}}},
		{"directory over a symbolic link in the directory", []tar.Header{{Name: "./b/", Typeflag: tar.TypeDir}, {Name: "./a", Typeflag: tar.TypeSymlink, Linkname: "b"}, {Name: "./a/", Typeflag: tar.TypeDir, Mode: 0o777}}},
		{"up and down", []tar.Header{{Name: "./a/", Typeflag: tar.TypeDir}, {Name: "./a/../evil", Typeflag: tar.TypeReg}}},
		{"directory over a symbolic link", []tar.Header{{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "./a/", Typeflag: tar.TypeDir, Mode: 0o777}}},
		{"file over a symbolic link", []tar.Header{{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: "../evil"}, {Name: "./a", Typeflag: tar.TypeReg}}},
		{"hard link up", []tar.Header{{Name: "./a", Typeflag: tar.TypeLink, Linkname: "../secret"}}},
		{"hard link to an absolute path", []tar.Header{{Name: "./a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}},
		{"hard link through a symbolic link", []tar.Header{{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "./b", Typeflag: tar.TypeLink, Linkname: "./a/secret"}}},
		{"the directory is a link", []tar.Header{{Name: ".", Typeflag: tar.TypeSymlink, Linkname: ".."}}},
		{"no parent", []tar.Header{{Name: "./a/b", Typeflag: tar.TypeReg}}},
		{"twice", []tar.Header{{Name: "./a", Typeflag: tar.TypeReg}, {Name: "./a", Typeflag: tar.TypeReg}}},
		{"unknown type", []tar.Header{{Name: "./a", Typeflag: 'V'}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			outside := t.TempDir()
			dir := filepath.Join(outside, "dir")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			b := entries(t, append([]tar.Header{directory}, test.all...)...)
			if err := extract(dir, bytes.NewReader(wrap(b))); err == nil {
				t.Error("it passes")
			} else {
				t.Log(err)
			}
			untouched(t, outside)
		})
	}
}

// untouched sees that there is nothing but a directory and a secret.
func untouched(t *testing.T, outside string) {
	t.Helper()
	all, err := os.ReadDir(outside)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() != "dir" && e.Name() != "secret" || e.Name() == "secret" && info.Mode() != 0o600 {
			t.Errorf("outside there is %s %s", info.Mode(), e.Name())
		}
	}
	if content, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(content) != "secret" {
		t.Errorf("the file outside has %q (%v)", content, err)
	}
}

// TestHugeHole restores a file of the greatest length there is at once.
func TestHugeHole(t *testing.T) {
	const size = 1 << 43 // of ext4's; a tmpfs has larger ones
	dir := t.TempDir()
	head, err := format.EncodeTarHeader(&tar.Header{Format: tar.FormatPAX, Name: "./a", Typeflag: tar.TypeReg, Mode: 0o600, Size: size}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := extract(dir, bytes.NewReader(wrap(append(head, make([]byte, 2*format.TarBlock)...)))); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Size() != size {
		t.Errorf("it is %v (%v)", info, err)
	}
}

// TestBomb has images that unpack to far more than they are: of zeros no memory is made, and of all else an image makes no more than it may.
func TestBomb(t *testing.T) {
	const size = 256 << 20
	var attributes []tar.Header
	for i := range 1000 {
		attributes = append(attributes, tar.Header{Name: fmt.Sprintf("./%d", i), Typeflag: tar.TypeFifo, PAXRecords: map[string]string{paxXattr + "user.a": strings.Repeat("a", 60000)}})
	}
	for name, test := range map[string]struct {
		all    []tar.Header
		fill   string
		refuse bool
	}{
		"zeros":      {all: []tar.Header{{Name: "./a", Typeflag: tar.TypeReg, Size: size}}, fill: "\x00"},
		"text":       {all: []tar.Header{{Name: "./a", Typeflag: tar.TypeReg, Size: size}}, fill: "a", refuse: true},
		"attributes": {all: attributes, refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			var image bytes.Buffer
			z, err := gzip.NewWriterLevel(&image, gzip.BestCompression)
			if err != nil {
				t.Fatal(err)
			}
			b := entries(t, test.all...)
			_, _ = z.Write(b[:len(b)-2*format.TarBlock]) // into memory
			if test.fill != "" {
				_, _ = z.Write(bytes.Repeat([]byte(test.fill), size))
			}
			_, _ = z.Write(make([]byte, 2*format.TarBlock))
			_ = z.Close()
			dir := t.TempDir()
			if err := extract(dir, bytes.NewReader(image.Bytes())); (err != nil) != test.refuse || test.refuse && !strings.Contains(err.Error(), "unpacked-size") {
				t.Errorf("extract of %d bytes gives %v", image.Len(), err)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, "a"), &st); err == nil && (st.Size != size || st.Blocks*512 > memoryFree+memoryFactor*int64(image.Len()) || !test.refuse && st.Blocks > 8) {
				t.Errorf("%d bytes in %d blocks", st.Size, st.Blocks)
			}
		})
	}
}

// sound gives every block of a tar a right checksum, so that what is in it counts.
func sound(b []byte) []byte {
	b = bytes.Clone(b)
	for at := 0; at+format.TarBlock <= len(b); at += format.TarBlock {
		h := b[at : at+format.TarBlock]
		if len(bytes.Trim(h, "\x00")) == 0 {
			continue
		}
		copy(h[148:], "        ")
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
	}
	return b
}

// FuzzExtract restores anything, and looks whether that stays where it belongs.
func FuzzExtract(f *testing.F) {
	f.Add(entries(f, tar.Header{Name: "./", Typeflag: tar.TypeDir}, tar.Header{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "./a/evil", Typeflag: tar.TypeReg}))
	f.Add(entries(f, tar.Header{Name: "./a", Typeflag: tar.TypeReg}, tar.Header{Name: "./b", Typeflag: tar.TypeLink, Linkname: "./a"}, tar.Header{Name: "./d", Typeflag: tar.TypeDir}))
	f.Fuzz(func(t *testing.T, b []byte) {
		outside, err := os.MkdirTemp("", "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(outside)
		dir := filepath.Join(outside, "dir")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = extract(dir, bytes.NewReader(wrap(sound(b)))) // most are refused
		untouched(t, outside)
	})
}
