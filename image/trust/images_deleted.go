package trust

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	regfile "github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
)

// deletedRule is the name of the rule of [Deleted].
const deletedRule = "deleted-files"

// Deleted returns an error, a [*DamagedError], if a file that was deleted while it was open has a name below a symbolic link of the root file system, which is mounted
// at rootfs, or of its tmpfs. CRIU makes such files before it enters the container, and would follow the link as the host has it. The kernel told CRIU names without
// links. Source: CRIU 4.2, criu/files-reg.c, create_ghost.
func Deleted(images fs.FS, files Files) error {
	const name = "files.img"
	if !Reviews {
		return nil
	}
	remaps, err := read[remapfile.RemapFilePathEntry](images, "remap-fpath.img")
	if err != nil || len(remaps) == 0 {
		return err
	}
	deleted := map[uint32]bool{}
	for _, r := range remaps {
		deleted[r.GetOrigId()] = true
	}
	r := imageReviewer{images: images}
	var gone []*regfile.RegFileEntry
	if err := each(r.images, name, func(f *fdinfo.FileEntry) error {
		if f.GetReg() != nil && deleted[f.GetId()] {
			gone = append(gone, f.GetReg())
		}
		return nil
	}); err != nil {
		return err
	}
	mounts, err := r.tmpfs()
	if err != nil {
		return err
	}
	var links *pathSet
	for _, f := range gone {
		at := strings.TrimLeft(path.Dir(f.GetName()), "/")
		if at == "" {
			continue
		}
		if files.Linked(at) {
			return &DamagedError{Rule: deletedRule, File: name, Err: fmt.Errorf("the deleted file %q is below a link", f.GetName())}
		}
		mount, ok := mounts[uint32(f.GetMntId())]
		within := path.Dir(strings.TrimPrefix(f.GetName(), mount))
		if !ok || within == "/" {
			continue
		}
		if links == nil {
			if links, err = r.links(); err != nil {
				return err
			}
		}
		if links.above(within) {
			return &DamagedError{Rule: deletedRule, File: name, Err: fmt.Errorf("the deleted file %q is below a link of its tmpfs", f.GetName())}
		}
	}
	return nil
}

// tmpfs gives where those are mounted, by the mount's id.
func (r *imageReviewer) tmpfs() (map[uint32]string, error) {
	at := map[uint32]string{}
	return at, each(r.images, "mountpoints-*.img", func(e *mnt.MntEntry) error {
		if e.GetFstype() == uint32(mnt.Fstype_TMPFS) {
			at[e.GetMntId()] = path.Clean(e.GetMountpoint())
		}
		return nil
	})
}

// links are the links in all file systems that were in memory: hard links too, which may be of others.
func (r *imageReviewer) links() (*pathSet, error) {
	names, err := r.files("tmpfs-*.img")
	if err != nil {
		return nil, err
	}
	links := &pathSet{paths: map[uint64]bool{}}
	links.hash.SetSeed(maphash.MakeSeed())
	for _, name := range names {
		if err := linksIn(r.images, name, links); err != nil {
			return nil, &DamagedError{Rule: deletedRule, File: name, Err: err}
		}
	}
	return links, nil
}

// pathSet is a set of clean paths, by their hash: there may be a million.
type pathSet struct {
	hash  maphash.Hash
	paths map[uint64]bool
}

func (s *pathSet) add(p string) {
	s.hash.Reset()
	for part := range strings.SplitSeq(p, "/") {
		_, _ = s.hash.WriteString(part + "/") // it does not fail
	}
	s.paths[s.hash.Sum64()] = true
}

// above tells whether a clean path, or a directory above it, is in the set.
func (s *pathSet) above(p string) bool {
	s.hash.Reset()
	for part := range strings.SplitSeq(p, "/") {
		if _, _ = s.hash.WriteString(part + "/"); s.paths[s.hash.Sum64()] {
			return true
		}
	}
	return false
}

// maxTmpfs is how many bytes an image of a tmpfs of some length may unpack to, to be looked through.
func maxTmpfs(length int64) int64 { return 1<<30 + 100*length }

func linksIn(images fs.FS, name string, links *pathSet) error {
	f, err := images.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for archive := tar.NewReader(io.LimitReader(z, maxTmpfs(info.Size()))); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
			links.add(clean(h.Name))
		}
	}
}
