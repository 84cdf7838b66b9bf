package pages

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// FileName is the name of a pages file.
func FileName(id uint64) string { return "pages-" + strconv.FormatUint(id, 10) + ".img" }

// IsFileName says whether name is that of a pages file.
func IsFileName(name string) bool {
	digits, ok := between(name, "pages-", ".img")
	return ok && canonical(digits)
}

// IsPagemapName says whether name is that of a pagemap image.
func IsPagemapName(name string) bool {
	_, _, ok := parsePagemapName(name)
	return ok
}

// PagemapPID gives the pid whose memory the pagemap image called name describes; false for shared memory.
func PagemapPID(name string) (int, bool) {
	shared, id, ok := parsePagemapName(name)
	return int(id), ok && !shared && id <= 1<<31
}

// ComparePagemapNames orders pagemap images: processes by pid, then shared memory by number.
func ComparePagemapNames(a, b string) int {
	aShared, aID, _ := parsePagemapName(a)
	bShared, bID, _ := parsePagemapName(b)
	if aShared != bShared {
		if aShared {
			return 1
		}
		return -1
	}
	return cmp.Compare(aID, bID)
}

func parsePagemapName(name string) (shared bool, id uint64, ok bool) {
	digits, ok := between(name, "pagemap-", ".img")
	if !ok {
		return false, 0, false
	}
	digits, shared = strings.CutPrefix(digits, "shmem-")
	if !canonical(digits) {
		return false, 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 64)
	return shared, id, err == nil
}

func between(s, prefix, suffix string) (string, bool) {
	s, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(s, suffix)
}

// canonical says whether s is a decimal number as printf writes it.
func canonical(s string) bool {
	if s == "" || len(s) > 20 || s[0] == '0' && s != "0" {
		return false
	}
	return strings.Trim(s, "0123456789") == ""
}

// ReadDir reads those pagemap images of a directory that have pages, in the order of [ComparePagemapNames]. Each has a pages file of its own. Whether
// that is there, or was sent elsewhere, it does not say.
func ReadDir(dir string, pageSize int64) (found []*Pagemap, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list CRIU images: %w", err)
	}
	owners := make(map[uint64]string) // of pages files
	for _, e := range entries {
		if !IsPagemapName(e.Name()) {
			continue
		}
		m, err := readFile(dir, e, pageSize)
		if err != nil {
			return nil, err
		}
		if owner, twice := owners[m.Pages]; twice {
			return nil, Malformed(m.Name, "names %s, which %s names as well", FileName(m.Pages), owner)
		}
		owners[m.Pages] = m.Name
		if m.Count > 0 {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b *Pagemap) int { return ComparePagemapNames(a.Name, b.Name) })
	return found, nil
}

func readFile(dir string, e fs.DirEntry, pageSize int64) (*Pagemap, error) {
	if !e.Type().IsRegular() {
		return nil, Malformed(e.Name(), "is not a regular file")
	}
	f, err := os.Open(filepath.Join(dir, e.Name()))
	if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	return ReadPagemap(e.Name(), f, pageSize)
}
