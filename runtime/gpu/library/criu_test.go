package library

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cryo-project/cryo/integration/gputest"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// criu runs CRIU on the images of a test, and gives the errors of its log with an error.
func criu(t *testing.T, images string, args ...string) {
	t.Helper()
	var path string
	for _, name := range []string{os.Getenv("CRYO_CRIU"), "/opt/cryo/criu/bin/criu", "criu"} {
		if found, err := exec.LookPath(name); name != "" && err == nil {
			path = found
			break
		}
	}
	if path == "" && os.Getenv("CI") == "" {
		t.Skip("no CRIU: run make deps")
	}
	log := filepath.Join(images, args[0]+".log")
	args = append(args, "--images-dir", images, "--log-file", log, "-v4", "--manage-cgroups=ignore", "--network-lock=skip", "--file-locks")
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		text, _ := os.ReadFile(log)
		var found []string
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "Error") {
				found = append(found, line)
			}
		}
		t.Fatalf("criu %s: %v: %s%s", args[0], err, out, strings.Join(found, ""))
	}
}

// newHelper starts one for the rig's devices.
func newHelper(t *testing.T, r *rig) *device.Helper {
	t.Helper()
	k, err := device.StartHelper(t.Context(), r.Helper())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Kill(); _ = k.Close() })
	return k
}

// save has the driver save what a process has, and load bring it back.
func (a *app) save(k *device.Helper) {
	a.t.Helper()
	a.driver(k.Lock(a.t.Context(), []int{a.PID}, patient))
	a.driver(k.Checkpoint(a.t.Context(), []int{a.PID}))
}

func (a *app) load(k *device.Helper, pairs ...device.DevicePair) {
	a.t.Helper()
	a.driver(k.Restore(a.t.Context(), []int{a.PID}, pairs))
	a.driver(k.Unlock(a.t.Context(), []int{a.PID}))
}

func (a *app) driver(outcomes []device.Outcome, err error) {
	a.t.Helper()
	for _, o := range outcomes {
		if o.Code != 0 {
			err = errors.Join(err, errors.New(o.Name))
		}
	}
	a.Must(err)
}

// TestDump hands over, has the driver save what is left, dumps and kills the program, and gives the restored one its memory back, on another GPU.
func TestDump(t *testing.T) {
	r := newRig(t, 256, 256)
	k := newHelper(t, r)
	other := filepath.Join(r.Dir, r.Devices[1])
	if err := os.Rename(other, other+"-hidden"); err != nil {
		t.Fatal(err)
	}
	r.Env = append(r.Env, localMemory...)
	a := r.run("--blocks", "1,5,9", "--storm", "3")
	if err := os.Rename(other+"-hidden", other); err != nil {
		t.Fatal(err)
	}
	a.Does("limit 0 4096")
	pieces, files := a.take()
	kept := r.elsewhere(1, files)
	closeFiles(files)
	a.save(k)
	images := t.TempDir()
	criu(t, images, "dump", "--tree", strconv.Itoa(a.PID))
	<-a.Ended
	criu(t, images, "restore", "--restore-detached")
	t.Cleanup(func() { _ = syscall.Kill(a.PID, syscall.SIGKILL) })
	a.load(k, device.DevicePair{Old: r.Devices[0], New: r.Devices[1]})
	a.Waits()
	p, _ := a.dial()
	if table, err := p.Table(); err != nil || len(table) != len(pieces) || table[0].Address != pieces[0].Address || table[0].Device != r.Devices[1] {
		t.Fatalf("%+v, %v", table, err)
	}
	a.Must(p.HangUp())
	a.back(pieces, kept)
	a.works()
	a.limits(4096)
	before := a.Does("check").State.Processes[0].Rounds
	gputest.Eventually(t, "its threads go on", func() bool { return a.Does("check").State.Processes[0].Rounds > before })
	pieces, files = a.take()
	a.back(pieces, files)
	a.works()
}
