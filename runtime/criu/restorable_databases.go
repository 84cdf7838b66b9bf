package criu

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// RestoreWarnings returns what a user should know of processes before a snapshot is taken that [CheckRestorable] does not refuse.
func RestoreWarnings(pids []int) (all []string) {
	for _, pid := range pids {
		for _, path := range databases(pid) {
			text := fmt.Sprintf("%s has the SQLite database %s open, on the root file system: its inode number differs after a restore, and SQLite then refuses to write until the program opens it again. Put it on a volume", name(pid), path)
			if !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return all
}

// databases lists the SQLite databases that a process has open for writing on its root file system. SQLite compares the device and inode of an open database with those of its name. Source: SQLite,
// src/os_unix.c, fileHasMoved.
func databases(pid int) (paths []string) {
	root := -1
	for _, d := range descriptors(pid) {
		if !strings.HasPrefix(d.target, "/") || strings.HasSuffix(d.target, " (deleted)") {
			continue
		}
		i, err := inform(pid, d.number)
		if err != nil || !i.writable {
			continue
		}
		if root < 0 {
			text, _ := os.ReadFile(dir(pid, "mountinfo"))
			root = parseRoot(string(text))
		}
		if i.mount == root && isDatabase(dir(pid, "fd", d.number)) {
			paths = append(paths, d.target)
		}
	}
	return paths
}

// parseRoot returns the id of the mount at / that is uppermost in /proc/PID/mountinfo; 0 if there is none. Source: proc_pid_mountinfo(5).
func parseRoot(text string) (id int) {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 4 && words[4] == "/" {
			id, _ = strconv.Atoi(words[0])
		}
	}
	return id
}

// isDatabase reports whether an open file is a database of SQLite, by its first bytes. Source: https://www.sqlite.org/fileformat.html, "The Database Header".
func isDatabase(path string) bool {
	const header = "SQLite format 3\x00"
	f, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	start := make([]byte, len(header))
	_, err = io.ReadFull(f, start)
	return err == nil && string(start) == header
}
