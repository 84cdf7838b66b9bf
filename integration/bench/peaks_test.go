package main

import (
	"crypto/sha256"
	"io"
	"testing"
	"testing/iotest"
)

func TestRole(t *testing.T) {
	for _, test := range []struct {
		want string
		args []string
	}{
		{"cryo restore", []string{"--json", "restore", "REF"}},
		{"shim", []string{"-namespace", "default", "-id", "x", "-address", "/run/containerd/containerd.sock"}},
		{"shim delete", []string{"-namespace", "default", "-id", "x", "-bundle", "/b", "delete"}},
		{"shim pages", []string{"pages", "--dir", "/d"}},
		{"shim (forks)", []string{"/proc/self/fd/0"}},
		{"shim (forks)", []string{"/tmp/.criu.mntns.2fFFzQ/mnt-0000000125"}},
		{"shim", nil},
	} {
		program := "shim"
		if test.want[0] == 'c' {
			program = "cryo"
		}
		if got := role(program, test.args); got != test.want {
			t.Errorf("%v: %q, want %q", test.args, got, test.want)
		}
	}
}

func TestProc(t *testing.T) {
	if got := hwm("Name:\tcryo\nVmPeak:\t  999 kB\nVmHWM:\t  123 kB\nVmRSS:\t 5 kB\n"); got != 123<<10 {
		t.Errorf("VmHWM %d", got)
	}
	if got := pss("55a8 [rollup]\nRss:  9 kB\nPss:                7 kB\nPss_Dirty: 3 kB\n"); got != 7<<10 {
		t.Errorf("Pss %d", got)
	}
}

// TestRepeated reads the same bytes however they are asked for: their digest is told to the registry before they are sent.
func TestRepeated(t *testing.T) {
	const size = 2*1000 + 77
	piece := noise()[:1000]
	sum := func(wrap func(io.Reader) io.Reader) (n int64, digest [32]byte) {
		h := sha256.New()
		n, err := io.Copy(h, wrap(&repeated{piece: piece, size: size}))
		if err != nil {
			t.Fatal(err)
		}
		return n, [32]byte(h.Sum(nil))
	}
	n, whole := sum(func(r io.Reader) io.Reader { return r })
	m, single := sum(iotest.OneByteReader)
	if n != size || m != size || whole != single {
		t.Errorf("%d and %d bytes of %d, equal: %v", n, m, size, whole == single)
	}
}

func TestSubjects(t *testing.T) {
	all, err := parseSubjects("256,2048, 2048m")
	if err != nil || len(all) != 3 || all[0] != (subject{256, false}) || all[2] != (subject{2048, true}) {
		t.Errorf("%v, %v", all, err)
	}
	if all[0].name() == all[1].name() || all[1].name() == all[2].name() {
		t.Error("subjects have the same name")
	}
	for _, bad := range []string{"x", "-1", "0", "m", "256k"} {
		if _, err := parseSubjects(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
