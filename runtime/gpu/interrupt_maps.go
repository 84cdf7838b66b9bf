package gpu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// name is the page's in /proc/PID/maps. A memfd has no name elsewhere, so it always counts as deleted.
const name = "/memfd:cryo-interrupt (deleted)"

const (
	// maxPages is how many pages of a process are looked at: one for each copy of the header's state, so one for the
	// program and one for each library that has its own.
	maxPages = 16
	// maxLine is longer than any line that can be meant.
	maxLine = 4096
)

// errTooMany says that there are more pages than maxPages.
var errTooMany = errors.New("too many mappings")

// mapping is a line of /proc/PID/maps.
type mapping struct{ start, end, inode uint64 }

// file is the mapping's name in /proc/PID/map_files.
func (m mapping) file() string { return fmt.Sprintf("map_files/%x-%x", m.start, m.end) }

// mappings returns those that have the page's name and can be the page: shared, writable and from the start of the memory;
// one for each memory. It stops with errTooMany, and with the reader's error, and gives what it had by then.
func mappings(maps io.Reader) ([]mapping, error) {
	var found []mapping
	seen := map[uint64]bool{}
	lines := bufio.NewReaderSize(maps, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		whole := err == nil || errors.Is(err, io.EOF)
		if m, ok := parse(line); whole && ok && !seen[m.inode] {
			if len(found) == maxPages {
				return found, errTooMany
			}
			seen[m.inode] = true
			found = append(found, m)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n') // the rest of a long line
		}
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
	}
}

// parse reads a line of the form "7f8a1000-7f8a2000 rw-s 00000000 00:01 1034   /memfd:cryo-interrupt (deleted)".
// Source: proc_pid_maps(5).
func parse(line []byte) (m mapping, ok bool) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if !bytes.HasSuffix(line, []byte(name)) { // nearly all of them
		return m, false
	}
	fields := strings.SplitN(string(line), " ", 6)
	if len(fields) != 6 || strings.TrimLeft(fields[5], " ") != name {
		return m, false
	}
	if mode := fields[1]; len(mode) != 4 || mode[:2] != "rw" || mode[3] != 's' {
		return m, false
	}
	if offset, err := strconv.ParseUint(fields[2], 16, 64); err != nil || offset != 0 {
		return m, false
	}
	start, end, _ := strings.Cut(fields[0], "-")
	var errs [3]error
	m.start, errs[0] = strconv.ParseUint(start, 16, 64)
	m.end, errs[1] = strconv.ParseUint(end, 16, 64)
	m.inode, errs[2] = strconv.ParseUint(fields[4], 10, 64)
	return m, errors.Join(errs[:]...) == nil && m.start < m.end
}
