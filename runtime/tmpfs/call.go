package tmpfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Name is the name by which CRIU calls tar.
const Name = "tar"

// How CRIU calls tar, up to the directory. Source: CRIU, criu/filesystems.c.
var (
	createArgs = []string{"--create", "--gzip", "--no-unquote", "--no-wildcards", "--one-file-system", "--check-links",
		"--preserve-permissions", "--sparse", "--numeric-owner", "--directory"}
	extractArgs = []string{"--extract", "--gzip", "--no-unquote", "--no-wildcards", "--directory"}
)

// Main is tar as CRIU calls it, and gives its exit status. Called in any other way, it becomes the tar that comes next in PATH.
// What went wrong goes to standard error, which CRIU has made its log, in the form of that.
func Main(args []string) int {
	dir, run := recognize(args[1:])
	if run == nil {
		err := become(args)
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
		return 127 // as a shell has it
	}
	// CRIU waits for us and has nobody else to do it; where it was killed, so shall we be.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	// A container that is restored may allow few processes, and threads count.
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
	if err := run(dir); err != nil {
		fmt.Fprintf(os.Stderr, "Error (%s): %s: %v\n", Name, dir, err)
		return 2 // as GNU tar has it
	}
	return 0
}

// recognize tells which directory is meant and what is to be done with it; nothing unless this is one of CRIU's two calls.
func recognize(args []string) (dir string, run func(dir string) error) {
	if n := len(createArgs); len(args) == n+2 && slices.Equal(args[:n], createArgs) && args[n+1] == "." {
		return args[n], func(dir string) error { return create(dir, os.Stdout) }
	}
	if n := len(extractArgs); len(args) == n+1 && slices.Equal(args[:n], extractArgs) {
		return args[n], func(dir string) error { return extract(dir, os.Stdin) }
	}
	return "", nil
}

// become executes the tar that comes after ours in PATH. It returns only if there is none.
func become(args []string) error {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if strings.HasPrefix(filepath.Clean(dir)+"/", linkBase+"/") || !filepath.IsAbs(dir) {
			continue
		}
		if err := unix.Exec(filepath.Join(dir, Name), args, os.Environ()); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("execute %s: %w", filepath.Join(dir, Name), err)
		}
	}
	return exec.ErrNotFound
}
