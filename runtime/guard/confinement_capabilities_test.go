package guard

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestBound: CRIU keeps the capabilities that it needs, and those of the specification; a program that it executes has no others.
func TestBound(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	sets := func(capabilities *specs.LinuxCapabilities) (all []uint64) {
		text := onThread(func() string {
			if err := bound(capabilities); err != nil {
				return err.Error()
			}
			own, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", unix.Gettid()))
			if err != nil {
				return err.Error()
			}
			out, err := exec.Command("cat", "/proc/self/status").Output()
			return string(own) + string(out) + fmt.Sprint(err)
		})
		for line := range strings.Lines(text) {
			if name, value, _ := strings.Cut(line, ":"); strings.HasPrefix(name, "Cap") {
				n, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, n)
			}
		}
		const each = 5 // sets, of the thread and of the program
		if len(all) != 2*each {
			t.Fatalf("%d sets: %s", len(all), text)
		}
		return all
	}
	for _, set := range sets(nil) {
		for _, gone := range []int{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_BOOT, unix.CAP_SYSLOG, unix.CAP_MAC_ADMIN, unix.CAP_MAC_OVERRIDE, unix.CAP_AUDIT_READ, unix.CAP_LINUX_IMMUTABLE,
			unix.CAP_DAC_READ_SEARCH, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_WAKE_ALARM, unix.CAP_SYS_PACCT, unix.CAP_SYS_TTY_CONFIG} {
			if set&(1<<gone) != 0 {
				t.Errorf("capability %d is there: %x", gone, set)
			}
		}
	}
	all := sets(&specs.LinuxCapabilities{Bounding: []string{"CAP_SYSLOG"}, Effective: []string{"CAP_AUDIT_WRITE"}})
	const bounding, permitted = 3, 6 // of the thread, and of the program
	for _, at := range []int{bounding, permitted} {
		for _, kept := range []int{unix.CAP_SYSLOG, unix.CAP_AUDIT_WRITE, unix.CAP_SYS_ADMIN, unix.CAP_CHOWN} {
			if all[at]&(1<<kept) == 0 {
				t.Errorf("capability %d is gone: %x", kept, all[at])
			}
		}
	}
}

// TestNeeded: each capability that CRIU keeps has a reason.
func TestNeeded(t *testing.T) {
	seen := map[int]bool{}
	for _, n := range needed {
		if n.reason == "" || seen[n.capability] {
			t.Errorf("capability %d: %q", n.capability, n.reason)
		}
		seen[n.capability] = true
	}
}
