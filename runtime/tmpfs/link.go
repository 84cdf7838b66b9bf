package tmpfs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// linkBase is where directories with links are. It is not in the bundle, because a user namespace's root must reach it.
const linkBase = "/run/cryo/tar"

// Link makes sure that there is a directory in which tar is the program given by its absolute path, and gives that directory.
// It is one for each program, of root's, and stays.
func Link(program string) (dir string, err error) { return link(linkBase, program) }

func link(base, program string) (dir string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a directory with CRIU's tar: %w", err)
		}
	}()
	digest := sha256.Sum256([]byte(program))
	dir = filepath.Join(base, fmt.Sprintf("%x", digest[:8]))
	for _, d := range []string{filepath.Dir(base), base, dir} {
		if err := own(d); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, Name)
	if target, err := os.Readlink(path); err == nil && target == program {
		return dir, nil
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Symlink(program, fresh); err != nil {
		return "", err
	}
	return dir, os.Rename(fresh, path)
}

// own makes a directory that only this user writes to, or sees that it is one.
func own(dir string) error {
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
