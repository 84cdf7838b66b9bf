package registry

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestMain runs the test binary as a process that pushes or pulls until it is killed.
func TestMain(m *testing.M) {
	if what := os.Getenv("CRYO_TEST_TRANSFER"); what != "" {
		if err := transfer(what, os.Getenv("CRYO_TEST_STORE"), os.Getenv("CRYO_TEST_REF")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most tests wait for a registry most of the time. Their stores are small and new, and on a disk making the files costs more than all else. The store's own tests use a disk.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	if _, set := os.LookupEnv("TMPDIR"); !set && inMemory("/dev/shm") {
		if err := os.Setenv("TMPDIR", "/dev/shm"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// inMemory reports whether a directory is in memory.
func inMemory(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.TMPFS_MAGIC
}

func transfer(what, root, ref string) error {
	ctx := context.Background()
	s, err := store.Open(root)
	if err != nil {
		return err
	}
	switch what {
	case "pull":
		_, err := Pull(ctx, s, ref, fast())
		return err
	case "deferred":
		p, err := NewPuller(ctx, s, ref, fast())
		if err != nil {
			return err
		}
		defer p.Close()
		p.ThroughCache()
		source, err := store.NewPullSource(ctx, s, p.Ranges().Read)
		if err != nil {
			return err
		}
		defer source.Close()
		running := make(chan struct{})
		close(running)
		p.Lazily(Lazy{Source: source, Head: -1, Running: running, rest: 20 * time.Millisecond})
		return p.Finish(ctx)
	}
	d, err := s.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	if what == "image" {
		_, err := pushImage(ctx, s, ref, d, testBase("", 8), fast())
		return err
	}
	return Push(ctx, s, ref, d, fast())
}

// untilDone starts a transfer again and again and kills it at random, until one gets to the end. It says how many were killed. Tests that use it run alone: a process that starts holds the
// locks of all open stores for a moment, also after fork has returned here, and what it holds is not removed.
func untilDone(t *testing.T, what, root, ref string) (killed int) {
	t.Helper()
	passwords := t.TempDir() // with none
	for n := 0; n < 60; n++ {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "CRYO_TEST_TRANSFER="+what, "CRYO_TEST_STORE="+root, "CRYO_TEST_REF="+ref, "DOCKER_CONFIG="+passwords,
			"GORACE=atexit_sleep_ms=0") // the race detector would have us kill it while it waits to exit
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Longer each time: starting alone takes long on a busy machine.
		timer := time.AfterFunc(time.Duration(30+5*n+n*n/8)*time.Millisecond+rand.N(100*time.Millisecond), func() { _ = c.Process.Signal(syscall.SIGKILL) })
		err := c.Wait()
		timer.Stop()
		if err == nil {
			return killed
		}
		if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() {
			t.Fatalf("%s ended by itself: %v", what, err)
		}
		killed++
	}
	t.Fatalf("%s gets nowhere", what)
	return killed
}

// A push and a pull that are killed at any moment go on where they stopped, and no part of a blob ever shows.
func TestKilled(t *testing.T) {
	f := newFake(t)
	var in, out atomic.Int64
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		repo, name, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/blobs/")
		switch {
		case !ok || r.Method == http.MethodHead:
			return false
		case r.Method == http.MethodGet:
			f.serveBlob(&slowWriter{w, &out}, r, repo, name)
			return true
		case r.Method == http.MethodPut:
			in.Add(r.ContentLength)
		}
		time.Sleep(4 * time.Millisecond)
		return false
	}
	src := storetest.Open(t)
	var segments []uint64
	for i := range uint64(60) {
		segments = append(segments, i)
	}
	d := storetest.MustPut(t, src, f.ref("k:1"), storetest.Spec{Seed: 1, Segments: segments, Size: 256 << 10})
	size := int64(60 * 256 << 10)
	killed := untilDone(t, "push", src.Root(), f.ref("k:1"))
	t.Logf("push: killed %d times, sent %d of %d bytes", killed, in.Load(), size)
	if limit := size + int64(killed+1)*4*(256<<10) + 1<<20; in.Load() > limit {
		t.Errorf("sent %d bytes of %d in %d attempts", in.Load(), size, killed+1)
	}

	for _, what := range []string{"pull", "deferred"} {
		dst, err := store.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		out.Store(0)
		killed := untilDone(t, what, dst.Root(), f.ref("k:1"))
		t.Logf("%s: killed %d times, fetched %d of %d bytes", what, killed, out.Load(), size)
		got, err := dst.Resolve(t.Context(), f.ref("k:1"))
		if err != nil || got.Digest != d.Digest {
			t.Errorf("%s: Resolve: %v, %v", what, got, err)
		}
		if err := storetest.Check(t.Context(), dst); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if e, _ := os.ReadDir(dst.Root() + "/partial"); len(e) != 0 {
			t.Errorf("%s: left in partial: %v", what, e)
		}
	}
}

// slowWriter sends in small pieces.
type slowWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *slowWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k, err := w.ResponseWriter.Write(p[:min(len(p), 32<<10)])
		n += k
		w.n.Add(int64(k))
		if err != nil {
			return n, err
		}
		if fl, ok := w.ResponseWriter.(http.Flusher); ok {
			fl.Flush()
		}
		p = p[k:]
		time.Sleep(time.Millisecond)
	}
	return n, nil
}

// TestKilledImage kills a push of a snapshot and its image at any moment: the registry takes no manifest of which anything is missing, so whenever there is a
// name, all is there.
func TestKilledImage(t *testing.T) {
	f := newFake(t)
	f.fault = func(http.ResponseWriter, *http.Request) bool {
		time.Sleep(3 * time.Millisecond)
		return false
	}
	src := storetest.Open(t)
	b := testBase("", 8)
	d := storetest.MustPut(t, src, f.ref("k:1"), storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 3, 4, 5, 6, 7, 8}, ChainID: b.ChainID()})
	killed := untilDone(t, "image", src.Root(), f.ref("k:1"))
	t.Logf("killed %d times", killed)
	if m := f.manifests["k"]["1"]; m.mediaType != ocispec.MediaTypeImageIndex {
		t.Errorf("the name stands for %s", m.mediaType)
	}
	pulled(t, f, "k:1", d)
}
