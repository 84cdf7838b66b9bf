package criu

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// RuleOvercommit refuses a reservation of addresses that only a host that overcommits memory can restore.
const RuleOvercommit = "overcommit"

// reserved refuses a private mapping that is larger than memory and swap of the host where the kernel counts all that is mapped (vm.overcommit_memory=2): see [AdaptMemory], which suffices elsewhere.
func (p process) reserved() *failure.Error {
	mode, _ := os.ReadFile("/proc/sys/vm/overcommit_memory") // a kernel without it counts nothing
	return p.reservedWhere(strings.TrimSpace(string(mode)))
}

// reservedWhere is reserved with that vm.overcommit_memory.
func (p process) reservedWhere(mode string) *failure.Error {
	if mode != "2" {
		return nil
	}
	most, err := hostMemory()
	if err != nil || largestPrivate(p.maps) <= most { // smaps takes long to read
		return nil
	}
	f, err := os.Open(dir(p.pid, "smaps"))
	if err != nil {
		return nil
	}
	defer f.Close()
	size := largestReserved(bufio.NewScanner(f))
	if size <= most {
		return nil
	}
	return failure.New(errdefs.ErrFailedPrecondition, "run \"sysctl vm.overcommit_memory=0\" on this host, and on those that restore the snapshot",
		RuleOvercommit+": %s has reserved %d GiB of addresses in one piece, and this host has %d GiB of memory and swap: CRIU could not reserve them again", name(p.pid), size>>30, most>>30).By(RuleOvercommit)
}

// largestReserved returns the size of the largest private mapping in /proc/PID/smaps that was not made with MAP_NORESERVE (nr). Source: proc_pid_smaps(5).
func largestReserved(lines *bufio.Scanner) (largest uint64) {
	var size uint64
	for lines.Scan() {
		line := lines.Text()
		if flags, is := strings.CutPrefix(line, "VmFlags:"); is {
			if !strings.Contains(flags+" ", " nr ") {
				largest = max(largest, size)
			}
			size = 0
		} else if s, private := privateSize(line); private {
			size = s
		}
	}
	return largest
}

// privateSize returns the size of a private mapping by its line in /proc/PID/maps or smaps; false for any other line.
func privateSize(line string) (uint64, bool) {
	words := strings.Fields(line)
	if len(words) < 5 || len(words[1]) != 4 || words[1][3] != 'p' {
		return 0, false
	}
	from, to, _ := strings.Cut(words[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return 0, false
	}
	end, err := strconv.ParseUint(to, 16, 64)
	return end - start, err == nil && end > start
}

// largestPrivate returns the size of the largest private mapping in /proc/PID/maps.
func largestPrivate(maps string) (largest uint64) {
	for line := range strings.Lines(maps) {
		if size, private := privateSize(line); private {
			largest = max(largest, size)
		}
	}
	return largest
}
