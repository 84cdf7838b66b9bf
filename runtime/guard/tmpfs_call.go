package guard

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// How CRIU calls tar, up to the directory. Source: CRIU, criu/filesystems.c.
var (
	createArgs = []string{"--create", "--gzip", "--no-unquote", "--no-wildcards", "--one-file-system", "--check-links",
		"--preserve-permissions", "--sparse", "--numeric-owner", "--directory"}
	extractArgs = []string{"--extract", "--gzip", "--no-unquote", "--no-wildcards", "--directory"}
)

// TarMain is tar as CRIU calls it, and gives its exit status. Called in any other way, it becomes the tar that comes next in PATH.
// What went wrong goes to standard error, which CRIU has made its log, in the form of that.
func TarMain(args []string) int {
	dir, run := recognize(args[1:])
	if run == nil {
		err := BecomeProgram(args)
		fmt.Fprintf(os.Stderr, "%s: %v\n", TarName, err)
		return 127 // as a shell has it
	}
	// CRIU waits for us and has no other process to do it; where it was killed, so shall we be.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	// A container that is restored may allow few processes, and threads count.
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
	if err := run(dir); err != nil {
		fmt.Fprintf(os.Stderr, "Error (%s): %s: %v\n", TarName, dir, err)
		return 2 // as GNU tar has it
	}
	return 0
}

// recognize returns which directory is meant and what is to be done with it; nothing unless this is one of CRIU's two calls.
func recognize(args []string) (dir string, run func(dir string) error) {
	if n := len(createArgs); len(args) == n+2 && slices.Equal(args[:n], createArgs) && args[n+1] == "." {
		return args[n], func(dir string) error { return create(dir, os.Stdout) }
	}
	if n := len(extractArgs); len(args) == n+1 && slices.Equal(args[:n], extractArgs) {
		return args[n], func(dir string) error {
			if err := fresh(dir); err != nil {
				return err
			}
			return extract(dir, os.Stdin)
		}
	}
	return "", nil
}
