package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// journal knows what of a directory tree would be on a disk if its power were cut now: files and directories as they were when they were
// last synced. It keeps what has changed since as it was before. A new name is there when its directory was synced, whatever
// else was: POSIX promises no more.
type journal struct {
	root  string // the tree
	grave string // beside it: files whose last name was removed, by their number, and contents from before

	mu    sync.Mutex
	dirs  map[uint64]map[string]entry // guarded by mu; entries from before, of directories that have changed
	files map[uint64]string           // guarded by mu; file with the content from before, of files that have changed; "": none
}

// entry is a name in a directory.
type entry struct {
	inode uint64
	mode  uint32
}

// newJournal takes the tree as it is for synced.
func newJournal(root, grave string) (*journal, error) {
	if err := os.RemoveAll(grave); err != nil {
		return nil, err
	}
	if err := os.Mkdir(grave, 0o700); err != nil {
		return nil, err
	}
	return &journal{root: root, grave: grave, dirs: map[uint64]map[string]entry{}, files: map[uint64]string{}}, nil
}

// changing must be called before an entry of a directory is made, removed or replaced.
func (j *journal) changing(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var s syscall.Stat_t
	if syscall.Stat(dir, &s) != nil {
		return // the change will fail
	}
	if _, known := j.dirs[s.Ino]; !known {
		j.dirs[s.Ino] = entries(dir)
	}
}

// entries lists a directory; nothing where it is gone.
func entries(dir string) map[string]entry {
	found := map[string]entry{}
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		var s syscall.Stat_t
		if syscall.Lstat(filepath.Join(dir, e.Name()), &s) == nil {
			found[e.Name()] = entry{s.Ino, s.Mode}
		}
	}
	return found
}

// parting must be called before a name is removed or replaced.
func (j *journal) parting(path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var s syscall.Stat_t
	if syscall.Lstat(path, &s) == nil && s.Mode&syscall.S_IFMT == syscall.S_IFREG {
		_ = os.Link(path, filepath.Join(j.grave, strconv.FormatUint(s.Ino, 10))) // it may be there
	}
}

// created says that a file is new.
func (j *journal) created(inode uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.files[inode] = ""
}

// writing must be called before a file's content changes. file opens it.
func (j *journal) writing(inode uint64, file string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.files[inode]; known {
		return nil
	}
	to := filepath.Join(j.grave, strconv.FormatUint(inode, 10)+".was")
	if err := copyFile(file, to); err != nil {
		return fmt.Errorf("keep what was synced: %w", err)
	}
	j.files[inode] = to
	return nil
}

// syncedFile says that a file's content is on the disk.
func (j *journal) syncedFile(inode uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if was := j.files[inode]; was != "" {
		_ = os.Remove(was)
	}
	delete(j.files, inode)
}

// syncedDir says the same of a directory's entries. What no directory from before has any more is forgotten.
func (j *journal) syncedDir(inode uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.dirs, inode)
	wanted := map[string]bool{}
	for _, list := range j.dirs {
		for _, e := range list {
			wanted[strconv.FormatUint(e.inode, 10)] = true
		}
	}
	list, _ := os.ReadDir(j.grave)
	for _, e := range list {
		if filepath.Ext(e.Name()) == "" && !wanted[e.Name()] {
			_ = os.Remove(filepath.Join(j.grave, e.Name()))
		}
	}
}

// cut makes the tree what is on the disk. Of each file and directory with changes that were not synced, reached says whether they got there
// all the same. Nobody may use the tree meanwhile.
func (j *journal) cut(reached func() bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var root syscall.Stat_t
	if err := syscall.Stat(j.root, &root); err != nil {
		return err
	}
	b := &rebuilding{journal: j, reached: reached, at: map[uint64]string{}}
	graves, err := os.ReadDir(j.grave)
	if err != nil {
		return err
	}
	for _, e := range graves {
		if inode, err := strconv.ParseUint(e.Name(), 10, 64); err == nil {
			b.at[inode] = filepath.Join(j.grave, e.Name())
		}
	}
	if err := b.find(j.root); err != nil {
		return err
	}
	next, old := j.root+".new", j.root+".old"
	if err := os.Mkdir(next, os.FileMode(root.Mode&0o777)); err != nil {
		return err
	}
	if err := b.dir(next, root.Ino, j.root); err != nil {
		return err
	}
	return errors.Join(os.Rename(j.root, old), os.Rename(next, j.root), os.RemoveAll(old), os.RemoveAll(j.grave))
}

// rebuilding is a cut under way.
type rebuilding struct {
	*journal
	reached func() bool
	at      map[uint64]string // where inodes are
}

func (b *rebuilding) find(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var s syscall.Stat_t
		if err == nil {
			err = syscall.Lstat(path, &s)
		}
		b.at[s.Ino] = path
		return err
	})
}

// dir fills a new directory with the entries of one that is at live, if it is anywhere.
func (b *rebuilding) dir(to string, inode uint64, live string) error {
	list, changed := b.dirs[inode]
	if !changed || b.reached() {
		list = entries(live)
	}
	for name, e := range list {
		path, at := filepath.Join(to, name), b.at[e.inode]
		var err error
		switch e.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			if err = os.Mkdir(path, os.FileMode(e.mode&0o777)); err == nil {
				err = b.dir(path, e.inode, at)
			}
		case syscall.S_IFLNK:
			var target string
			if target, err = os.Readlink(at); err == nil {
				err = os.Symlink(target, path)
			}
		case syscall.S_IFREG:
			err = b.file(path, e, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *rebuilding) file(path string, e entry, at string) error {
	was, changed := b.files[e.inode]
	if !changed || b.reached() {
		return os.Link(at, path)
	}
	if was == "" {
		was = os.DevNull
	}
	return errors.Join(copyFile(was, path), os.Chmod(path, os.FileMode(e.mode&0o777)))
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
