package criu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is what /proc contains of one process. Its descriptors are those of all its threads.
type process struct {
	pid int
	// descriptors are its open files. They may have been closed since.
	descriptors []openDescriptor
	mappings    []mapping // of files, and shared with them
	maps        string    // the text of /proc/PID/maps
}

// openDescriptor is an open file.
type openDescriptor struct {
	number string
	target string // of the link in /proc/PID/fd
}

// mapping is a mapped file. Source: proc_pid_maps(5).
type mapping struct {
	addresses string // the name in /proc/PID/map_files
	file      string // MAJOR:MINOR:INODE, as in a line of a lock
	path      string
}

func dir(pid int, rest ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(pid)}, rest...)...)
}

func name(pid int) string {
	text, _ := os.ReadFile(dir(pid, "comm")) // none of a process that has ended
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(text)))
}

// read returns what there is of a process; nothing of one that has ended.
func read(pid int) process {
	p := process{pid: pid, descriptors: descriptors(pid)}
	if maps, err := os.ReadFile(dir(pid, "maps")); err == nil {
		p.maps, p.mappings = string(maps), parseMaps(string(maps))
	}
	return p
}

func descriptors(pid int) (all []openDescriptor) {
	d, err := os.Open(dir(pid, "fd"))
	if err != nil {
		return nil
	}
	defer d.Close()
	numbers, _ := d.Readdirnames(-1) // in part, of a process that ends
	for _, number := range numbers {
		if target, err := os.Readlink(dir(pid, "fd", number)); err == nil {
			all = append(all, openDescriptor{number, target})
		}
	}
	return all
}

// parseMaps returns the files of /proc/PID/maps that are mapped with MAP_SHARED, each once. CRIU restores private mappings without fault (tried with 4.2).
func parseMaps(text string) (all []mapping) {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		words := strings.Fields(line[:at]) // addresses, permissions, offset, device, inode
		if len(words) != 5 || !strings.HasSuffix(words[1], "s") {
			continue
		}
		m := mapping{addresses: words[0], file: words[3] + ":" + words[4], path: unescape(line[at:])}
		if !seen[m.file+m.path] {
			seen[m.file+m.path] = true
			all = append(all, m)
		}
	}
	return all
}

// unescape returns a path of which the kernel has escaped newlines.
func unescape(path string) string { return strings.ReplaceAll(path, `\012`, "\n") }

// information is what /proc/PID/fdinfo contains of an open file. Source: proc_pid_fdinfo(5).
type information struct {
	writable bool
	mount    int
	locks    []string // the files of its POSIX locks, as MAJOR:MINOR:INODE
}

func inform(pid int, number string) (information, error) {
	text, err := os.ReadFile(dir(pid, "fdinfo", number))
	if err != nil {
		return information{}, err
	}
	return parseInformation(string(text)), nil
}

func parseInformation(text string) (i information) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		words := strings.Fields(value)
		switch {
		case key == "flags" && len(words) == 1:
			flags, _ := strconv.ParseUint(words[0], 8, 64)
			i.writable = flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0
		case key == "mnt_id" && len(words) == 1:
			i.mount, _ = strconv.Atoi(words[0])
		case key == "lock" && len(words) >= 6 && words[1] == "POSIX": // 1: POSIX ADVISORY WRITE PID FILE START END
			i.locks = append(i.locks, words[5])
		}
	}
	return i
}

// openRegular opens a regular file of /proc/PID for reading, and nothing else: no device, FIFO or socket.
func openRegular(path string) (*os.File, error) {
	handle, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(handle)
	var stat unix.Stat_t
	if err := unix.Fstat(handle, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is no regular file: %w", path, unix.EINVAL)
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", handle), os.O_RDONLY|unix.O_CLOEXEC, 0)
}
