package guard

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The names by which the program is called.
const (
	TarName  = "tar"
	CRIUName = "criu"
)

// base is where directories with links are. It is not in the bundle, because a user namespace's root must reach it.
const base = "/run/cryo/programs"

// LinkPrograms makes sure that there is a directory in which tar and criu are the program given by its absolute path, and gives that directory.
// It is one for each program, of root's, and stays.
func LinkPrograms(program string) (dir string, err error) { return link(base, program) }

func link(base, program string) (dir string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a directory with what runc and CRIU call: %w", err)
		}
	}()
	digest := sha256.Sum256([]byte(program))
	dir = filepath.Join(base, fmt.Sprintf("%x", digest[:8]))
	for _, d := range []string{filepath.Dir(base), base, dir} {
		if err := ownDirectory(d); err != nil {
			return "", err
		}
	}
	for _, name := range []string{TarName, CRIUName} {
		path := filepath.Join(dir, name)
		if target, err := os.Readlink(path); err == nil && target == program {
			continue
		}
		fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err := os.Symlink(program, fresh); err != nil {
			return "", err
		}
		if err := os.Rename(fresh, path); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// ownDirectory makes a directory that only this user writes to, or sees that it is one.
func ownDirectory(dir string) error {
	switch err := os.Mkdir(dir, 0o755); {
	case err == nil:
		return os.Chmod(dir, 0o755) // whatever the umask
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory of this user's alone", dir)
	}
	return nil
}

// FindProgram returns the first program of a name in PATH that is no stand-in. The error is [exec.ErrNotFound] if there is none.
func FindProgram(name string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if strings.HasPrefix(filepath.Clean(dir)+"/", base+"/") || !filepath.IsAbs(dir) {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// BecomeProgram executes the program that this one stands in for, with the arguments that it was called with, its name first. It returns only with an error.
func BecomeProgram(args []string) error {
	path, err := FindProgram(filepath.Base(args[0]))
	if err == nil {
		err = unix.Exec(path, args, os.Environ())
	}
	return fmt.Errorf("execute %s: %w", args[0], err)
}
