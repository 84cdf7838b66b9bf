package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// openFiles are files in all states that only a descriptor knows: a position, a name that is gone, an end that moves,
// a position shared by two descriptors, a lock.
type openFiles struct {
	dir      string
	read     *os.File // at half
	shared   [2]*os.File
	deleted  *os.File
	renamed  *os.File
	growing  *os.File
	locked   *os.File
	content  []byte // of all but the growing one
	position int64  // of read and shared
}

func startFiles(flags *flag.FlagSet, args []string) (workload, error) {
	dir := flags.String("dir", "/srv/files", "directory of the files")
	size := flags.Int("size", 64, "size of each file, in KiB")
	lock := flags.Bool("lock", false, "hold a lock as well")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	f := &openFiles{dir: *dir, content: make([]byte, *size<<10)}
	_, _ = newRandom(7).Read(f.content) // never fails
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, err
	}
	steps := []func() error{f.openRead, f.openDeleted, f.openRenamed, f.openGrowing}
	if *lock {
		steps = append(steps, f.openLocked)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	go f.grow()
	return f, nil
}

func (f *openFiles) create(name string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(f.content)
	return file, err
}

func (f *openFiles) openRead() (err error) {
	if f.read, err = f.create("read"); err != nil {
		return err
	}
	f.position = int64(len(f.content) / 2)
	if _, err = f.read.Seek(f.position, io.SeekStart); err != nil {
		return err
	}
	if f.shared[0], err = f.create("shared"); err != nil {
		return err
	}
	fd, err := unix.Dup(int(f.shared[0].Fd()))
	if err != nil {
		return err
	}
	f.shared[1] = os.NewFile(uintptr(fd), "shared")
	_, err = f.shared[0].Seek(f.position, io.SeekStart)
	return err
}

func (f *openFiles) openDeleted() (err error) {
	if f.deleted, err = f.create("deleted"); err != nil {
		return err
	}
	return os.Remove(f.deleted.Name())
}

func (f *openFiles) openRenamed() (err error) {
	if f.renamed, err = f.create("old-name"); err != nil {
		return err
	}
	return os.Rename(f.renamed.Name(), filepath.Join(f.dir, "new-name"))
}

func (f *openFiles) openGrowing() (err error) {
	f.growing, err = os.OpenFile(filepath.Join(f.dir, "growing"), os.O_CREATE|os.O_RDWR|os.O_APPEND|os.O_TRUNC, 0o640)
	return err
}

func (f *openFiles) openLocked() (err error) {
	if f.locked, err = f.create("locked"); err != nil {
		return err
	}
	return unix.Flock(int(f.locked.Fd()), unix.LOCK_EX)
}

// grow appends a numbered line every 5 ms.
func (f *openFiles) grow() {
	for n := 0; ; n++ {
		if _, err := fmt.Fprintln(f.growing, n); err != nil {
			fmt.Fprintln(os.Stderr, "workload: grow:", err)
			os.Exit(1)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (f *openFiles) Check() (map[string]any, error) {
	state := map[string]any{}
	for _, file := range []*os.File{f.read, f.shared[0], f.shared[1]} {
		if at, err := file.Seek(0, io.SeekCurrent); err != nil || at != f.position {
			return state, fmt.Errorf("%s is at %d, not %d (%v)", file.Name(), at, f.position, err)
		}
	}
	for _, file := range []*os.File{f.read, f.shared[1], f.deleted, f.renamed} {
		content := make([]byte, len(f.content))
		if _, err := file.ReadAt(content, 0); err != nil || !bytes.Equal(content, f.content) {
			return state, fmt.Errorf("%s has other content (%v)", file.Name(), err)
		}
	}
	if _, err := os.Stat(f.deleted.Name()); !errors.Is(err, os.ErrNotExist) {
		return state, fmt.Errorf("%s has a name again", f.deleted.Name())
	}
	if f.locked != nil {
		if again, err := os.Open(f.locked.Name()); err != nil {
			return state, err
		} else if err := errors.Join(unix.Flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB), again.Close()); err == nil {
			return state, errors.New("the lock is gone")
		}
	}
	lines, err := f.lines()
	state["lines"] = lines
	return state, err
}

// lines counts what has been appended, none missing and none twice.
func (f *openFiles) lines() (int, error) {
	content, err := os.ReadFile(f.growing.Name())
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(content), "\n")
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprint(i) {
			return i, fmt.Errorf("line %d of the growing file is %q", i, line)
		}
	}
	return len(lines) - 1, nil
}
