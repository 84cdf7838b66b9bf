package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestMain runs the test binary as one of several processes that share a store.
func TestMain(m *testing.M) {
	if root := os.Getenv("CRYO_TEST_STORE"); root != "" {
		seed, _ := strconv.ParseUint(os.Getenv("CRYO_TEST_SEED"), 10, 64)
		if err := work(root, seed); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// work tags, retags and removes at random until it is told to end, and checks that its own snapshot is complete after each tag.
func work(root string, seed uint64) error {
	ctx := context.Background()
	s, err := store.Open(root)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 1))
	mine := fmt.Sprintf("own/p%d:x", seed)
	for n := 0; os.Getenv("CRYO_TEST_ROUNDS") == "" || fmt.Sprint(n) != os.Getenv("CRYO_TEST_ROUNDS"); n++ {
		ref := mine
		if r.IntN(2) == 0 {
			ref = fmt.Sprintf("shared/s%d:x", r.IntN(3))
		}
		spec := storetest.Spec{Seed: r.Uint64N(4), Segments: []uint64{r.Uint64N(6), r.Uint64N(6)}, Size: 20 << 10}
		switch r.IntN(4) {
		case 0:
			if _, err := s.Remove(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		default:
			d, err := storetest.Put(ctx, s, ref, spec)
			if err != nil {
				return err
			}
			if ref != mine {
				continue
			}
			// Nobody else touches this name: it must be whole.
			if err := s.Tag(ctx, d, ref); err != nil {
				return fmt.Errorf("own snapshot: %w", err)
			}
		}
	}
	return nil
}

func child(t *testing.T, root string, seed int, rounds string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "CRYO_TEST_STORE="+root, fmt.Sprintf("CRYO_TEST_SEED=%d", seed), "CRYO_TEST_ROUNDS="+rounds)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestProcessesAtOnce(t *testing.T) {
	root := t.TempDir() // the first one there makes the store
	var children []*exec.Cmd
	for i := range 4 {
		children = append(children, child(t, root, i, "40"))
	}
	for _, c := range children {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	finish(t, root)
}

// Processes that are killed at any moment leave a store that is whole, and nothing that stays for ever.
func TestProcessesKilled(t *testing.T) {
	root := t.TempDir()
	if _, err := store.Open(root); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		a, b := child(t, root, 2*i, ""), child(t, root, 2*i+1, "")
		time.Sleep(20*time.Millisecond + rand.N(120*time.Millisecond))
		for _, c := range []*exec.Cmd{a, b} {
			if err := c.Process.Signal(syscall.SIGKILL); err != nil {
				t.Errorf("child ended by itself: %v", err)
			}
			c.Wait()
		}
	}
	finish(t, root)
}

// finish checks the store, removes all of it by name and expects nothing to be left.
func finish(t *testing.T, root string) {
	t.Helper()
	ctx := t.Context()
	s, err := store.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := storetest.Check(ctx, s); err != nil {
		t.Fatal(err)
	}
	storetest.MustPut(t, s, "last", storetest.Spec{Seed: 9})
	tags, err := s.Tags(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags {
		if _, err := s.Remove(ctx, tag.Ref); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"store/blobs/sha256", "ingest", "partial", "work"} {
		if e, err := os.ReadDir(filepath.Join(root, dir)); err != nil || len(e) != 0 {
			t.Errorf("left in %s: %v, %v", dir, e, err)
		}
	}
}

func TestDiskFull(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	defer unix.Unmount(root, unix.MNT_DETACH)
	s, err := store.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	storetest.MustPut(t, s, "small", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	_, err = storetest.Put(t.Context(), s, "big", storetest.Spec{Seed: 2, Segments: []uint64{2, 3, 4}, Size: 500 << 10})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("full disk: %v", err)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	if _, err := s.Remove(t.Context(), "small"); err != nil {
		t.Errorf("removing from a full disk: %v", err)
	}
	if n := storetest.Count(t, s); n != 0 {
		t.Errorf("%d blobs left", n)
	}
}
