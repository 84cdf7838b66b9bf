package runc

import (
	"bytes"
	"fmt"
	"os"
)

// Parent gives the parent of a process. Its errors are those of reading /proc.
func Parent(pid int) (parent int, err error) {
	_, parent, err = stat(pid)
	return parent, err
}

// Ended tells whether a process does not run any more, be it that nobody has waited for it yet.
func Ended(pid int) bool {
	state, _, err := stat(pid)
	return err != nil || state == "Z" || state == "X"
}

// stat gives the state and the parent of a process. Source: proc_pid_stat(5).
func stat(pid int) (state string, parent int, err error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	// The command, before them, is in parentheses and may hold anything.
	_, err = fmt.Sscan(string(line[bytes.LastIndexByte(line, ')')+1:]), &state, &parent)
	return state, parent, err
}
