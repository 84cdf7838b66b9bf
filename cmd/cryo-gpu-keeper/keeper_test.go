//go:build cgo

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

const mib = 1 << 20

// total is the memory of a fake device: a copy leaves 256 MiB.
const total = 300 * mib

// program builds this program and the fake driver, once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cryo-hold")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, driver.Name)
	build := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", path, ".")
	fake := exec.Command("make", "-s", "fakecuda")
	fake.Dir = filepath.Join("..", "..")
	for _, c := range []*exec.Cmd{fake, build} {
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// host is one with fake devices.
type host struct {
	t       *testing.T
	dir     string
	devices []string
}

func newHost(t *testing.T) *host {
	t.Helper()
	if _, err := program(); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: t.TempDir()}
	for i := range 2 {
		uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-00000000000a", i+1)
		h.devices = append(h.devices, uuid)
		h.write(filepath.Join(uuid, "total"), fmt.Sprint(total))
	}
	h.order("")
	fake, err := filepath.Abs("../../bin/fakecuda")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", fake)
	t.Setenv("FAKECUDA_DIR", h.dir)
	t.Setenv("FAKECUDA_ORDERS", filepath.Join(h.dir, "orders"))
	t.Setenv("CUDA_VISIBLE_DEVICES", "none of the keeper's business")
	return h
}

func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

// order says what the fake driver's calls come to.
func (h *host) order(lines ...string) { h.write("orders", strings.Join(lines, "\n")+"\n") }

func (h *host) start() *keeper.Client {
	h.t.Helper()
	path, err := program()
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := keeper.Start(h.t.Context(), keeper.Options{Path: path, Ring: ring.Geometry{Slots: 4, SlotBytes: 256 << 10}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			h.t.Error(err)
		}
	})
	if err := c.Open(h.devices[:1]); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// pieces are on the devices by turns; sizes in MiB.
func (h *host) pieces(sizes ...int64) (p []spec.GPUPiece) {
	for i, n := range sizes {
		p = append(p, spec.GPUPiece{Device: h.devices[i%2], Size: n * mib})
	}
	return p
}

// ends has move work with one end of a connection, and other with the other.
func (h *host) ends(move func(*os.File) error, other func(*os.File) error) error {
	h.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	var here, there error
	var wait sync.WaitGroup
	wait.Go(func() { there = move(theirs) })
	wait.Go(func() { here = other(ours) })
	wait.Wait()
	return errors.Join(there, here)
}

// content is what is in a piece; its second MiB is zero.
func content(n int, size int64) []byte {
	b := bytes.Repeat([]byte{byte(n + 1), byte(n + 2), 7}, int(size/3+1))[:size]
	clear(b[mib : 2*mib])
	return b
}

// fill has pieces filled with their contents.
func (h *host) fill(c *keeper.Client, pieces []spec.GPUPiece) error {
	h.t.Helper()
	return h.ends(func(f *os.File) error { return c.Receive(h.t.Context(), f) }, func(f *os.File) error {
		return ring.Send(h.t.Context(), f, sizes(pieces), func(ctx context.Context, s *ring.Sender) error {
			for n, p := range pieces {
				data := content(n, p.Size)
				for at := int64(0); at < p.Size; at += 256 << 10 {
					if at >= mib && at < 2*mib {
						continue
					}
					if err := s.Put(ctx, n, at, func(dst []byte) (int, error) { return copy(dst, data[at:]), nil }); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

func sizes(pieces []spec.GPUPiece) (s []int64) {
	for _, p := range pieces {
		s = append(s, p.Size)
	}
	return s
}

// check has everything sent, and fails the test unless it is what fill has filled in.
func (h *host) check(c *keeper.Client, pieces []spec.GPUPiece) error {
	h.t.Helper()
	var all [][]byte
	for _, p := range pieces {
		all = append(all, make([]byte, p.Size))
	}
	err := h.ends(func(f *os.File) error { return c.Send(h.t.Context(), f) }, func(f *os.File) error {
		return ring.Receive(h.t.Context(), f, sizes(pieces), func(c ring.Chunk, release func()) error {
			copy(all[c.Piece][c.Offset:], c.Data)
			release()
			return nil
		})
	})
	for n, p := range pieces {
		if err == nil && !bytes.Equal(all[n], content(n, p.Size)) {
			h.t.Errorf("piece %d is another", n)
		}
	}
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// TestHold takes memory from one keeper to another, which outlives the first and what it had.
func TestHold(t *testing.T) {
	h := newHost(t)
	first, second := h.start(), h.start()
	pieces := h.pieces(4, 6, 2, 4)
	files, err := first.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	if err := h.fill(first, pieces); err != nil {
		t.Fatal(err)
	}
	if err := second.Hold(t.Context(), pieces, files); err != nil {
		t.Fatal(err)
	}
	closeAll(files)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.check(second, pieces); err != nil {
		t.Fatal(err)
	}
	if room, err := second.Room(t.Context(), nil, 256<<20); err != nil || !room {
		t.Fatalf("room %v: %v", room, err)
	}
	if err := second.LetGo(t.Context()); err != nil {
		t.Error(err)
	}
	h.empty(second)
}

// TestHoldCopies copies what other keepers have, on both devices.
func TestHoldCopies(t *testing.T) {
	h := newHost(t)
	from, to, c := h.start(), h.start(), h.start()
	pieces := h.pieces(4, 6, 2)
	old, err := from.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(old)
	made, err := to.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(made)
	if err := h.fill(from, pieces); err != nil {
		t.Fatal(err)
	}
	for i, p := range pieces {
		if err := c.Copy(t.Context(), p, old[i], made[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.check(to, pieces); err != nil {
		t.Error(err)
	}
	if err := h.start().Copy(t.Context(), pieces[0], old[0], made[1]); !errdefs.IsAborted(err) {
		t.Errorf("to memory of another device: %v", err)
	}
	h.order("cuMemcpyDtoDAsync * error 700")
	if err := h.start().Copy(t.Context(), pieces[0], old[0], made[0]); !errors.As(err, new(*driver.CallError)) {
		t.Error(err)
	}
	h.order()
	if err := errors.Join(c.Copy(t.Context(), pieces[0], old[0], made[0]), h.check(to, pieces)); err != nil {
		t.Error(err)
	}
	closeAll(old)
	closeAll(made)
	if err := errors.Join(from.Close(), to.Close()); err != nil {
		t.Error(err)
	}
	h.empty(c)
}

// empty fails the test unless all of the devices is free. c holds nothing.
func (h *host) empty(c *keeper.Client) {
	h.t.Helper()
	files, err := c.Make(h.t.Context(), h.pieces(2, 2)) // which has the fake driver look for what nobody has any more
	if err != nil {
		h.t.Fatal(err)
	}
	closeAll(files)
	if err := c.LetGo(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "GPU-*", "mem-*"))
	if err != nil || len(left) > 0 {
		h.t.Errorf("left are %v, %v", left, err)
	}
}

func TestHoldWithoutRoom(t *testing.T) {
	h := newHost(t)
	first, second := h.start(), h.start()
	pieces := h.pieces(2, 24)
	files, err := first.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	if err := errors.Join(h.fill(first, pieces), second.Hold(t.Context(), pieces, files)); err != nil {
		t.Fatal(err)
	}
	if room, err := second.Room(t.Context(), nil, 256<<20); err != nil || room {
		t.Errorf("room %v: %v", room, err)
	}
	if err := h.check(second, pieces); err != nil {
		t.Error(err)
	}
}

func TestHoldRefuses(t *testing.T) {
	h := newHost(t)
	first, second := h.start(), h.start()
	pieces := h.pieces(4, 6)
	files, err := first.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for name, test := range map[string]struct {
		piece spec.GPUPiece
		file  *os.File
		call  string
		code  int
	}{
		"no memory":                {pieces[0], plain, "cuMemImportFromShareableHandle", 1},
		"of another device":        {spec.GPUPiece{Device: h.devices[1], Size: 4 * mib}, files[0], "cuMemImportFromShareableHandle", 101},
		"smaller than it is said":  {spec.GPUPiece{Device: h.devices[0], Size: 6 * mib}, files[0], "cuMemMap", 1},
		"larger than there is":     {spec.GPUPiece{Device: h.devices[0], Size: 1 << 40}, files[0], "cuMemMap", 1},
		"memory of somebody's own": {pieces[1], os.Stdin, "cuMemImportFromShareableHandle", 1},
	} {
		var call *driver.CallError
		err := h.start().Hold(t.Context(), []spec.GPUPiece{pieces[0], test.piece}, []*os.File{files[0], test.file})
		if !errors.As(err, &call) || !strings.Contains(err.Error(), "device memory 1, ") || call.Call != test.call || call.Code != test.code || !strings.HasPrefix(call.Name, "CUDA_ERROR_") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.start().Make(t.Context(), h.pieces(total/mib+2)); !errdefs.IsAborted(err) || !strings.Contains(err.Error(), "OUT_OF_MEMORY") {
		t.Errorf("too much: %v", err)
	}
	if _, err := h.start().Make(t.Context(), []spec.GPUPiece{{Device: "GPU-00000009-0000-4000-8000-00000000000a", Size: 2 * mib}}); !errdefs.IsNotFound(err) {
		t.Errorf("no device: %v", err)
	}
	if err := errors.Join(h.fill(first, pieces), second.Hold(t.Context(), pieces, files), h.check(second, pieces)); err != nil {
		t.Error(err)
	}
}

// TestHoldFailsAtEachCall has each call of the driver fail once, and kill the keeper once.
func TestHoldFailsAtEachCall(t *testing.T) {
	h := newHost(t)
	for _, call := range []string{
		"cuMemHostRegister", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8",
		"cuMemcpyHtoDAsync", "cuMemImportFromShareableHandle", "cuMemcpyDtoHAsync", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease",
	} {
		for _, action := range []string{"error 700", "exit"} {
			t.Run(call+" "+action, func(t *testing.T) {
				h.t = t
				h.order()
				first := h.start()
				if err := first.Ready(t.Context()); err != nil { // its ring is pinned
					t.Fatal(err)
				}
				h.order(call + " * " + action)
				c := h.start()
				pieces := h.pieces(2, 4, 2)
				steps := func() error {
					if err := c.Ready(t.Context()); err != nil {
						return err
					}
					files, err := c.Make(t.Context(), pieces)
					if err != nil {
						return err
					}
					defer closeAll(files)
					if err := h.fill(c, pieces); err != nil {
						return err
					}
					if call != "cuMemImportFromShareableHandle" {
						return errors.Join(h.check(c, pieces), c.LetGo(t.Context()))
					}
					own, err := first.Make(t.Context(), pieces)
					if err != nil {
						return err
					}
					defer closeAll(own)
					return c.Hold(t.Context(), pieces, own)
				}
				err := steps()
				var failed *driver.CallError
				var died *driver.DiedError
				if action == "exit" && !errors.As(err, &died) || action != "exit" && (!errors.As(err, &failed) || failed.Code != 700 || !strings.HasPrefix(failed.Call, call)) {
					t.Errorf("it comes to: %v", err)
				}
				// What was made is gone with the keeper, if not before.
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if err := first.LetGo(t.Context()); err != nil {
					t.Error(err)
				}
				h.empty(first)
			})
		}
	}
}

// TestHoldEnds: by SIGTERM too.
func TestHoldEnds(t *testing.T) {
	c := newHost(t).start()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Ended():
	case <-time.After(30 * time.Second):
		t.Error("it lives")
	}
	if _, err := c.Room(t.Context(), nil, 0); !errors.As(err, new(*driver.DiedError)) {
		t.Error(err)
	}
}

// TestHoldSoon: each thread, those of the driver too, gets a processor ahead of others, or where nobody may, as all others do.
func TestHoldSoon(t *testing.T) {
	self, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := int32(-20)
	if says, err := exec.Command("nice", "-n", "-20", "true").CombinedOutput(); err != nil || len(says) > 0 {
		want = self.Nice
	}
	h := newHost(t)
	c := h.start()
	pieces := h.pieces(2)
	files, err := c.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	closeAll(files)
	if err := h.fill(c, pieces); err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", c.PID()))
	if err != nil || len(tasks) < 4 {
		t.Fatalf("threads %v, %v", tasks, err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		a, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice != want {
			t.Errorf("thread %d: %+v, %v; want a niceness of %d", id, a, err, want)
		}
	}
}

func TestHoldWithoutDriver(t *testing.T) {
	h := newHost(t)
	t.Setenv("FAKECUDA_DIR", filepath.Join(h.dir, "nothing"))
	var broken *driver.UnusableError
	if err := h.start().Ready(t.Context()); !errors.As(err, &broken) || broken.Call != "cuInit" {
		t.Errorf("no devices: %v", err)
	}
	t.Setenv("LD_LIBRARY_PATH", "/nowhere")
	if err := h.start().Ready(t.Context()); !errors.As(err, &broken) || broken.Fault != driver.Absent || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no driver: %v", err)
	}
}

// TestHoldByHand is without the shim's socket.
func TestHoldByHand(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, files := range [][]*os.File{nil, {null}} {
		command := exec.Command(path, "keeper")
		command.ExtraFiles = files
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(stderr)
		if err := command.Wait(); err == nil || !strings.Contains(string(text), "descriptor 3 is not the shim's") {
			t.Errorf("%v: %s", err, text)
		}
	}
}
