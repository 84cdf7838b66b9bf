package guard

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// opens starts a process of a user in a mount namespace of its own, which has files open that root has opened for it: lines of redirections of bash.
func opens(t *testing.T, user string, redirections ...string) (pid int, v view) {
	t.Helper()
	become := ""
	if user != "0" {
		become = "setpriv --reuid=" + user + " --regid=" + user + " --clear-groups --bounding-set=-all --inh-caps=-all "
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "bash", "-c", strings.Join(redirections, "\n")+"\nexec "+become+"sleep 60")
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid = cmd.Process.Pid
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(name) == "sleep\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the process did not come: %s", said.String())
		}
	}
	v, closed, err := viewOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed)
	return pid, v
}

// TestOpened has files of the host's open in a process, which root has opened: those are refused that neither it nor the specification's user could open.
func TestOpened(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "opened") // whose way is open to all
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, f := range []struct {
		name  string
		mode  os.FileMode
		owner int
	}{{"all", 0o644, 0}, {"roots", 0o600, 0}, {"users", 0o600, 1000}, {"others", 0o604, 1001}, {"private/", 0o700, 0}, {"private/all", 0o666, 0}} {
		path := filepath.Join(dir, f.name)
		if strings.HasSuffix(f.name, "/") {
			err = errors.Join(err, os.Mkdir(path, 0o700))
		} else {
			err = errors.Join(err, os.WriteFile(path, nil, 0o600))
		}
		err = errors.Join(err, os.Chown(path, f.owner, f.owner), os.Chmod(path, f.mode))
	}
	if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	other := child(t)
	mounted := []specs.Mount{{Destination: dir, Type: "bind", Source: dir}}
	redirections := []string{
		"mount --bind " + dir + " " + dir,
		"exec 10<" + dir + "/all", "exec 11>>" + dir + "/all", "exec 12<" + dir + "/roots", "exec 13<>" + dir + "/users", "exec 14<" + dir + "/others", "exec 15<" + dir + "/private/all", "exec 16<" + dir,
		"exec 17<" + dir + "/private", "exec 20</proc/meminfo", "exec 21</proc/$$/stat", "exec 22</proc/$$/maps", fmt.Sprintf("exec 23</proc/%d/environ", other), "exec 24</proc/kallsyms", "exec 25</proc/$$/pagemap",
		"exec 26</proc/1/stat", "exec 27</sys/devices/system/cpu/online", "exec 28</sys/kernel/notes", "exec 29</dev/kmsg", "exec 30</dev/null",
	}
	kernels := []string{"/proc/kallsyms open, by which", "/pagemap open, by which", "/sys/kernel/notes open, by which", "the device 1:11"}
	environ, roots, private := "/environ open", dir+"/roots open", []string{dir + "/private/all open", dir + "/private open"}
	user := specs.User{UID: 1000, GID: 1000}
	override := &specs.LinuxCapabilities{Bounding: []string{"CAP_DAC_OVERRIDE"}}
	for name, c := range map[string]struct {
		user    string // of the process
		process specs.Process
		mounts  []specs.Mount
		mapped  bool
		wanted  []string // and nothing more
	}{
		"user":                        {"1000", specs.Process{User: user, NoNewPrivileges: true, Capabilities: override}, mounted, false, append(private, dir+"/all open", roots, environ)},
		"nothing granted":             {"1000", specs.Process{User: user, NoNewPrivileges: true}, nil, false, []string{environ}},
		"of root without capability":  {"1000", specs.Process{NoNewPrivileges: true}, mounted, false, []string{environ}},
		"root without capability":     {"0", specs.Process{NoNewPrivileges: true}, mounted, false, nil},
		"of root with the capability": {"1000", specs.Process{NoNewPrivileges: true, Capabilities: override}, mounted, false, []string{environ}},
		"may become root":             {"1000", specs.Process{User: user, Capabilities: override}, mounted, false, []string{environ}},
		"of another user":             {"1000", specs.Process{User: specs.User{UID: 1001, GID: 1001}, NoNewPrivileges: true}, mounted, false, append(private, dir+"/all open", roots, environ)},
		"with a user namespace":       {"1000", specs.Process{Capabilities: override, NoNewPrivileges: true}, mounted, true, append(private, dir+"/all open", roots, environ)},
	} {
		t.Run(name, func(t *testing.T) {
			pid, v := opens(t, c.user, redirections...)
			k := &check{found: map[string]bool{}}
			k.Spec = &specs.Spec{Process: &c.process, Mounts: c.mounts, Linux: &specs.Linux{}}
			if k.capabilities = granted(k.Spec); c.mapped {
				k.Spec.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 1000, Size: 2}}
				k.Spec.Linux.GIDMappings = k.Spec.Linux.UIDMappings
			}
			if err := k.files(pid, v); err != nil {
				t.Fatal(err)
			}
			for _, words := range append(slices.Clone(kernels), c.wanted...) {
				if !slices.ContainsFunc(k.differences, func(d string) bool { return strings.Contains(d, words) }) {
					t.Errorf("nothing of %q", words)
				}
			}
			if len(k.differences) != len(kernels)+len(c.wanted) {
				t.Errorf("%d differences: %s", len(k.differences), strings.Join(k.differences, "\n"))
			}
		})
	}
}

// TestLogin has a process with a login id that this one does not have.
func TestLogin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	for command, differs := range map[string]bool{"true": false, "echo 12345 >/proc/self/loginuid": true} {
		pid, _ := opens(t, "0", "if "+command+"; then :; fi", "exec 10</dev/null")
		if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", pid)); differs && string(data) != "12345" {
			t.Skipf("the login id cannot be set: %q, %v", data, err)
		}
		k := &check{found: map[string]bool{}}
		if err := k.login(fmt.Sprintf("/proc/%d", pid)); err != nil || (len(k.differences) > 0) != differs {
			t.Errorf("%s: %q, %v", command, k.differences, err)
		}
	}
}

// TestMapped: a file that is mapped shared, and was opened to be written, can be written to by its mapping after mprotect(2), whatever the mapping is now.
func TestMapped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		open, kind, prot int
		want             uint32
	}{
		{os.O_RDWR, unix.MAP_SHARED, unix.PROT_READ | unix.PROT_WRITE, unix.R_OK | unix.W_OK}, {os.O_RDWR, unix.MAP_SHARED, unix.PROT_READ, unix.R_OK | unix.W_OK},
		{os.O_RDONLY, unix.MAP_SHARED, unix.PROT_READ, executable}, {os.O_RDWR, unix.MAP_PRIVATE, unix.PROT_READ | unix.PROT_WRITE, executable},
	} {
		f, err := os.OpenFile(path, test.open, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := unix.Mmap(int(f.Fd()), 0, 4096, test.prot, test.kind)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		start := uintptr(unsafe.Pointer(&b[0]))
		o := &opener{pid: os.Getpid()}
		_, access, err := o.flags("/proc/self/", fmt.Sprintf("map_files/%x-%x", start, start+4096))
		if err != nil || access != test.want {
			t.Errorf("%+v: access %#x (%v)", test, access, err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) }) // not before: the kernel keeps what it has shown of an address
	}
}
