package trust

import (
	"errors"
	"fmt"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/containerd/containerd/v2/pkg/cap"
	"golang.org/x/sys/unix"
)

const (
	maxName = 255
	// maxPath is what CRIU has room for, less what it appends to the name of a file that it makes.
	maxPath = unix.PathMax - 64
)

// inside refuses a path that can lead out of the directory that it is taken from, or that CRIU would cut off.
func inside(p string) error {
	if len(p) > maxPath {
		return fmt.Errorf("a path of %d bytes is too long", len(p))
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return fmt.Errorf("the path %q leads out of its directory", p)
		case len(part) > maxName:
			return fmt.Errorf("the path %q has a part of %d bytes", p, len(part))
		case strings.ContainsRune(part, 0):
			return fmt.Errorf("the path %q has a zero byte", p)
		}
	}
	return nil
}

// paths reviews the files that processes have open, and those that are made for them: CRIU opens and makes them as root, and takes
// their names for paths below the container's root.
func (r *imageReviewer) paths() error {
	const name = "files.img"
	entries, err := read[fdinfo.FileEntry](r.dir, name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := openFile(e); err != nil {
			return &DamagedError{File: name, Err: err}
		}
		r.privileged(e)
	}
	ghosts, err := r.files("ghost-file-*.img")
	if err != nil {
		return err
	}
	for _, name := range ghosts {
		ghost, err := readFirst[ghostfile.GhostFileEntry](r.dir, name)
		if err != nil {
			return err
		}
		switch kind := ghost.GetMode() & unix.S_IFMT; kind {
		case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK:
		default:
			return &DamagedError{File: name, Err: fmt.Errorf("a deleted file of type %o", kind)}
		}
	}
	return nil
}

// openFile reviews one open file. Source: CRIU 4.2, images/fdinfo.proto.
func openFile(e *fdinfo.FileEntry) error {
	var paths []string
	if f := e.GetReg(); f != nil {
		if !strings.HasPrefix(f.GetName(), "/") {
			return fmt.Errorf("the open file %q has no absolute path", f.GetName())
		}
		paths = append(paths, f.GetName())
	}
	if s := e.GetUsk(); s != nil {
		paths = append(paths, s.GetNameDir())
		if name := string(s.GetName()); !strings.HasPrefix(name, "\x00") { // else it is abstract, and no path
			paths = append(paths, strings.TrimSuffix(name, "\x00"))
		}
	}
	for _, wd := range e.GetIfy().GetWd() {
		paths = append(paths, wd.GetFHandle().GetPath())
	}
	for _, mark := range e.GetFfy().GetMark() {
		paths = append(paths, mark.GetIe().GetFHandle().GetPath(), mark.GetMe().GetPath())
	}
	for _, p := range paths {
		if err := inside(p); err != nil {
			return err
		}
	}
	switch e.GetType() {
	case fdinfo.FdTypes_BPFMAP, fdinfo.FdTypes_EXT, fdinfo.FdTypes_UND:
		return errors.New("an open file of kind " + e.GetType().String())
	}
	return nil
}

// privileged asks for the capability that opening such a file needs: CRIU opens it as root.
func (r *imageReviewer) privileged(e *fdinfo.FileEntry) {
	const netAdmin, netRaw, sysAdmin = 12, 13, 21 // linux/capability.h
	need, what := uint(0), ""
	switch {
	case e.GetTunf() != nil:
		need, what = netAdmin, "a tun device"
	case e.GetPsk() != nil:
		need, what = netRaw, "a packet socket"
	case e.GetIsk().GetType() == unix.SOCK_RAW:
		need, what = netRaw, "a raw socket"
	case e.GetFfy() != nil:
		need, what = sysAdmin, "a fanotify group"
	default:
		return
	}
	if !r.granted()[need] {
		r.ask(Capabilities, "%s, open in a process, for which the container was not to have %s", what, cap.Known()[need])
	}
}
