package runc

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Claim is the cgroup of a container that is being restored: what one attempt has made itself, and may end and remove. Its directories have a mark with a random
// value, which is in a file of the bundle too, so that another process can end the attempt when this one has died.
type Claim struct {
	path  string // of the file with the record
	of    record
	roots []string // where hierarchies are mounted
}

// record is the claim as it is written down.
type record struct {
	Group string // path of the cgroup in each hierarchy; empty: it is not known, or systemd's
	Mark  string
	Since uint64 // when it began, in ticks since the host's start
	// Absent are directories of cgroups that CRIU makes by its images, and that were not there when the attempt began. A directory comes before those in it.
	Absent []string
}

const (
	claimFile = "cryo-cgroup"          // in the bundle
	claimMark = "trusted.cryo.restore" // extended attribute of a directory that an attempt has made
	ruleInUse = "cgroup-in-use"        // refuses a cgroup with processes
	ticks     = 100                    // a second has; Linux, USER_HZ, the same on all architectures that have runc
	groupRoot = "/sys/fs/cgroup"       // Source: runc, github.com/opencontainers/cgroups, defaultCgroupRoot
	cgroups1  = "cgroup"               // kinds of file systems, see cgroups(7)
	cgroups2  = "cgroup2"
)

// MakeClaim makes the cgroup of a container that is about to be restored, where there is none, and marks it. It refuses one with processes by an error of kind FailedPrecondition:
// runc would, too, and they are another container's. An empty one that exists stays as it is: the container is restored into it, and it is not removed.
//
// group is the specification's path. One that is not absolute is for runc or systemd to choose. named are the cgroups that CRIU's images name: CRIU makes them, if it does not take them for the
// container's own.
func MakeClaim(bundle, group string, named ...string) (*Claim, error) {
	c := &Claim{path: filepath.Join(bundle, claimFile)}
	if clean := filepath.Clean(group); strings.HasPrefix(group, "/") && clean != "/" {
		c.of.Group = clean
	}
	now := unix.Timespec{}
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	c.of.Mark, c.of.Since = rand.Text(), uint64(now.Nano())*ticks/1e9
	var err error
	if c.roots, err = hierarchies(); err != nil {
		return nil, err
	}
	for _, dir := range c.dirs() {
		if pids, err := members(dir); err != nil || len(pids) > 0 {
			if err == nil {
				err = failure.New(errdefs.ErrFailedPrecondition, "restore the container with a cgroup of its own: cryo restore gives it one; or remove the container that is in this one",
					ruleInUse+": its cgroup %s is in use by %d processes, which are not its own", c.of.Group, len(pids)).By(ruleInUse)
			}
			return nil, err
		}
	}
	if err := c.write(); err != nil { // before there is anything to remove
		return nil, err
	}
	for _, dir := range c.dirs() {
		if err := c.make(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("make a cgroup: %w", err), c.End())
		}
	}
	if c.of.Absent = c.absent(named); len(c.of.Absent) > 0 {
		if err := c.write(); err != nil {
			return nil, errors.Join(err, c.End())
		}
	}
	return c, nil
}

func (c *Claim) write() error {
	data, err := json.Marshal(c.of)
	if err == nil {
		err = os.WriteFile(c.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down the cgroup of a restore: %w", err)
	}
	return nil
}

// absent lists which directories of cgroups, and of those above, do not exist.
func (c *Claim) absent(groups []string) (dirs []string) {
	for _, root := range c.roots {
		for _, group := range groups {
			var missing []string
			for at := filepath.Clean("/" + group); at != "/"; at = filepath.Dir(at) {
				dir := filepath.Join(root, at)
				if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
					break
				}
				missing = append(missing, dir)
			}
			slices.Reverse(missing)
			dirs = append(dirs, missing...)
		}
	}
	return dirs
}

// make makes and marks a directory, unless it exists.
func (c *Claim) make(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); errors.Is(err, unix.EROFS) {
		return nil
	} else if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) || errors.Is(err, unix.EROFS) {
		return nil // runc says whether it can do without
	} else if err != nil {
		return err
	}
	if err := unix.Setxattr(dir, claimMark, []byte(c.of.Mark), unix.XATTR_CREATE); err != nil {
		return errors.Join(&fs.PathError{Op: "mark", Path: dir, Err: err}, os.Remove(dir))
	}
	return nil
}

// End ends what this process has started in the cgroup, and removes the directories that the attempt has made. It says what is left: processes take a moment to go.
// Processes of others stay, and so does the cgroup then.
func (c *Claim) End() error {
	own := descendants(os.Getpid())
	return c.end(func(pid int) bool { return slices.Contains(own, pid) })
}

// Keep ends the claim on the cgroup of a container that runs. In hierarchies that runc does not use there is no process, and the directories are removed.
func (c *Claim) Keep() error {
	for _, dir := range c.dirs() {
		if c.made(dir) {
			_ = unix.Rmdir(dir) // one with processes is in use
		}
	}
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep a cgroup: %w", err)
	}
	return nil
}

// EndClaim is [Claim.End] for an attempt whose process has died: it ends what has begun since in the directories that the attempt has made. There may be no such attempt.
func EndClaim(bundle string) error {
	c := &Claim{path: filepath.Join(bundle, claimFile)}
	data, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &c.of)
	}
	if err == nil {
		c.roots, err = hierarchies()
	}
	if err != nil {
		return fmt.Errorf("find the cgroup of a restore: %w", err)
	}
	groups := slices.DeleteFunc(c.dirs(), func(dir string) bool { return !c.made(dir) })
	return c.end(func(pid int) bool {
		started, err := Started(pid)
		return err == nil && started >= c.of.Since && slices.ContainsFunc(groups, func(dir string) bool {
			pids, err := members(dir)
			return err == nil && slices.Contains(pids, pid)
		})
	})
}

// end kills the processes of the cgroup that are the attempt's, and removes the directories that are when there are none left.
func (c *Claim) end(own func(pid int) bool) error {
	left := 0
	for _, dir := range c.dirs() {
		pids, err := members(dir)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if own(pid) && !Ended(pid) {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
				left++
			}
		}
	}
	if left > 0 {
		return fmt.Errorf("end what a restore has left in the cgroup %s: %d processes are there still: %w", c.of.Group, left, errdefs.ErrUnavailable)
	}
	for _, dir := range c.dirs() {
		if err := c.remove(dir); err != nil {
			return err
		}
	}
	for _, dir := range slices.Backward(c.of.Absent) {
		_ = unix.Rmdir(dir) // one with processes, or with cgroups in it, is in use
	}
	return c.Keep()
}

// remove removes a directory that the attempt has made, with all below it. Where another has a process there it takes the mark off instead.
func (c *Claim) remove(dir string) error {
	if !c.made(dir) {
		return nil
	}
	var below []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			below = append(below, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look into a cgroup: %w", err)
	}
	for _, dir := range slices.Backward(below) {
		err = unix.Rmdir(dir)
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	if errors.Is(err, unix.EBUSY) {
		if pids, unread := members(dir); unread == nil && len(pids) > 0 && !slices.ContainsFunc(pids, Ended) {
			return unix.Removexattr(dir, claimMark)
		}
	}
	if err != nil {
		return fmt.Errorf("remove the cgroup %s: %w", dir, err)
	}
	return nil
}

// made reports whether the attempt has made a directory.
func (c *Claim) made(dir string) bool {
	value := make([]byte, 2*len(c.of.Mark)+1)
	n, err := unix.Getxattr(dir, claimMark, value)
	return err == nil && c.of.Mark != "" && string(value[:n]) == c.of.Mark
}

// dirs returns the cgroup's directories, in each hierarchy.
func (c *Claim) dirs() (dirs []string) {
	if c.of.Group == "" {
		return nil
	}
	for _, root := range c.roots {
		dirs = append(dirs, filepath.Join(root, c.of.Group))
	}
	return dirs
}

// members lists the processes of a cgroup and of those below it; none if there is no such cgroup.
func members(dir string) (pids []int, err error) {
	pids, err = inside(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look into a cgroup: %w", err)
	}
	return pids, nil
}

// hierarchies returns where cgroups are mounted: once with version 2, once for each hierarchy of version 1.
func hierarchies() (roots []string, err error) {
	seen := map[[2]int]bool{}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter(cgroups1, cgroups2))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range mounts {
		device := [2]int{m.Major, m.Minor}
		if seen[device] || m.Mountpoint != groupRoot && filepath.Dir(m.Mountpoint) != groupRoot {
			continue
		}
		seen[device] = true
		roots = append(roots, m.Mountpoint)
	}
	return roots, nil
}
