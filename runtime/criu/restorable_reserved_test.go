package criu

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

func TestLargestReserved(t *testing.T) {
	const text = `7f0000000000-7f1000000000 ---p 00000000 00:00 0
Size:           67108864 kB
VmFlags: mr mw me nr sd
7f2000000000-7f2800000000 ---p 00000000 00:00 0
VmFlags: mr mw me sd
7f3000000000-7f4000000000 rw-s 00000000 00:01 7 /dev/zero (deleted)
VmFlags: rd wr sh mr mw me ms
`
	if got := largestReserved(bufio.NewScanner(strings.NewReader(text))); got != 32<<30 {
		t.Errorf("%d", got)
	}
	if got := largestPrivate(text); got != 64<<30 {
		t.Errorf("%d", got)
	}
}

// TestReserved has this process reserve more addresses than the host has memory, in a way that counts and in one that does not.
func TestReserved(t *testing.T) {
	if mode, _ := os.ReadFile("/proc/sys/vm/overcommit_memory"); strings.TrimSpace(string(mode)) != "0" {
		t.Skip("this host overcommits memory otherwise")
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		t.Fatal(err)
	}
	size := uintptr((uint64(host.Totalram)+uint64(host.Totalswap))*uint64(host.Unit)) + 1<<30
	for name, test := range map[string]struct {
		flags int
		rule  string
	}{"reserved": {0, RuleOvercommit}, "noreserve": {unix.MAP_NORESERVE, ""}} {
		at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_NONE, uintptr(unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|test.flags), ^uintptr(0), 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		err := CheckRestorable([]int{os.Getpid()})
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, at, size, 0); errno != 0 {
			t.Fatal(errno)
		}
		rule := ""
		if err != nil {
			rule = failure.Of(err).Rule
		}
		if rule != test.rule {
			t.Errorf("%s: %v", name, err)
		}
	}
}
