package pages

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// FileName is the name of a pages file.
func FileName(id uint64) string { return "pages-" + strconv.FormatUint(id, 10) + ".img" }

// Names with a decimal number as printf writes it.
var (
	fileName    = regexp.MustCompile(`^pages-(0|[1-9][0-9]{0,19})\.img$`)
	pagemapName = regexp.MustCompile(`^pagemap-(shmem-)?(0|[1-9][0-9]{0,19})\.img$`)
)

// IsFileName says whether name is that of a pages file.
func IsFileName(name string) bool { return fileName.MatchString(name) }

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
	switch {
	case aShared == bShared:
		return cmp.Compare(aID, bID)
	case aShared:
		return 1
	}
	return -1
}

func parsePagemapName(name string) (shared bool, id uint64, ok bool) {
	parts := pagemapName.FindStringSubmatch(name)
	if parts == nil {
		return false, 0, false
	}
	id, err := strconv.ParseUint(parts[2], 10, 64)
	return parts[1] != "", id, err == nil
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
