package criu

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Minimum is the oldest CRIU that cryo works with: what older ones lack on current kernels was not tried.
const Minimum = "4.1"

// Linux 6.16 took a socket option away that CRIU before 4.2 wants of every TCP and UDP socket (SO_PASSCRED, now only of
// unix sockets): from [SocketsKernel] on, [ForSockets] is needed to dump containers with such sockets.
const (
	ForSockets    = "4.2"
	SocketsKernel = "6.16"
)

// Missing returns the error that there is no CRIU that can be used at path. Its kind is FailedPrecondition.
func Missing(path string, err error) error {
	return failure.New(errdefs.ErrFailedPrecondition, InstallHint(Needed(kernel())), "CRIU is missing (%s): %w", path, err)
}

// tooOld returns the error that the CRIU at path is of an old version. Its kind is FailedPrecondition.
func tooOld(path, version string) error {
	needed := Needed(kernel())
	return failure.New(errdefs.ErrFailedPrecondition, InstallHint(needed), "CRIU %s (%s) is too old: %s or later is needed", version, path, needed)
}

// InstallHint returns how to get a version.
func InstallHint(version string) string {
	return "install CRIU " + version + " or later; contrib/criu/install does on Debian. Where it is neither in PATH nor in /opt/cryo/criu, name it in /etc/cryo/config.toml, which the shim reads: criu = \"/path/to/criu\""
}

// Needed is the oldest version with which cryo works fully on a kernel, by its release; empty: not known.
func Needed(kernel string) string {
	if AtLeast(kernel, SocketsKernel) {
		return ForSockets
	}
	return Minimum
}

// kernel is the release of the one that runs.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// ParseVersion takes the version out of what `criu --version` prints.
func ParseVersion(output string) (string, error) {
	for line := range strings.Lines(output) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("find the version in what criu --version printed: %q", output)
}

// AtLeast reports whether version a is b or later, comparing numbers between dots and ignoring what follows them.
func AtLeast(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		if x, y := number(as, i), number(bs, i); x != y {
			return x > y
		}
	}
	return true
}

func number(parts []string, i int) int {
	if i >= len(parts) {
		return 0
	}
	n := 0
	for _, r := range parts[i] {
		if r < '0' || r > '9' || n > 1e6 {
			break
		}
		n = 10*n + int(r-'0')
	}
	return n
}
