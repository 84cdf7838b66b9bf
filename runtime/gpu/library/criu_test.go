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

	"github.com/cryo-project/cryo/runtime/gpu/driver"
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
func newHelper(t *testing.T, r *rig) *driver.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), driver.Name)
	c := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", path, "./cmd/cryo-gpu-keeper")
	c.Dir, c.Env = "../../..", append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list strings.Builder
	for i, uuid := range r.devices {
		list.WriteString(uuid + " " + strconv.Itoa(i) + " Fake 9.0 268435456\n")
	}
	r.write("devices", list.String())
	t.Setenv("LD_LIBRARY_PATH", fakeDir)
	t.Setenv("FAKECUDA_DIR", r.dir)
	t.Setenv("FAKECUDA_DEVICES", filepath.Join(r.dir, "devices"))
	k, err := driver.Start(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Kill(); _ = k.Close() })
	return k
}

// save has the driver save what a process has, and load bring it back.
func (a *app) save(k *driver.Client) {
	a.t.Helper()
	a.driver(k.Lock(a.t.Context(), []int{a.pid}, patient))
	a.driver(k.Checkpoint(a.t.Context(), []int{a.pid}))
}

func (a *app) load(k *driver.Client, pairs ...driver.Pair) {
	a.t.Helper()
	a.driver(k.Restore(a.t.Context(), []int{a.pid}, pairs))
	a.driver(k.Unlock(a.t.Context(), []int{a.pid}))
}

func (a *app) driver(outcomes []driver.Outcome, err error) {
	a.t.Helper()
	for _, o := range outcomes {
		if o.Code != 0 {
			err = errors.Join(err, errors.New(o.Name))
		}
	}
	a.must(err)
}

// TestDump hands over, has the driver save what is left, dumps and kills the program, and gives the restored one its memory back, on another GPU.
func TestDump(t *testing.T) {
	r := newRig(t, 256, 256)
	k := newHelper(t, r)
	other := filepath.Join(r.dir, r.devices[1])
	if err := os.Rename(other, other+"-hidden"); err != nil {
		t.Fatal(err)
	}
	r.env = localMemory
	a := r.run("--blocks", "1,5,9", "--storm", "3")
	if err := os.Rename(other+"-hidden", other); err != nil {
		t.Fatal(err)
	}
	a.does("limit 0 4096")
	pieces, files := a.take()
	kept := r.elsewhere(1, files)
	closeFiles(files)
	a.save(k)
	images := t.TempDir()
	criu(t, images, "dump", "--tree", strconv.Itoa(a.pid))
	<-a.ended
	criu(t, images, "restore", "--restore-detached")
	t.Cleanup(func() { _ = syscall.Kill(a.pid, syscall.SIGKILL) })
	a.load(k, driver.Pair{Old: r.devices[0], New: r.devices[1]})
	a.waits()
	p, _ := a.dial()
	if table, err := p.Table(); err != nil || len(table) != len(pieces) || table[0].Address != pieces[0].Address || table[0].Device != r.devices[1] {
		t.Fatalf("%+v, %v", table, err)
	}
	a.must(p.HangUp())
	a.back(pieces, kept)
	a.works()
	a.limits(4096)
	before := a.does("check").State.Processes[0].Rounds
	eventually(t, "its threads go on", func() bool { return a.does("check").State.Processes[0].Rounds > before })
	pieces, files = a.take()
	a.back(pieces, files)
	a.works()
}
