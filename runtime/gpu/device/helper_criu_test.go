package device

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/gputest"
)

// criu runs CRIU on the images of a test; it is skipped where there is none.
type criu struct {
	t            *testing.T
	path, images string
}

func newCRIU(t *testing.T) criu {
	t.Helper()
	for _, path := range []string{os.Getenv("CRYO_CRIU"), "/opt/cryo/criu/bin/criu", "criu"} {
		if found, err := exec.LookPath(path); path != "" && err == nil {
			return criu{t, found, t.TempDir()}
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("no CRIU: run make deps")
	}
	t.Skip("no CRIU: run make deps")
	return criu{}
}

// run gives the end of CRIU's log with an error.
func (c criu) run(args ...string) (string, error) {
	c.t.Helper()
	log := filepath.Join(c.images, args[0]+".log")
	args = append(args, "--images-dir", c.images, "--log-file", log, "-v4", "--manage-cgroups=ignore", "--network-lock=skip", "--file-locks")
	command := exec.Command(c.path, args...)
	out, err := command.CombinedOutput()
	text, _ := os.ReadFile(log)
	var errors []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "Error") {
			errors = append(errors, line)
		}
	}
	return string(out) + strings.Join(errors, ""), err
}

// TestDump is why all this is done: CRIU cannot take device memory along, and what the driver has brought into host
// memory it can.
func TestDump(t *testing.T) {
	r := newRig(t, 3)
	c := newCRIU(t)
	hidden := filepath.Join(r.Dir, r.Devices[2])
	if err := os.Rename(hidden, hidden+"-hidden"); err != nil {
		t.Fatal(err)
	}
	a := r.Run("--processes", "2", "--mib", "4")
	if err := os.Rename(hidden+"-hidden", hidden); err != nil {
		t.Fatal(err)
	}
	before := a.Works()
	leader := strconv.Itoa(a.PIDs[0])

	k := r.start()
	done(t)(k.Lock(t.Context(), a.PIDs, time.Second))
	if log, err := c.run("dump", "--tree", leader, "--leave-running"); err == nil || !strings.Contains(log, "Dump files") {
		t.Fatalf("a dump without the driver's checkpoint: %v: %s", err, log)
	}
	done(t)(k.Checkpoint(t.Context(), a.PIDs))
	if log, err := c.run("dump", "--tree", leader); err != nil {
		t.Fatalf("dump: %v: %s", err, log)
	}
	gputest.Eventually(t, "it is killed", func() bool { return syscall.Kill(a.PIDs[0], 0) != nil && syscall.Kill(a.PIDs[1], 0) != nil })
	if err := k.Close(); err != nil {
		t.Errorf("close: %v", err)
	}

	if log, err := c.run("restore", "--restore-detached"); err != nil {
		t.Fatalf("restore: %v: %s", err, log)
	}
	a.Waits()
	k = r.start()
	states(t, k, a.PIDs, StateCheckpointed)
	done(t)(k.Restore(t.Context(), a.PIDs, []DevicePair{{r.Devices[0], r.Devices[2]}, {r.Devices[1], r.Devices[0]}}))
	done(t)(k.Unlock(t.Context(), a.PIDs))
	after := a.Works()
	if after.Life != before.Life || after.State.Processes[1].Devices[0] != r.Devices[2] {
		t.Errorf("before %+v, after %+v", before, after)
	}
	gputest.Eventually(t, "it counts", func() bool { return a.Works().State.Processes[1].Ticks > before.State.Processes[1].Ticks+3 })
}
