package criu

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// errorLine matches what CRIU prints of an error: "(00.038615) Error (criu/files-reg.c:1790): text", a pid before Error where it is known.
// Programs that it executes, and what it says when it cannot, have no time.
var errorLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:\([0-9.]+\)\s+)?(?:[0-9]+:\s+)?Error \(([^)]*)\):\s*(.*)$`)
})

// harmless are errors that CRIU prints and survives.
var harmless = []string{
	"Can't setup RLIMIT_NOFILE", // without CAP_SYS_RESOURCE
}

// consequences are errors that only say that something before them went wrong.
var consequences = []string{
	"Dumping FAILED",
	"Restoring FAILED",
	"Dump files (pid:",
	"Unable to freeze tasks",
	"exited, status=",
	"killed by signal",
}

// Reason returns CRIU's own words for why it failed, from the log at path: the first error that is neither harmless nor
// the consequence of another, with its place in CRIU's source. Empty if the log says nothing or cannot be read.
func Reason(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var consequence string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		m := errorLine().FindStringSubmatch(s.Text())
		if m == nil || contains(m[2], harmless) {
			continue
		}
		text := strings.TrimSpace(m[2]) + " (" + m[1] + ")"
		if !contains(m[2], consequences) {
			return text
		}
		if consequence == "" {
			consequence = text
		}
	}
	return consequence
}

func contains(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
}

// Full reports whether the log at path says that a disk is full, in the words of the C library, or was itself cut short by that.
func Full(path string) bool {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil || len(data) == 0 {
		return false
	}
	return strings.Contains(strings.ToLower(string(data)), "no space left on device") || data[len(data)-1] != '\n'
}

// RunID returns the id that CRIU has made for the run with this log; empty if the log does not say.
func RunID(log string) string {
	f, err := os.Open(filepath.Clean(log))
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 1<<20)) // it is among the first
	run := ""
	for lines.Scan() {
		_, id, ok := strings.Cut(lines.Text(), "CRIU run id = ")
		if !ok && run != "" {
			break
		}
		if ok {
			run = strings.TrimSpace(id) // for runc, CRIU makes one when it starts and another for the request, which counts
		}
	}
	return run
}

// Restored reports whether CRIU has said in the log of a restore that it is through.
func Restored(log string) bool {
	data, err := os.ReadFile(filepath.Clean(log))
	return err == nil && bytes.Contains(data, []byte("Restore finished successfully"))
}
