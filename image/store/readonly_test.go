package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// readonly calls do where the file system of dir is read-only, in a mount namespace of its own, which goes with the thread.
func readonly(t *testing.T, dir string, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock it
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = errors.Join(
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount(dir, dir, "", unix.MS_BIND, ""),
				unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("mount %s read-only: %v", dir, err)
	}
}

// TestReadOnly: a store on a read-only file system is read as any other, one that lacks files of newer versions as well, and reading changes nothing.
func TestReadOnly(t *testing.T) {
	for name, lacks := range map[string][]string{"whole": nil, "without locks": {"operations.lock", "index.lock"}, "of an earlier version": {"operations.lock", "suspect", "prewarmed", "work", "partial"}} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			s, err := store.Open(root)
			if err != nil {
				t.Fatal(err)
			}
			d := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1})
			if name == "whole" { // a suspicion that reading finds unfounded
				if err := s.Suspect(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range lacks {
				if err := os.RemoveAll(filepath.Join(root, l)); err != nil {
					t.Fatal(err)
				}
			}
			readonly(t, root, func() {
				s, err := store.Open(root)
				if err != nil {
					t.Error(err)
					return
				}
				w, err := s.Scratch(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(w.Dir, "x"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if got, err := s.Resolve(t.Context(), "a:1"); err != nil || got.Digest != d.Digest {
					t.Errorf("resolved to %v, %v", got, err)
				}
				if _, err := store.ReadAll(t.Context(), s, d, store.MaxManifest); err != nil {
					t.Error(err)
				}
				if _, err := s.Usage(t.Context()); err != nil {
					t.Error(err)
				}
				if p, err := s.Prunable(t.Context()); err != nil || p.Busy != (name != "without locks" && name != "of an earlier version") {
					t.Errorf("would prune %+v, %v", p, err)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(w.Dir); !os.IsNotExist(err) {
					t.Errorf("%s is left: %v", w.Dir, err)
				}
				if err := s.Tag(t.Context(), d, "b:1"); !errors.Is(err, unix.EROFS) {
					t.Errorf("a write has the error %v", err)
				}
			})
		})
	}
}
