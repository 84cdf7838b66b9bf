package gpu

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestAlive(t *testing.T) {
	for _, test := range []struct {
		name, stat, status string
		want               bool
	}{
		{"running", "101 (a) b) S 1 1 1 0 -1 4194304 0", "ShdPnd:\t0000000000000000\n", true},
		{"zombie", "101 (app) Z 1 1 1 0 -1 4194304 0", "", false},
		{"exiting", "101 (app) D 1 1 1 0 -1 4194308 0", "", false},
		{"being killed", "101 (app) D 1 1 1 0 -1 4194304 0", "SigPnd:\t0000000000000100\n", false},
		{"with another signal", "101 (app) S 1 1 1 0 -1 4194304 0", "SigPnd:\t0000000000000200\n", true},
		{"cut short", "101 (app) S", "", false},
	} {
		tr := newTree(t)
		tr.process(101)
		tr.write("proc/101/stat", test.stat)
		tr.write("proc/101/status", test.status)
		if got := (proc{tr.root}).alive(101); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
	if (proc{t.TempDir()}).alive(101) {
		t.Error("one that there is not")
	}
}

// TestTheKernelsOwn reads this machine's /proc: a live process, and one that has ended and was not waited for.
func TestTheKernelsOwn(t *testing.T) {
	host := proc{"/"}
	self, err := host.process(os.Getpid())
	if err != nil || self.Command == "" || !host.alive(os.Getpid()) {
		t.Errorf("got %+v, %v", self, err)
	}
	if touches, err := host.touches(os.Getpid()); err != nil || touches {
		t.Errorf("touches: %v, %v", touches, err)
	}
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); host.alive(child.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a zombie is alive")
		}
	}
	if _, err := host.touches(child.Process.Pid); ended(err) != nil {
		t.Errorf("a zombie: %v", err)
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := host.process(child.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is gone: %v", err)
	}
}

func TestTouches(t *testing.T) {
	for _, test := range []struct {
		name, maps, fd string
		want           bool
	}{
		{"nothing", plainMaps, "/dev/null", false},
		{"library", cudaMaps, "/dev/null", true},
		{"device mapped", plainMaps + "7f000000-7f001000 rw-s 00000000 00:05 99   /dev/nvidia-uvm\n", "/dev/null", true},
		{"device opened", plainMaps, "/dev/nvidiactl", true},
		{"another library", plainMaps + "7f000000-7f001000 r-xp 00000000 00:31 4321   /usr/lib/libcudart.so.13\n", "/dev/null", false},
	} {
		tr := newTree(t)
		tr.write("proc/101/maps", test.maps)
		tr.link("proc/101/fd/0", test.fd)
		if got, err := (proc{tr.root}).touches(101); got != test.want || err != nil {
			t.Errorf("%s: got %v, %v", test.name, got, err)
		}
	}
}

func TestManaged(t *testing.T) {
	for _, test := range []struct {
		name, maps string
		want       bool
	}{
		{"none", plainMaps, false},
		{"a context", cudaMaps + "204a00000-204c00000 rw-s 204a00000 00:05 99   /dev/nvidia-uvm\n", false},
		{"managed memory that the driver refuses", cudaMaps + "7ff620000000-7ff624000000 rw-s 7ff620000000 00:05 99   /dev/nvidia-uvm\n", false},
		{"a pool", cudaMaps + "302000000-456c000000 rw-s 302000000 00:05 99   /dev/nvidia-uvm\n", true},
		{"another file", cudaMaps + "302000000-456c000000 rw-s 302000000 00:05 99   /srv/dev/nvidia-uvm\n", false},
	} {
		tr := newTree(t)
		tr.write("proc/101/maps", test.maps)
		if got, err := (proc{tr.root}).managed(101); got != test.want || err != nil {
			t.Errorf("%s: got %v, %v", test.name, got, err)
		}
	}
}
