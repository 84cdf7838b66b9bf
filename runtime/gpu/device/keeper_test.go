package device

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/cryo-project/cryo/image/record"
	"golang.org/x/sys/unix"
)

// TestHoldZero: zeros are said and not copied, unless the driver does not take the kernel that finds them.
func TestHoldZero(t *testing.T) {
	for _, test := range []struct {
		name, order string
		want        int64
	}{{"found", "", 2 * mib}, {"not taken", "cuModuleLoadData * error 218 always", 0}} {
		t.Run(test.name, func(t *testing.T) {
			h := newHost(t)
			if test.order != "" {
				h.Order(test.order)
			}
			owner, c, pieces := h.start(), h.start(), h.pieces(2, 4)
			files, err := owner.Make(t.Context(), pieces)
			if err != nil {
				t.Fatal(err)
			}
			defer CloseAll(files)
			if err := h.fill(owner, pieces); err != nil {
				t.Fatal(err)
			}
			if err := c.Hold(t.Context(), pieces, files, nil); err != nil {
				t.Fatal(err)
			}
			if err := h.check(c, pieces); err != nil || h.zero != test.want {
				t.Errorf("%d bytes were said to be zero, want %d; %v", h.zero, test.want, err)
			}
		})
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
	defer CloseAll(files)
	if err := h.fill(first, pieces); err != nil {
		t.Fatal(err)
	}
	if err := second.Hold(t.Context(), pieces, files, nil); err != nil {
		t.Fatal(err)
	}
	CloseAll(files)
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
	defer CloseAll(old)
	made, err := to.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(made)
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
	h.Order("cuMemcpyDtoDAsync * error 700")
	if err := h.start().Copy(t.Context(), pieces[0], old[0], made[0]); !errors.As(err, new(*CallError)) {
		t.Error(err)
	}
	h.Order()
	if err := errors.Join(c.Copy(t.Context(), pieces[0], old[0], made[0]), h.check(to, pieces)); err != nil {
		t.Error(err)
	}
	CloseAll(old)
	CloseAll(made)
	if err := errors.Join(from.Close(), to.Close()); err != nil {
		t.Error(err)
	}
	h.empty(c)
}

func TestHoldWithoutRoom(t *testing.T) {
	h := newHost(t)
	first, second := h.start(), h.start()
	pieces := h.pieces(2, 24)
	files, err := first.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(files)
	if err := errors.Join(h.fill(first, pieces), second.Hold(t.Context(), pieces, files, nil)); err != nil {
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
	defer CloseAll(files)
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for name, test := range map[string]struct {
		piece record.GPUPiece
		file  *os.File
		call  string
		code  int
	}{
		"no memory":                {pieces[0], plain, "cuMemImportFromShareableHandle", 1},
		"of another device":        {record.GPUPiece{Device: h.Devices[1], Size: 4 * mib}, files[0], "cuMemImportFromShareableHandle", 101},
		"smaller than it is said":  {record.GPUPiece{Device: h.Devices[0], Size: 6 * mib}, files[0], "cuMemMap", 1},
		"larger than there is":     {record.GPUPiece{Device: h.Devices[0], Size: 1 << 40}, files[0], "cuMemMap", 1},
		"memory of somebody's own": {pieces[1], os.Stdin, "cuMemImportFromShareableHandle", 1},
	} {
		var call *CallError
		err := h.start().Hold(t.Context(), []record.GPUPiece{pieces[0], test.piece}, []*os.File{files[0], test.file}, nil)
		if !errors.As(err, &call) || !strings.Contains(err.Error(), "device memory 1, ") || call.Call != test.call || call.Code != test.code || !strings.HasPrefix(call.Name, "CUDA_ERROR_") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.start().Make(t.Context(), h.pieces(total+2)); !errdefs.IsAborted(err) || !strings.Contains(err.Error(), "OUT_OF_MEMORY") {
		t.Errorf("too much: %v", err)
	}
	if _, err := h.start().Make(t.Context(), []record.GPUPiece{{Device: "GPU-00000009-0000-4000-8000-00000000000a", Size: 2 * mib}}); !errdefs.IsNotFound(err) {
		t.Errorf("no device: %v", err)
	}
	if err := errors.Join(h.fill(first, pieces), second.Hold(t.Context(), pieces, files, nil), h.check(second, pieces)); err != nil {
		t.Error(err)
	}
}

// TestHoldFailsAtEachCall has each call of the driver fail once, and kill the keeper once.
func TestHoldFailsAtEachCall(t *testing.T) {
	for _, call := range []string{
		"cuMemHostRegister", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8",
		"cuMemcpyHtoDAsync", "cuMemImportFromShareableHandle", "cuMemcpyDtoHAsync", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease",
	} {
		for _, action := range []string{"error 700", "exit"} {
			t.Run(call+" "+action, func(t *testing.T) {
				h := newHost(t)
				first := h.start()
				if err := first.Ready(t.Context()); err != nil { // its ring is pinned
					t.Fatal(err)
				}
				h.Order("cuModuleLoadData * error 218 always", call+" * "+action) // looking for zeros calls it too, and goes without what fails
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
					defer CloseAll(files)
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
					defer CloseAll(own)
					return c.Hold(t.Context(), pieces, own, nil)
				}
				err := steps()
				var failed *CallError
				var died *DiedError
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
	if _, err := c.Room(t.Context(), nil, 0); !errors.As(err, new(*DiedError)) {
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
	CloseAll(files)
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
	var broken *UnusableError
	if err := h.start("FAKECUDA_DIR=/nowhere").Ready(t.Context()); !errors.As(err, &broken) || broken.Call != "cuInit" {
		t.Errorf("no devices: %v", err)
	}
	if err := h.start("LD_LIBRARY_PATH=/nowhere").Ready(t.Context()); !errors.As(err, &broken) || broken.Fault != FaultAbsent || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no driver: %v", err)
	}
}

// TestHoldByHand is without the shim's socket.
func TestHoldByHand(t *testing.T) {
	h := newHost(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, files := range [][]*os.File{nil, {null}} {
		command := exec.Command(h.Helper(), "keeper")
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
