package tmpfs

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// wrap makes an image of a tar.
func wrap(tar []byte) []byte {
	var b bytes.Buffer
	s := newStoredWriter(&b)
	_, _ = s.Write(tar) // into memory
	_ = s.close(nil)
	return b.Bytes()
}

// entries makes a tar of entries without contents.
func entries(t testing.TB, all ...entry) (tar []byte) {
	t.Helper()
	for _, e := range all {
		b, err := encode(&e)
		if err != nil {
			t.Fatal(err)
		}
		tar = append(tar, b...)
	}
	return append(tar, make([]byte, 2*blockSize)...)
}

func TestHostile(t *testing.T) {
	directory := entry{name: "./", kind: typeDirectory, mode: 0o755}
	for _, test := range []struct {
		name string
		all  []entry
	}{
		{"up", []entry{{name: "../evil", kind: typeFile}}},
		{"up in between", []entry{{name: "./a/", kind: typeDirectory}, {name: "./a/../../evil", kind: typeFile}}},
		{"absolute", []entry{{name: "/evil", kind: typeFile}}},
		{"below a symbolic link", []entry{{name: "./a", kind: typeSymlink, link: ".."}, {name: "./a/evil", kind: typeFile}}},
		{"directory over a symbolic link", []entry{{name: "./a", kind: typeSymlink, link: ".."}, {name: "./a/", kind: typeDirectory, mode: 0o777}}},
		{"file over a symbolic link", []entry{{name: "./a", kind: typeSymlink, link: "../evil"}, {name: "./a", kind: typeFile}}},
		{"hard link up", []entry{{name: "./a", kind: typeHardLink, link: "../secret"}}},
		{"hard link to an absolute path", []entry{{name: "./a", kind: typeHardLink, link: "/etc/passwd"}}},
		{"hard link through a symbolic link", []entry{{name: "./a", kind: typeSymlink, link: ".."}, {name: "./b", kind: typeHardLink, link: "./a/secret"}}},
		{"the directory is a link", []entry{{name: ".", kind: typeSymlink, link: ".."}}},
		{"no parent", []entry{{name: "./a/b", kind: typeFile}}},
		{"twice", []entry{{name: "./a", kind: typeFile}, {name: "./a", kind: typeFile}}},
		{"unknown type", []entry{{name: "./a", kind: 'V'}}},
		{"name with NUL", []entry{{name: "./a\x00b" + string(make([]byte, 100)), kind: typeFile}}},
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
			tar := entries(t, append([]entry{directory}, test.all...)...)
			if err := extract(dir, bytes.NewReader(wrap(tar))); err == nil {
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
	tar := entries(t, entry{name: "./a", kind: typeFile, mode: 0o600, size: size, sparse: true})
	if err := extract(dir, bytes.NewReader(wrap(tar))); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Size() != size {
		t.Errorf("it is %v (%v)", info, err)
	}
}

// TestBomb has images that unpack to far more than they are: of zeros no memory is made, and of all else an image makes no more than it may.
func TestBomb(t *testing.T) {
	const size = 256 << 20
	var attributes []entry
	for i := range 1000 {
		attributes = append(attributes, entry{name: fmt.Sprintf("./%d", i), kind: typeFIFO, xattrs: []xattr{{"user.a", strings.Repeat("a", 60000)}}})
	}
	for name, test := range map[string]struct {
		all    []entry
		fill   string
		refuse bool
	}{
		"zeros":      {all: []entry{{name: "./a", kind: typeFile, size: size}}, fill: "\x00"},
		"text":       {all: []entry{{name: "./a", kind: typeFile, size: size}}, fill: "a", refuse: true},
		"attributes": {all: attributes, refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			var image bytes.Buffer
			z, err := gzip.NewWriterLevel(&image, gzip.BestCompression)
			if err != nil {
				t.Fatal(err)
			}
			tar := entries(t, test.all...)
			_, _ = z.Write(tar[:len(tar)-2*blockSize]) // into memory
			if test.fill != "" {
				_, _ = z.Write(bytes.Repeat([]byte(test.fill), size))
			}
			_, _ = z.Write(make([]byte, 2*blockSize))
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
func sound(tar []byte) []byte {
	tar = bytes.Clone(tar)
	for at := 0; at+blockSize <= len(tar); at += blockSize {
		if h := (*[blockSize]byte)(tar[at:]); *h != [blockSize]byte{} {
			copy(h[148:156], fmt.Sprintf("%06o\x00 ", checksum(h)))
		}
	}
	return tar
}

// late is a file that was changed at some time, said in a header alone.
func late(t testing.TB, sec int64) []byte {
	t.Helper()
	tar := entries(t, entry{name: "./a", kind: typeFile})
	tar = tar[len(tar)-blockSize:] // without the pax header
	tar[136], tar[137], tar[138], tar[139] = 0x80, 0, 0, 0
	if sec < 0 {
		tar[136], tar[137], tar[138], tar[139] = 0xff, 0xff, 0xff, 0xff
	}
	binary.BigEndian.PutUint64(tar[140:], uint64(sec))
	return sound(tar)
}

// TestTimes reads times from headers: what could not be written again is refused.
func TestTimes(t *testing.T) {
	for sec, good := range map[int64]bool{
		1<<62 - 1: true, 1 << 62: false, math.MaxInt64: false, 1<<40 + 7: true,
		-1<<62 + 1: true, -1 << 62: false, math.MinInt64: false, -1: true,
	} {
		e, err := decode(bytes.NewReader(late(t, sec)))
		if (err == nil) != good || good && e.mtime.Sec != sec {
			t.Errorf("of %d it makes %+v, %v", sec, e, err)
		}
	}
}

// FuzzDecode decodes anything, and what was made of it again.
func FuzzDecode(f *testing.F) {
	f.Add(entries(f, entry{name: "./", kind: typeDirectory}, entry{name: "./a", kind: typeSymlink, link: "b"}))
	f.Add(entries(f, entry{name: "./s", kind: typeFile, size: 1 << 40, sparse: true}))
	f.Add(entries(f, entry{name: "./d", kind: typeCharacter, major: 1, minor: 3, uid: math.MaxUint32, xattrs: []xattr{{"user.a", "b"}}}))
	for _, sec := range []int64{math.MaxInt64, 1 << 62, -1 << 62, math.MinInt64} {
		f.Add(late(f, sec))
	}
	f.Fuzz(func(t *testing.T, tar []byte) {
		r := bytes.NewReader(sound(tar))
		for {
			e, err := decode(r)
			if err != nil {
				return
			}
			if e.size < 0 || e.stored() < 0 || e.sparse && checkExtents(e.extents, e.size) != nil {
				t.Fatalf("lengths of %+v", e)
			}
			if again, err := encode(e); err == nil && e.kind != typePax {
				if _, err := decode(bytes.NewReader(again)); err != nil {
					t.Fatalf("%+v, written again: %v", e, err)
				}
			}
			if _, err := io.CopyN(io.Discard, r, min(e.stored()+padding(e.stored()), int64(len(tar)))); err != nil {
				return
			}
		}
	})
}

// FuzzExtract restores anything, and looks whether that stays where it belongs.
func FuzzExtract(f *testing.F) {
	f.Add(entries(f, entry{name: "./", kind: typeDirectory}, entry{name: "./a", kind: typeSymlink, link: ".."}, entry{name: "./a/evil", kind: typeFile}))
	f.Add(entries(f, entry{name: "./a", kind: typeFile}, entry{name: "./b", kind: typeHardLink, link: "./a"}, entry{name: "./d", kind: typeDirectory}))
	f.Fuzz(func(t *testing.T, tar []byte) {
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
		_ = extract(dir, bytes.NewReader(wrap(sound(tar)))) // most are refused
		untouched(t, outside)
	})
}
