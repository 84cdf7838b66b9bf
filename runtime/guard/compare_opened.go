package guard

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
)

// openFile is a file of the host's that a restored process has: on a granted mount, or in /proc or /sys. CRIU has opened it as root.
type openFile struct {
	link   string // in /proc/PID
	name   string // its path in the process's mount namespace
	access uint32 // unix.R_OK, W_OK and X_OK
	kernel bool   // it is of proc, which looks at its opener by more than its mode
	owner  [2]uint32
}

// opener has files of one process checked.
type opener struct {
	pid   int
	own   string // directory of the process in the container's proc
	maps  map[string]bool
	files []openFile
}

// look notes a file if its opener matters, and compares what does not depend on that.
func (k *check) look(o *opener, link string, m *mountinfo.Info, st unix.Statx_t) error {
	kernel := m.FSType == trust.ProcFS || m.FSType == trust.SysFS || strings.HasPrefix(m.FSType, trust.CgroupFS)
	kind := st.Mode & unix.S_IFMT
	device := kind == unix.S_IFCHR || kind == unix.S_IFBLK
	if !device && !kernel && !k.fromHost(m) {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/", o.pid)
	flags, access, err := o.flags(dir, link)
	if err != nil {
		return err
	}
	if device && flags&unix.O_PATH == 0 && !k.mayOpen(kind == unix.S_IFCHR, int64(st.Rdev_major), int64(st.Rdev_minor)) {
		k.differ(Devices, "the device %d:%d open", st.Rdev_major, st.Rdev_minor)
	}
	if !kernel && !k.fromHost(m) {
		return nil
	}
	name, err := os.Readlink(dir + link)
	if err != nil {
		return fmt.Errorf("look at a file of a restored process: %w", err)
	}
	if kernel {
		within := path.Join(m.Root, strings.TrimPrefix(strings.TrimSuffix(name, " (deleted)"), m.Mountpoint))
		if strings.HasPrefix(link, "fd/") && !trust.IsHarmlessFile(m.FSType, within, uint32(st.Mode), flags) {
			k.differ(Privileges, "%s open, by which the kernel shows more than to the container's user", name)
			return nil
		}
		if m.FSType == trust.ProcFS && (within == o.own || strings.HasPrefix(within, o.own+"/")) {
			return nil // of itself
		}
	}
	o.files = append(o.files, openFile{link: dir + link, name: name, access: access, kernel: m.FSType == trust.ProcFS && kind == unix.S_IFREG && flags&unix.O_PATH == 0,
		owner: [2]uint32{st.Uid, st.Gid}})
	return nil
}

// flags returns with which flags a file is open, and the access that this takes.
func (o *opener) flags(dir, link string) (flags, access uint32, err error) {
	kind, name, _ := strings.Cut(link, "/")
	switch kind {
	case "fd":
		data, err := os.ReadFile(dir + "fdinfo/" + name)
		if err != nil {
			return 0, 0, fmt.Errorf("look at a file of a restored process: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "flags:"); ok {
				n, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
				if err != nil {
					return 0, 0, fmt.Errorf("look at the flags of a file: %w", err)
				}
				flags = uint32(n)
			}
		}
		if flags&unix.O_PATH != 0 {
			return flags, unix.F_OK, nil
		}
		return flags, [4]uint32{unix.R_OK, unix.W_OK, unix.R_OK | unix.W_OK, 0}[flags&unix.O_ACCMODE], nil
	case "map_files":
		if o.maps == nil {
			if o.maps, err = sharedMappings(dir + "maps"); err != nil {
				return 0, 0, err
			}
		}
		if o.maps[name] {
			// The mode of the link is how the file was opened. A mapping that cannot be written to now can be made so, if the file was opened for that. Source: Linux, fs/proc/base.c,
			// proc_map_files_instantiate.
			var st unix.Stat_t
			if err := unix.Lstat(dir+link, &st); err != nil {
				return 0, 0, fmt.Errorf("look at the memory of a restored process: %w", err)
			}
			if st.Mode&unix.S_IWUSR != 0 {
				return unix.O_RDWR, unix.R_OK | unix.W_OK, nil
			}
		}
		return 0, executable, nil
	case "exe":
		return unix.O_PATH, executable, nil
	}
	return unix.O_PATH, unix.X_OK, nil // a directory
}

// executable is access to a file that may be read or executed: the kernel maps programs that cannot be read.
const executable = 1 << 8

// sharedMappings reads which mappings of a process are shared with their file, by the names of map_files.
func sharedMappings(maps string) (map[string]bool, error) {
	f, err := os.Open(maps)
	if err != nil {
		return nil, fmt.Errorf("look at the memory of a restored process: %w", err)
	}
	defer f.Close()
	all := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || !strings.Contains(fields[1], "s") {
			continue
		}
		start, end, _ := strings.Cut(fields[0], "-")
		all[strings.TrimLeft(start, "0")+"-"+strings.TrimLeft(end, "0")] = true
	}
	return all, lines.Err()
}

// fromHost reports whether a mount is one of the host's that the specification has, or below one.
func (k *check) fromHost(m *mountinfo.Info) bool {
	return slices.ContainsFunc(k.Spec.Mounts, func(s specs.Mount) bool {
		at := path.Clean(s.Destination)
		return trust.IsBindMount(s) && (m.Mountpoint == at || strings.HasPrefix(m.Mountpoint, at+"/"))
	})
}

// mayOpen reports whether a container may have a device open. It may if every container has the device, or if its specification allows access to it.
func (k *check) mayOpen(character bool, major, minor int64) bool {
	if k.mayHave(character, major, minor) {
		return true
	}
	if k.Spec.Linux.Resources == nil {
		return false
	}
	kind := map[bool]string{true: "c", false: "b"}[character]
	is := func(n *int64, has int64) bool { return n == nil || *n < 0 || *n == has }
	for _, d := range slices.Backward(k.Spec.Linux.Resources.Devices) { // the last rule about it decides
		if (d.Type == "" || d.Type == "a" || d.Type == kind) && is(d.Major, major) && is(d.Minor, minor) && (d.Access == "" || strings.ContainsAny(d.Access, "rw")) {
			return d.Allow
		}
	}
	return false
}

// credentials are whom the kernel asks about when a file is opened.
type credentials struct {
	user, group  uint32
	groups       []uint32
	capabilities uint64
}

// openers compares the files of a process with what it could have opened itself. Where it could not, the specification's user may have, from which it comes, or root, if programs of
// the container can make it that.
func (k *check) openers(o *opener, v view) error {
	if len(o.files) == 0 {
		return nil
	}
	thread := fmt.Sprintf("/proc/%d", o.pid)
	s, err := status(thread)
	if err != nil {
		return err
	}
	own, err := credentialsOf(s)
	if err != nil {
		return err
	}
	u, l := k.Spec.Process.User, k.Spec.Linux
	users := []credentials{{user: hostID(u.UID, l.UIDMappings), group: hostID(u.GID, l.GIDMappings)}, own}
	for _, g := range u.AdditionalGids {
		users[0].groups = append(users[0].groups, hostID(g, l.GIDMappings))
	}
	if u.UID == 0 {
		users[0].capabilities = k.capabilities
	}
	if !k.Spec.Process.NoNewPrivileges && u.UID != 0 {
		users = append(users, credentials{user: hostID(0, l.UIDMappings), group: hostID(0, l.GIDMappings), capabilities: k.capabilities})
	}
	left := o.files
	for _, c := range users {
		if len(left) == 0 {
			break
		}
		if left, err = k.denied(c, v, left); err != nil {
			return err
		}
	}
	for _, f := range left {
		k.differ(Privileges, "%s open (%s), which its user may not open", f.name, filepath.Base(filepath.Dir(f.link)))
	}
	return nil
}

func hostID(id uint32, mappings []specs.LinuxIDMapping) uint32 {
	n, _ := strconv.ParseUint(onHost(id, mappings), 10, 32) // a number
	return uint32(n)
}

// credentialsOf reads those of a thread by its status.
func credentialsOf(s map[string]string) (c credentials, err error) {
	number := func(text string) (n uint32) {
		m, parseErr := strconv.ParseUint(text, 10, 32)
		err = errors.Join(err, parseErr)
		return uint32(m)
	}
	users, groups := strings.Fields(s["Uid"]), strings.Fields(s["Gid"])
	const fileSystem, all = 3, 4 // Source: proc_pid_status(5)
	if len(users) != all || len(groups) != all {
		return c, errors.New("look at the users of a process: there are none")
	}
	c.user, c.group = number(users[fileSystem]), number(groups[fileSystem])
	for g := range strings.FieldsSeq(s["Groups"]) {
		c.groups = append(c.groups, number(g))
	}
	c.capabilities, _ = strconv.ParseUint(s["CapPrm"], 16, 64) // looked at before
	return c, err
}

// denied returns those of the files that a process with these credentials could not open. With a user namespace its capabilities count for files of its own users.
func (k *check) denied(c credentials, v view, files []openFile) (left []openFile, err error) {
	mapped := len(k.Spec.Linux.UIDMappings) > 0
	capable := c.capabilities
	if mapped {
		c.capabilities = 0
	}
	err = asUser(v.pid, c, files, func(f openFile, open func(f openFile) error) {
		const override, search = 1 << 1, 1 << 2 // CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
		if open(f) == nil || mapped && (capable&override != 0 || capable&search != 0 && f.access&unix.W_OK == 0) && within64(f.owner[0], k.Spec.Linux.UIDMappings) && within64(f.owner[1], k.Spec.Linux.GIDMappings) {
			return
		}
		left = append(left, f)
	})
	return left, err
}

// within64 reports whether an id of the host's is one of the container's.
func within64(id uint32, mappings []specs.LinuxIDMapping) bool {
	return slices.ContainsFunc(mappings, func(m specs.LinuxIDMapping) bool { return id >= m.HostID && id-m.HostID < m.Size })
}

// asUser calls do with each file, and a function by which it is opened in the mount namespace of a process, with these credentials. All of it is done by a thread that ends.
func asUser(pid int, c credentials, files []openFile, do func(f openFile, open func(f openFile) error)) error {
	descriptors := make([]int, len(files))
	for i, f := range files {
		fd, err := unix.Open(f.link, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			for _, fd := range descriptors[:i] {
				_ = unix.Close(fd)
			}
			return fmt.Errorf("look at a file of a restored process: %w", err)
		}
		descriptors[i] = fd
	}
	done := make(chan error)
	go become(done, pid, c, func() {
		for i, f := range files {
			do(f, func(f openFile) error { return tryOpen(descriptors[i], f) })
		}
	})
	err := <-done
	for _, fd := range descriptors {
		_ = unix.Close(fd)
	}
	return err
}

// become gives a thread other credentials, and has it end.
func become(done chan<- error, pid int, c credentials, do func()) {
	runtime.LockOSThread()            // for good: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() { // the first thread, which /proc/self shows, stays at home
		over := make(chan error)
		go become(over, pid, c, do)
		done <- <-over
		runtime.UnlockOSThread()
		return
	}
	err := enterNamespaces(pid)
	if err == nil {
		err = c.assume()
	}
	if err != nil {
		done <- fmt.Errorf("look at files as process %d: %w", pid, err)
		return
	}
	do()
	done <- nil
}

// enterNamespaces brings this thread into the mount namespace of a process.
func enterNamespaces(pid int) error {
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return os.NewSyscallError("setns", unix.Setns(ns, unix.CLONE_NEWNS))
}

// assume gives this thread the credentials, and no more. Go's own functions would give them to all threads.
func (c credentials) assume() error {
	var groups unsafe.Pointer
	if len(c.groups) > 0 {
		groups = unsafe.Pointer(&c.groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(groups), 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	if _, err := unix.SetfsgidRetGid(int(c.group)); err != nil {
		return os.NewSyscallError("setfsgid", err)
	}
	if _, err := unix.SetfsuidRetUid(int(c.user)); err != nil {
		return os.NewSyscallError("setfsuid", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	const wordBits = 32
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range has {
		word := uint32(c.capabilities>>(wordBits*i)) & has[i].Permitted
		has[i] = unix.CapUserData{Effective: word, Permitted: word}
	}
	return os.NewSyscallError("capset", unix.Capset(&header, &has[0]))
}

// tryOpen returns an error if this thread may not open a file, of which it has a descriptor without access, at its path.
func tryOpen(fd int, f openFile) error {
	if f.kernel { // it is harmless to open it
		flags := map[uint32]int{unix.W_OK: unix.O_WRONLY, unix.R_OK | unix.W_OK: unix.O_RDWR}[f.access] // else it is read
		tried, err := unix.Open(f.name, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err == nil {
			return unix.Close(tried)
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			return nil // of a process that has ended
		}
		return err
	}
	// The way to it, unless something else is there by now.
	at, err := unix.Openat2(unix.AT_FDCWD, f.name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		err = unix.Close(at)
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return err
	}
	access := func(mode uint32) error { return unix.Faccessat2(fd, "", mode, unix.AT_EMPTY_PATH|unix.AT_EACCESS) }
	if f.access == executable {
		if access(unix.R_OK) == nil {
			return nil
		}
		return access(unix.X_OK)
	}
	return access(f.access)
}
