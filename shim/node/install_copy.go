package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// copyAll copies directories, files and symlinks to the machine. Each is replaced at once: programs that run go on in the old file.
func (i *installation) copyAll(ctx context.Context) error {
	return filepath.WalkDir(i.From, func(name string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		own, err := filepath.Rel(i.From, name)
		if err != nil {
			return err
		}
		to := path.Join(InstallDir, own)
		switch {
		case d.IsDir():
			return i.root.MkdirAll(inside(to), 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			return i.link(name, to)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return i.write(to, data, info.Mode().Perm())
	})
}

func (i *installation) link(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if was, err := i.root.Readlink(inside(to)); err == nil && was == target {
		return nil
	}
	return i.replace(to, func(temporary string) error { return i.root.Symlink(target, temporary) })
}

// write writes a file of the machine's, unless it is as it should be.
func (i *installation) write(to string, data []byte, mode fs.FileMode) error {
	if info, err := i.root.Lstat(inside(to)); err == nil && info.Mode() == mode {
		if was, err := i.root.ReadFile(inside(to)); err == nil && bytes.Equal(was, data) {
			return nil
		}
	}
	if err := i.root.MkdirAll(inside(path.Dir(to)), 0o755); err != nil {
		return err
	}
	return i.replace(to, func(temporary string) error {
		f, err := i.root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, bytes.NewReader(data))
		return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	})
}

// replace has a file made by another name, and gives it its own then.
func (i *installation) replace(to string, create func(temporary string) error) error {
	temporary := inside(path.Join(path.Dir(to), ".cryo-new-"+path.Base(to)))
	if err := i.root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(temporary); err != nil {
		return errors.Join(err, i.root.Remove(temporary))
	}
	i.result.Changed = append(i.result.Changed, to)
	return i.root.Rename(temporary, inside(to))
}
