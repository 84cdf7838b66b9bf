package tmpfs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDecode reads what archive/tar has written, in each of its formats, and archive/tar reads what is written of it.
func TestDecode(t *testing.T) {
	headers := []tar.Header{
		{Name: "file", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 1, Gid: 2},
		{Name: strings.Repeat("long/", 30) + "name", Typeflag: tar.TypeReg},
		{Name: strings.Repeat("n", 250), Typeflag: tar.TypeReg},
		{Name: "link", Linkname: strings.Repeat("l", 99), Typeflag: tar.TypeSymlink},
		{Name: "link", Linkname: strings.Repeat("l", 101), Typeflag: tar.TypeSymlink},
		{Name: "link", Linkname: strings.Repeat("l", 1000), Typeflag: tar.TypeLink},
		{Name: "directory/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "fifo", Typeflag: tar.TypeFifo},
		{Name: "device", Typeflag: tar.TypeChar, Devmajor: 4095, Devminor: 1048575},
		{Name: "device", Typeflag: tar.TypeBlock, Devmajor: 8},
		{Name: "large ids", Typeflag: tar.TypeReg, Uid: maxID, Gid: maxID + 1},
		{Name: "largest ids", Typeflag: tar.TypeReg, Uid: 1<<32 - 2, Gid: 1<<32 - 1},
		{Name: "after 2242", Typeflag: tar.TypeReg, ModTime: time.Unix(1<<34, 0)},
		{Name: "before 1970", Typeflag: tar.TypeReg, ModTime: time.Unix(-1, 0)},
		{Name: "fraction", Typeflag: tar.TypeReg, ModTime: time.Unix(1e9, 1)},
		{Name: "fraction before 1970", Typeflag: tar.TypeReg, ModTime: time.Unix(-7, 1e8), AccessTime: time.Unix(3, 4)},
		{Name: "large", Typeflag: tar.TypeReg, Size: maxLarge},
		{Name: "larger", Typeflag: tar.TypeReg, Size: maxLarge + 1},
		{Name: "attribute", Typeflag: tar.TypeReg, PAXRecords: map[string]string{paxXattr + "user.a": "\x01\n=", "comment": "no"}},
	}
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX} {
		for _, h := range headers {
			if h.ModTime.IsZero() {
				h.ModTime = time.Unix(1e9, 0)
			}
			h.Format = format
			var b bytes.Buffer
			if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
				continue // not in this format
			}
			t.Run(fmt.Sprint(format, " ", h.Name[:min(20, len(h.Name))]), func(t *testing.T) {
				// archive/tar rounds times where the format has whole seconds.
				want, err := tar.NewReader(bytes.NewReader(b.Bytes())).Next()
				if err != nil {
					t.Fatal(err)
				}
				e, err := decode(&b)
				if err != nil {
					t.Fatal(err)
				}
				if b.Len() != 0 {
					t.Errorf("%d bytes are left", b.Len())
				}
				agree(t, want, e)
				again, err := encode(e)
				if err != nil {
					t.Fatal(err)
				}
				h, err := tar.NewReader(bytes.NewReader(again)).Next()
				if err != nil {
					t.Fatal(err)
				}
				agree(t, h, e)
			})
		}
	}
}

func agree(t *testing.T, h *tar.Header, e *entry) {
	t.Helper()
	if h.Name != e.name || h.Typeflag != e.kind || h.Linkname != e.link || h.Size != e.size || h.Mode != int64(e.mode) || h.Uid != int(e.uid) ||
		h.Gid != int(e.gid) || timespec(h.ModTime) != e.mtime || h.Devmajor != int64(e.major) || h.Devminor != int64(e.minor) {
		t.Errorf("archive/tar has %+v, this %+v", h, e)
	}
	if h.Format == tar.FormatPAX && !h.AccessTime.IsZero() && timespec(h.AccessTime) != e.atime {
		t.Errorf("archive/tar has %v, this %v", h.AccessTime, e.atime)
	}
	attrs := 0
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, paxXattr); ok {
			if attrs++; len(e.xattrs) < attrs || e.xattrs[attrs-1] != (xattr{name, value}) {
				t.Errorf("archive/tar has %s=%q, this %v", name, value, e.xattrs)
			}
		}
	}
	if attrs != len(e.xattrs) {
		t.Errorf("archive/tar has %d attributes, this %v", attrs, e.xattrs)
	}
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

// TestSparse has archive/tar read a sparse file.
func TestSparse(t *testing.T) {
	e := entry{name: "./holes", kind: typeFile, size: 10000, sparse: true, extents: []extent{{100, 7}, {9000, 5}}}
	b, err := encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	b = append(append(b, "content, more"[:12]...), make([]byte, blockSize)...)
	r := tar.NewReader(bytes.NewReader(b))
	h, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != e.name || len(content) != 10000 || string(content[100:107]) != "content" || string(content[9000:9005]) != ", mor" {
		t.Errorf("%+v, %q, %q", h, content[100:107], content[9000:9005])
	}
}
