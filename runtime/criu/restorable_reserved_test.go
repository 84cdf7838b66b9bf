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

// TestReserved has this process reserve more addresses than the host has memory, in a way that counts and in one that does not. It matters where the kernel counts all that is mapped.
func TestReserved(t *testing.T) {
	most, err := hostMemory()
	if err != nil {
		t.Fatal(err)
	}
	size := uintptr(most) + 1<<30
	for name, test := range map[string]struct {
		flags int
		mode  string
		rule  string
	}{"reserved": {0, "2", RuleOvercommit}, "noreserve": {unix.MAP_NORESERVE, "2", ""}, "by a guess": {0, "0", ""}, "always": {0, "1", ""}} {
		at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_NONE, uintptr(unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|test.flags), ^uintptr(0), 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		refused := read(os.Getpid()).reservedWhere(test.mode)
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, at, size, 0); errno != 0 {
			t.Fatal(errno)
		}
		rule := ""
		if refused != nil {
			rule = failure.Of(refused).Rule
		}
		if rule != test.rule {
			t.Errorf("%s: %v", name, refused)
		}
	}
}

// TestSharedCode maps a page that is shared, executable and not writable below all code of this process, as PHP 8.4 does.
func TestSharedCode(t *testing.T) {
	const low = 0x10000 // below a program that is not position-independent
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, low, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	err := CheckRestorable([]int{os.Getpid()})
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, at, 4096, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err == nil || failure.Of(err).Rule != RuleCode {
		t.Errorf("shared code: %v", err)
	}
	if err := CheckRestorable([]int{os.Getpid()}); err != nil {
		t.Errorf("without it: %v", err)
	}
	for text, want := range map[string]bool{
		"400000-401000 r-xp 0 00:00 0\n500000-501000 r-xs 0 00:00 0\n": false,
		"400000-401000 rwxs 0 00:00 0\n":                               false,
		"300000-301000 r--s 0 00:00 0\n400000-401000 --xs 0 00:00 0\n": true,
	} {
		if got := sharedCode(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
