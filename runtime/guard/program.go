package guard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// ProgramName is the program that is called as tar and criu, and that reviews CRIU's images.
const ProgramName = "cryo-guard"

// Program returns the path of cryo-guard. It is beside the program at the path beside, or beside the running one if that is empty. An error is of kind FailedPrecondition.
func Program(beside string) (path string, err error) { return Beside(beside, ProgramName) }

// Beside returns the path of the program called name that was installed beside another, which may have been replaced since it has been started: see [Program].
func Beside(other, name string) (path string, err error) {
	if other == "" {
		if other, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find the running program: %w", err)
		}
		other = strings.TrimSuffix(other, " (deleted)")
	} else if other, err = filepath.EvalSymlinks(other); err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	if path, err = exec.LookPath(filepath.Join(filepath.Dir(other), name)); err != nil {
		return "", failure.New(errdefs.ErrFailedPrecondition, "make install puts cryo's programs into one directory", "find the program %s beside %s: %v", name, filepath.Base(other), err)
	}
	return path, nil
}

// BecomeGuard executes cryo-guard with the arguments that this program was called with, its name first. It returns only with an error. Shims of releases that had no cryo-guard have links
// to the shim's own program: see [LinkPrograms].
func BecomeGuard(args []string) error {
	path, err := Program("")
	if err == nil {
		err = unix.Exec(path, args, os.Environ())
	}
	return fmt.Errorf("execute %s: %w", ProgramName, err)
}
