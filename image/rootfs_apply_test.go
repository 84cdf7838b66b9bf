package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

func TestApplyHostile(t *testing.T) {
	tests := []struct {
		name   string
		header tar.Header
	}{
		{"above", tar.Header{Typeflag: tar.TypeReg, Name: "../outside"}},
		{"absolute", tar.Header{Typeflag: tar.TypeReg, Name: "/outside"}},
		{"through a link", tar.Header{Typeflag: tar.TypeReg, Name: "link/outside"}},
		{"linked", tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "../../outside"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			root := filepath.Join(dir, "root")
			must(t, os.Mkdir(root, 0o755), os.Symlink(dir, root+"/link"))
			var b bytes.Buffer
			tw := tar.NewWriter(&b)
			must(t, tw.WriteHeader(&test.header), tw.Close())
			err := ApplyRootFS(context.Background(), root, &b, plenty)
			if _, statErr := os.Lstat(filepath.Join(dir, "outside")); !errors.Is(statErr, os.ErrNotExist) {
				t.Errorf("something was made outside (Apply gave %v)", err)
			}
		})
	}
}

// TestApplyDeep has an entry whose name would have a thousand directories made.
func TestApplyDeep(t *testing.T) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	must(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("d/", 1000) + "x"}), tw.Close())
	root := t.TempDir()
	err := ApplyRootFS(context.Background(), root, &b, plenty)
	if found, _ := os.ReadDir(root); !errdefs.IsDataLoss(err) || len(found) != 0 {
		t.Errorf("Apply gives %v and makes %v", err, found)
	}
}

// TestApplySparse tries files that claim a length which their tar does not hold; Go's writer would not write them.
func TestApplySparse(t *testing.T) {
	old := rawHeader('S', "s", 0, func(b []byte) {
		copy(b[386:], "20000000000\x0000000000000\x00")
		copy(b[483:], "20000000000\x00")
	})
	records := "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n22 GNU.sparse.name=so\n37 GNU.sparse.realsize=1099511627776\n"
	pax := rawHeader('x', "h", len(records), nil)
	pax = append(pax, append([]byte(records), make([]byte, 512-len(records))...)...)
	pax = append(pax, rawHeader('0', "s", 512, nil)...)
	pax = append(pax, append([]byte("1\n1099511627776\n0\n"), make([]byte, 512-18)...)...)
	forged := func(records, contents string) []byte {
		b := append(rawHeader('x', "h", len(records), nil), append([]byte(records), make([]byte, 512-len(records))...)...)
		b = append(b, rawHeader('0', "s", len(contents), nil)...)
		return append(b, append([]byte(contents), make([]byte, -len(contents)&511)...)...)
	}
	const version, length = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", "28 GNU.sparse.realsize=1000\n"
	full := func(s string) string { return s + strings.Repeat("\x00", 512-len(s)) }
	for name, layer := range map[string][]byte{"old": old, "pax": pax,
		"no version":  forged(length, full("0\n")),
		"no length":   forged(version, full("0\n")),
		"0.1":         forged("27 GNU.sparse.numblocks=0\n", full("0\n")),
		"negative":    forged(version+"26 GNU.sparse.realsize=-9\n", full("0\n")),
		"no map":      forged(version+length, ""),
		"half a map":  forged(version+length, full("9\n")),
		"many parts":  forged(version+length, full("4194305\n")),
		"beyond":      forged(version+length, full("1\n999\n2\n")+"ab"),
		"overlapping": forged(version+length, full("2\n0\n2\n1\n2\n")+"abcd"),
		"overflowing": forged(version+length, full("2\n0\n2\n500\n9223372036854775807\n")+"ab"),
		"another's":   forged(version+length, full("1\n0\n2\n")+"abc"),
	} {
		root := t.TempDir()
		err := ApplyRootFS(context.Background(), root, bytes.NewReader(append(layer, make([]byte, 1024)...)), plenty)
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "sparse") {
			t.Errorf("Apply of a sparse file (%s) gives %v", name, err)
		}
	}
}

// rawHeader is a tar header as it is on tape.
func rawHeader(kind byte, name string, size int, more func([]byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], fmt.Sprintf("0000644\x000000000\x000000000\x00%011o\x0000000000000\x00        %c", size, kind))
	if kind == 'S' {
		copy(b[257:], "ustar  \x00")
	} else {
		copy(b[257:], "ustar\x0000")
	}
	if more != nil {
		more(b)
	}
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestApplyErrors(t *testing.T) {
	if err := ApplyRootFS(context.Background(), t.TempDir(), strings.NewReader(strings.Repeat("no tar", 200)), plenty); !errdefs.IsDataLoss(err) {
		t.Errorf("Apply of no tar gives %v", err)
	}
	var b bytes.Buffer
	upper := t.TempDir()
	write(t, upper+"/big", strings.Repeat("x", 4<<20))
	must(t, DiffRootFS(context.Background(), &b, "", upper))
	if err := ApplyRootFS(context.Background(), t.TempDir(), bytes.NewReader(b.Bytes()[:2<<20]), plenty); !errdefs.IsDataLoss(err) {
		t.Errorf("Apply of half a tar gives %v", err)
	}
	if err := ApplyRootFS(context.Background(), smallDisk(t), &b, plenty); !errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Apply to a full disk gives %v", err)
	}
}

// written is a layer of n entries.
func written(t *testing.T, n int, entry func(i int) *tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		if err := w.WriteHeader(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Close())
	return &b
}

// TestApplyCost refuses layers of a few bytes by which much work would be done, before it is.
func TestApplyCost(t *testing.T) {
	t.Parallel()
	dir := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o700} }
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600} }
	const parts = 100
	sparse := fmt.Sprintf("%d\n", parts)
	for i := range parts {
		sparse += fmt.Sprintf("%d\n1\n", i<<20)
	}
	sparse += strings.Repeat("\x00", -len(sparse)&511) + strings.Repeat("x", parts)
	records := "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n" + "33 GNU.sparse.realsize=104857600\n"
	for name, test := range map[string]struct {
		layer *bytes.Buffer
		most  int64
		says  string
	}{
		"deep directories":    {written(t, 1000, func(i int) *tar.Header { return dir(strings.Repeat("a/", i+1)) }), 64 << 20, "of more than 128 names"},
		"many files":          {written(t, 1000, func(i int) *tar.Header { return file(fmt.Sprint(i)) }), 999 * 1536, "unpacked-size"},
		"many files, as many": {written(t, 1000, func(i int) *tar.Header { return file(fmt.Sprint(i)) }), 1000 * 1536, ""},
		"many files, deep": {written(t, 1000, func(i int) *tar.Header {
			if i < 100 {
				return dir(strings.Repeat("a/", i+1))
			}
			return file(strings.Repeat("a/", 100) + fmt.Sprint(i))
		}), 1000 * 1536, "unpacked-size"},
		"opaque directories, one in the other": {written(t, 4, func(i int) *tar.Header {
			return []*tar.Header{dir("a/"), dir("a/b/"), file("a/.wh..wh..opq"), file("a/b/.wh..wh..opq")}[i]
		}), 64 << 20, "does not follow its directory"},
		"an opaque directory twice": {written(t, 4, func(i int) *tar.Header {
			return []*tar.Header{dir("a/"), file("a/b"), dir("a/"), file("a/.wh..wh..opq")}[i]
		}), 64 << 20, "does not follow its directory"},
		"a link in the place of a directory": {written(t, 2, func(i int) *tar.Header {
			return []*tar.Header{dir("a/"), {Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b"}}[i]
		}), 64 << 20, "in the place of a directory"},
		"small parts of a sparse file": {bytes.NewBuffer(slices.Concat(rawHeader('x', "h", len(records), nil), []byte(records), make([]byte, 512-len(records)),
			rawHeader('0', "s", len(sparse), nil), []byte(sparse), make([]byte, -len(sparse)&511), make([]byte, 1024))), 4096 * 99, "unpacked-size"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			err := ApplyRootFS(context.Background(), root, test.layer, test.most)
			if (err == nil) != (test.says == "") || err != nil && (!errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("it says %v", err)
			}
		})
	}
	deep := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(deep, strings.Repeat("a/", maxDepth)), 0o700))
	if err := DiffRootFS(context.Background(), io.Discard, "", deep); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Diff of a deep tree gives %v", err)
	}
	shallow, layer := t.TempDir(), new(bytes.Buffer)
	must(t, os.MkdirAll(filepath.Join(shallow, strings.Repeat("a/", maxDepth-1)), 0o700), DiffRootFS(context.Background(), layer, "", shallow), ApplyRootFS(context.Background(), t.TempDir(), layer, plenty))
}
