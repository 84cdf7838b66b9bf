package main

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// tree is a journal and what tells it of changes, as the file system does.
type tree struct {
	*testing.T
	*journal
}

func newTree(t *testing.T, files ...string) *tree {
	root := filepath.Join(t.TempDir(), "root")
	w := &tree{T: t}
	w.ok(os.Mkdir(root, 0o755))
	for _, f := range files {
		w.ok(os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o755))
		w.ok(os.WriteFile(filepath.Join(root, f), []byte("before"), 0o644))
	}
	j, err := newJournal(root, filepath.Join(filepath.Dir(root), "grave"))
	w.ok(err)
	w.journal = j
	return w
}

func (w *tree) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *tree) inode(name string) uint64 {
	w.Helper()
	var s syscall.Stat_t
	w.ok(syscall.Lstat(filepath.Join(w.root, name), &s))
	return s.Ino
}

func (w *tree) create(name, content string) {
	path := filepath.Join(w.root, name)
	w.changing(filepath.Dir(path))
	w.ok(os.WriteFile(path, []byte(content), 0o644))
	w.created(w.inode(name))
}

func (w *tree) write(name, content string) {
	path := filepath.Join(w.root, name)
	w.ok(w.writing(w.inode(name), path))
	w.ok(os.WriteFile(path, []byte(content), 0o644))
}

func (w *tree) mkdir(name string) {
	path := filepath.Join(w.root, name)
	w.changing(filepath.Dir(path))
	w.ok(os.Mkdir(path, 0o755))
}

func (w *tree) rename(from, to string) {
	a, b := filepath.Join(w.root, from), filepath.Join(w.root, to)
	w.changing(filepath.Dir(a))
	w.changing(filepath.Dir(b))
	w.parting(b)
	w.ok(os.Rename(a, b))
}

func (w *tree) remove(name string) {
	path := filepath.Join(w.root, name)
	w.changing(filepath.Dir(path))
	w.parting(path)
	w.ok(os.Remove(path))
}

// want cuts the power and compares what there is then, names and contents.
func (w *tree) want(reached bool, want ...string) {
	w.Helper()
	w.ok(w.cut(func() bool { return reached }))
	var got []string
	w.ok(filepath.WalkDir(w.root, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == w.root {
			return err
		}
		line := path[len(w.root)+1:]
		if !d.IsDir() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += "=" + string(content)
		}
		got = append(got, line)
		return nil
	}))
	if !slices.Equal(got, want) {
		w.Errorf("got %q, want %q", got, want)
	}
}

func TestNothingChanged(t *testing.T) {
	newTree(t, "a", "d/b").want(false, "a=before", "d", "d/b=before")
}

func TestNew(t *testing.T) {
	for name, test := range map[string]struct {
		file, dir bool
		want      []string
	}{
		"nothing synced":     {false, false, nil},
		"only the file":      {true, false, nil},
		"only the directory": {false, true, []string{"a="}},
		"both":               {true, true, []string{"a=new"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t)
			w.create("a", "new")
			if test.file {
				w.syncedFile(w.inode("a"))
			}
			if test.dir {
				w.syncedDir(w.inode("."))
			}
			w.want(false, test.want...)
		})
	}
}

func TestReached(t *testing.T) {
	w := newTree(t, "b")
	w.create("a", "new")
	w.write("b", "after")
	w.want(true, "a=new", "b=after")
}

func TestWritten(t *testing.T) {
	w := newTree(t, "a", "b")
	w.write("a", "after")
	w.write("b", "after")
	w.syncedFile(w.inode("b"))
	w.write("a", "later")
	w.want(false, "a=before", "b=after")
}

// TestReplaced is what a store does: a new file, synced, renamed over another, and the directory synced.
func TestReplaced(t *testing.T) {
	w := newTree(t, "index")
	w.create("next", "after")
	w.syncedFile(w.inode("next"))
	w.rename("next", "index")
	w.want(false, "index=before")

	w = newTree(t, "index")
	w.create("next", "after")
	w.syncedFile(w.inode("next"))
	w.rename("next", "index")
	w.syncedDir(w.inode("."))
	w.want(false, "index=after")
}

// TestUnsynced has a file be renamed over another without having been synced: its name is there, its content is not.
func TestUnsynced(t *testing.T) {
	w := newTree(t, "index")
	w.create("next", "after")
	w.rename("next", "index")
	w.syncedDir(w.inode("."))
	w.want(false, "index=")
}

func TestMoved(t *testing.T) {
	w := newTree(t, "from/a", "to/b")
	w.rename("from/a", "to/a")
	w.syncedDir(w.inode("from"))
	w.want(false, "from", "to", "to/b=before") // in neither: its new directory was not synced
	w = newTree(t, "from/a", "to/b")
	w.rename("from/a", "to/a")
	w.syncedDir(w.inode("to"))
	w.want(false, "from", "from/a=before", "to", "to/a=before", "to/b=before")
}

func TestRemoved(t *testing.T) {
	w := newTree(t, "a", "d/b")
	w.remove("a")
	w.remove("d/b")
	w.remove("d")
	w.want(false, "a=before", "d", "d/b=before")
	w = newTree(t, "a")
	w.remove("a")
	w.syncedDir(w.inode("."))
	w.want(false)
}

func TestMade(t *testing.T) {
	w := newTree(t)
	w.mkdir("d")
	w.create("d/a", "new")
	w.syncedFile(w.inode("d/a"))
	w.syncedDir(w.inode("."))
	w.want(false, "d")
}
