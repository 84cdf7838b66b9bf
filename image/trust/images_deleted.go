package trust

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"golang.org/x/sys/unix"
)

// deletedRule is the name of the rule of [Deleted].
const deletedRule = "deleted-files"

// Deleted returns an error, a [*DamagedError], if a file that was deleted while it was open has a name below a symbolic link of the root file system, which is mounted
// at rootfs, or of its tmpfs. CRIU makes such files before it enters the container, and would follow the link as the host has it. The kernel told CRIU names without
// links. Source: CRIU 4.2, criu/files-reg.c, create_ghost.
func Deleted(dir, rootfs string) error {
	const name = "files.img"
	remaps, err := read[remapfile.RemapFilePathEntry](dir, "remap-fpath.img")
	if err != nil || len(remaps) == 0 {
		return err
	}
	files, err := read[fdinfo.FileEntry](dir, name)
	if err != nil {
		return err
	}
	deleted := map[uint32]bool{}
	for _, r := range remaps {
		deleted[r.GetOrigId()] = true
	}
	r := imageReviewer{dir: dir}
	mounts, err := r.tmpfs()
	if err != nil {
		return err
	}
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the root file system: %w", err)
	}
	defer unix.Close(root)
	for _, f := range files {
		if f.GetReg() == nil || !deleted[f.GetId()] {
			continue
		}
		at := strings.TrimLeft(path.Dir(f.GetReg().GetName()), "/")
		if at == "" {
			continue
		}
		fd, err := unix.Openat2(root, at, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
		if err == nil {
			unix.Close(fd)
		}
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
			return &DamagedError{Rule: deletedRule, File: name, Err: fmt.Errorf("the deleted file %q is below a link", f.GetReg().GetName())}
		}
		mount, ok := mounts[uint32(f.GetReg().GetMntId())]
		if within := path.Dir(strings.TrimPrefix(f.GetReg().GetName(), mount)); !ok || within == "/" {
			continue
		} else if links, err := r.links(); err != nil {
			return err
		} else if slices.ContainsFunc(links, func(link string) bool { return below(within, link) }) {
			return &DamagedError{Rule: deletedRule, File: name, Err: fmt.Errorf("the deleted file %q is below a link of its tmpfs", f.GetReg().GetName())}
		}
	}
	return nil
}

// tmpfs gives where those are mounted, by the mount's id.
func (r *imageReviewer) tmpfs() (map[uint32]string, error) {
	at := map[uint32]string{}
	return at, each(r, "mountpoints-*.img", func(e *mnt.MntEntry) error {
		if e.GetFstype() == uint32(mnt.Fstype_TMPFS) {
			at[e.GetMntId()] = path.Clean(e.GetMountpoint())
		}
		return nil
	})
}

// links are the links in all file systems that were in memory: hard links too, which may be of others.
func (r *imageReviewer) links() (links []string, err error) {
	names, err := r.files("tmpfs-*.img")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		found, err := linksIn(filepath.Join(r.dir, name))
		if err != nil {
			return nil, &DamagedError{Rule: deletedRule, File: name, Err: err}
		}
		links = append(links, found...)
	}
	return links, nil
}

func linksIn(name string) (links []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return links, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
			links = append(links, clean(h.Name))
		}
	}
}
