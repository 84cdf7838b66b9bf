package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/format"
)

// maxCRIUFiles bounds the images of a snapshot. A process has six and a further thread one: these are those of 1,300 processes, or of 8,000 threads. Each is a
// file while they are reviewed, and making and removing it takes up to 0.2 ms.
const maxCRIUFiles = 1 << 13

// writeCRIU writes CRIU's images as a tar: regular files only, by name, without owner and time, no pages.
func writeCRIU(ctx context.Context, w io.Writer, dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return fmt.Errorf("list CRIU images: %w", err)
	}
	tw := tar.NewWriter(w)
	n := 0
	for _, e := range entries {
		if name := e.Name(); !e.Type().IsRegular() || format.IsPagesFileName(name) || strings.HasSuffix(name, ".log") {
			continue
		}
		if n++; n > maxCRIUFiles {
			return failure.New(errdefs.ErrFailedPrecondition,
				fmt.Sprintf("a process has six images and a further thread one: have the container end some, down to about %d processes", maxCRIUFiles/6),
				"pack CRIU images: there are more than %d, of too many processes and threads", maxCRIUFiles)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := writeCRIUFile(tw, dir, e.Name()); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("pack CRIU images: %w", err)
	}
	return nil
}

func writeCRIUFile(tw *tar.Writer, dir, name string) error {
	if reason := badCRIUName(name); reason != "" {
		return format.MalformedImage(name, "%s", reason)
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("pack CRIU images: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("pack CRIU images: %w", err)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: fi.Size(), Mode: 0o600, ModTime: time.Unix(0, 0)}
	if err := tw.WriteHeader(h); err != nil {
		return fmt.Errorf("pack CRIU image %s: %w", name, err)
	}
	if _, err := io.CopyN(tw, f, fi.Size()); err != nil {
		return fmt.Errorf("pack CRIU image %s: %w", name, err)
	}
	return nil
}

// badCRIUName returns what is wrong with the name of an image.
func badCRIUName(name string) string {
	switch {
	case name == "" || len(name) > 255:
		return "its name is empty or too long"
	case format.IsPagesFileName(name):
		return "it is a pages file"
	case strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-"):
		return "its name begins with a dot or a dash"
	}
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._-+=,:@", c) >= 0) {
			return fmt.Sprintf("its name has a %q", c)
		}
	}
	return ""
}

// readCRIU calls file for every image of a tar, which must be one that [writeCRIU] could have written. What is wrong with the
// tar itself goes through damaged; errors of file are passed on.
func readCRIU(r io.Reader, damaged func(error) error, file func(name string, r io.Reader) error) error {
	tr := tar.NewReader(r)
	var before string
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return damaged(fmt.Errorf("it is not a tar: %w", err))
		}
		if err := checkCRIUHeader(h, before); err != nil {
			return damaged(err)
		}
		if n == maxCRIUFiles {
			return damaged(fmt.Errorf("it has more than %d images (rule images)", maxCRIUFiles))
		}
		before = h.Name
		if err := file(h.Name, tr); errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(fmt.Errorf("entry %s is cut short", h.Name))
		} else if err != nil {
			return err
		}
	}
}

func checkCRIUHeader(h *tar.Header, before string) error {
	if reason := badCRIUName(h.Name); reason != "" {
		return fmt.Errorf("entry %.300q: %s", h.Name, reason)
	}
	if h.Typeflag != tar.TypeReg || h.Linkname != "" {
		return fmt.Errorf("entry %s is not a regular file", h.Name)
	}
	for key := range h.PAXRecords {
		if key != "path" && key != "size" { // sparse files, above all: a few bytes may claim any length
			return fmt.Errorf("entry %s has a record %.100q", h.Name, key)
		}
	}
	if h.Name <= before {
		return fmt.Errorf("entry %s comes after %s", h.Name, before)
	}
	return nil
}
