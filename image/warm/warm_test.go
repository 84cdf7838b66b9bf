package warm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// newDir is a mounted directory with entries of a MiB of memory and two of disk, the first used first.
func newDir(t *testing.T, names ...string) *Dir {
	t.Helper()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("needs root to mount a tmpfs")
	}
	d := New(t.TempDir())
	if err := d.mount(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if is, _ := d.mounted(); is {
			if err := unix.Unmount(d.path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	for i, name := range names {
		entry := d.entry(digest.FromString(name))
		if err := os.Mkdir(entry, 0o700); err != nil {
			t.Fatal(err)
		}
		info := Info{Reference: name, Digest: digest.FromString(name), Size: Size{Memory: 1 << 20, Disk: 2 << 20}}
		if err := writeInfo(entry, info); err != nil {
			t.Fatal(err)
		}
		used := time.Unix(1e9+int64(i), 0)
		for _, name := range []string{lockName, memoryName} {
			if err := errors.Join(os.WriteFile(filepath.Join(entry, name), nil, 0o600), os.Chtimes(filepath.Join(entry, name), used, used)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return d
}

// want wants these entries, in the order of their use.
func want(t *testing.T, d *Dir, names ...string) {
	t.Helper()
	all, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range all {
		got = append(got, i.Reference)
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("there is %s, want %s", got, names)
	}
}

func find(t *testing.T, d *Dir, name string) *Entry {
	t.Helper()
	e, err := d.Find(t.Context(), digest.FromString(name))
	if err != nil || e == nil {
		t.Fatalf("find %s: %v, %v", name, e, err)
	}
	return e
}

func TestRoom(t *testing.T) {
	d := newDir(t, "a", "b", "c")
	room := func(need, budget Size, removed ...string) {
		t.Helper()
		gone, err := d.Room(t.Context(), need, budget)
		if err != nil || len(gone) != len(removed) {
			t.Fatalf("gives %v, %v", gone, err)
		}
		for i := range gone {
			if gone[i].Reference != removed[i] {
				t.Errorf("removed %s, want %s", gone[i].Reference, removed[i])
			}
		}
	}
	room(Size{Memory: 1 << 20}, Size{Memory: 4 << 20})
	find(t, d, "a").Close()
	want(t, d, "b", "c", "a")
	room(Size{Memory: 1 << 20}, Size{Memory: 3 << 20}, "b")
	room(Size{}, Size{Disk: 2 << 20}, "c")
	want(t, d, "a")

	var budget *BudgetError
	if _, err := d.Room(t.Context(), Size{Memory: 2<<20 + 1}, Size{Memory: 2 << 20}); !errors.As(err, &budget) || !strings.Contains(budget.Hint(), "3 MiB") {
		t.Errorf("more than the budget gives %v", err)
	}
	e := find(t, d, "a")
	var busy *BusyError
	if _, err := d.Room(t.Context(), Size{Memory: 1 << 20}, Size{Memory: 1 << 20}); !errors.As(err, &busy) || !errdefs.IsResourceExhausted(err) {
		t.Errorf("a restore that begins gives %v", err)
	}
	memory, err := e.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	if _, err := d.Room(t.Context(), Size{Memory: 1 << 20}, Size{Memory: 1 << 20}); !errors.As(err, &busy) {
		t.Errorf("a restore that reads memory gives %v", err)
	}
	memory.Close()
	room(Size{Memory: 1 << 20}, Size{Memory: 1 << 20}, "a")
	want(t, d)
	if is, err := d.mounted(); is || err != nil {
		t.Errorf("the empty tmpfs is still there: %v", err)
	}
}

// TestRoomAllOrNothing makes no room where it would not be enough.
func TestRoomAllOrNothing(t *testing.T) {
	d := newDir(t, "a", "b")
	defer find(t, d, "a").Close()
	if _, err := d.Room(t.Context(), Size{Memory: 1 << 20}, Size{Memory: 3 << 19}); err == nil {
		t.Error("there is room")
	}
	want(t, d, "b", "a")
}

func TestRemove(t *testing.T) {
	d := newDir(t, "a", "b")
	e := find(t, d, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.Remove(ctx, digest.FromString("a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("remove what a restore begins with: %v", err)
	}
	memory, err := e.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	if err := d.Remove(t.Context(), digest.FromString("a")); err != nil {
		t.Errorf("remove what is being read: %v", err)
	}
	want(t, d, "b")
	if err := d.Remove(t.Context(), digest.FromString("b")); err != nil {
		t.Fatal(err)
	}
	want(t, d) // mounted still, for the reader
	memory.Close()
	want(t, d)
	if is, err := d.mounted(); is || err != nil {
		t.Errorf("the empty tmpfs is still there: %v", err)
	}
	if err := d.Remove(t.Context(), digest.FromString("b")); !errdefs.IsNotFound(err) {
		t.Errorf("remove what is not there: %v", err)
	}
}

// TestLeft has a prewarm that died: what it has left goes, and what one that lives is making stays.
func TestLeft(t *testing.T) {
	d := newDir(t, "a")
	left := filepath.Join(d.path, unfinished+"1")
	if err := os.MkdirAll(filepath.Join(left, blobsName), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := d.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, d, "a")
	if _, err := os.Stat(left); err != nil {
		t.Errorf("it is gone while somebody works on it: %v", err)
	}
	lock.Close()
	want(t, d, "a")
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestNotMounted believes nothing that lies on a disk.
func TestNotMounted(t *testing.T) {
	d := New(t.TempDir())
	want(t, d)
	entry := d.entry(digest.FromString("a"))
	if err := os.MkdirAll(entry, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writeInfo(entry, Info{Reference: "a"}), os.WriteFile(filepath.Join(entry, lockName), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want(t, d)
	if e, err := d.Find(t.Context(), digest.FromString("a")); e != nil || err != nil {
		t.Errorf("finds %v, %v", e, err)
	}
}

func TestAvailable(t *testing.T) {
	total, err := Total()
	if err != nil || total < 64<<20 {
		t.Fatalf("this machine has %d bytes, %v", total, err)
	}
	if err := available(0); err != nil {
		t.Error(err)
	}
	var short *ShortError
	if err := available(total + 1); !errors.As(err, &short) || !strings.Contains(fmt.Sprint(err), fmt.Sprint(mib(total+1))) {
		t.Errorf("more than there is gives %v", err)
	}
}

// TestKeep makes room beside a snapshot that is there, which stays.
func TestKeep(t *testing.T) {
	d := newDir(t, "a", "b", "c")
	e := find(t, d, "a")
	defer e.Close()
	var budget *BudgetError
	if _, err := d.Keep(t.Context(), e, Size{Memory: 1 << 20}, Size{Memory: 1 << 19}); !errors.As(err, &budget) {
		t.Errorf("a budget that it does not fit gives %v", err)
	}
	want(t, d, "b", "c", "a")
	gone, err := d.Keep(t.Context(), e, Size{Memory: 1 << 20}, Size{Memory: 2 << 20})
	if err != nil || len(gone) != 1 || gone[0].Reference != "b" {
		t.Errorf("room for two: %v, %v", gone, err)
	}
	if _, err := d.Keep(t.Context(), e, Size{Memory: 1 << 20}, Size{Memory: 1 << 20}); err != nil {
		t.Error(err)
	}
	want(t, d, "a")
}
