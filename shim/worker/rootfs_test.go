package worker

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

func overlay(upper string) []*types.Mount {
	return []*types.Mount{{Type: "overlay", Options: []string{"lowerdir=/l", "workdir=/w", "upperdir=" + upper}}}
}

// TestUndo: a root file system is as it was, unless the container has run.
func TestUndo(t *testing.T) {
	for _, runs := range []bool{false, true} {
		upper, bundle := t.TempDir(), t.TempDir()
		long := time.Now().Add(-time.Hour).Truncate(time.Second)
		if err := errors.Join(os.Chmod(upper, 0o751), os.Chtimes(upper, long, long)); err != nil {
			t.Fatal(err)
		}
		was, err := os.Stat(upper)
		if err != nil {
			t.Fatal(err)
		}
		if err := NoteRootfs(bundle, overlay(upper)); err != nil {
			t.Fatal(err)
		}
		unlock, err := LockRootfs(bundle)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(upper, "a/b"), 0o755), os.WriteFile(filepath.Join(upper, "a/b/c"), nil, 0o600), os.Chmod(upper, 0o700)); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(50*time.Millisecond, unlock)
		if runs {
			if err := KeepRootfs(bundle); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // once more does no harm
			if err := UndoRootfs(bundle); err != nil {
				t.Fatal(err)
			}
		}
		is, err := os.Stat(upper)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(upper)
		if err != nil {
			t.Fatal(err)
		}
		if runs != (len(entries) == 1) {
			t.Errorf("runs %v: there are %v", runs, entries)
		}
		if !runs && (is.Mode() != was.Mode() || !is.ModTime().Equal(was.ModTime())) {
			t.Errorf("the directory was %v of %v, and is %v of %v", was.Mode(), was.ModTime(), is.Mode(), is.ModTime())
		}
	}
}

// TestNote: nothing is changed that could not be undone.
func TestNote(t *testing.T) {
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, mounts := range map[string][]*types.Mount{
		"none": nil, "bind": {{Type: "bind", Source: "/x"}}, "no changes": {{Type: "overlay", Options: []string{"lowerdir=/l"}}},
		"two": append(overlay("/u"), overlay("/u")...), "relative": overlay("u"), "used": overlay(used),
	} {
		bundle := t.TempDir()
		if err := NoteRootfs(bundle, mounts); !errdefs.IsFailedPrecondition(err) || failure.Hint(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		if err := UndoRootfs(bundle); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(used); len(entries) != 1 {
		t.Error("what was there is gone")
	}
}

// TestGone: the snapshot of a container may be removed before its bundle.
func TestGone(t *testing.T) {
	upper, bundle := filepath.Join(t.TempDir(), "fs"), t.TempDir()
	if err := os.Mkdir(upper, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(NoteRootfs(bundle, overlay(upper)), os.Remove(upper), UndoRootfs(bundle)); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(bundle); len(entries) > 0 {
		t.Errorf("left %v", entries)
	}
}

func TestUpperDir(t *testing.T) {
	overlay := []*types.Mount{{Type: "overlay", Options: []string{"workdir=/w", "upperdir=/u", "lowerdir=/l"}}}
	if got := UpperDir(overlay); got != "/u" {
		t.Errorf("UpperDir = %q", got)
	}
	for _, other := range [][]*types.Mount{nil, {{Type: "bind", Source: "/x"}}, {{Type: "overlay", Options: []string{"lowerdir=/l"}}}, append(overlay, overlay...)} {
		if got := UpperDir(other); got != "" {
			t.Errorf("UpperDir(%v) = %q", other, got)
		}
	}
}
