package guard

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// As calls do on a thread that is in the mount namespace of the process pid, and has its user, groups and capabilities: do opens and makes no file that the process could not open
// or make itself. A path from there leads to nothing of the host's, unless it leads through a link of /proc: open files with RESOLVE_NO_MAGICLINKS. do must not block, and must not
// start goroutines. A descriptor that it opens is the caller's, and stays valid.
func As(pid int, do func() error) error {
	s, err := status(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return err
	}
	c, err := credentialsOf(s)
	if err != nil {
		return err
	}
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/self/ns/user", &own); err != nil {
		return fmt.Errorf("look at this process's user namespace: %w", err)
	}
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/user", pid), &other); err != nil {
		return fmt.Errorf("look at the user namespace of process %d: %w", pid, err)
	}
	if own.Ino != other.Ino { // its capabilities count for files of its own users only, which are its user's as a rule
		c.capabilities = 0
	}
	done := make(chan error)
	var failed error
	go become(done, pid, c, func() { failed = do() })
	if err := <-done; err != nil {
		return err
	}
	return failed
}
