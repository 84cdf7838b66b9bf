package format

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
)

// PagesFileName is the name of a pages file.
func PagesFileName(id uint64) string { return "pages-" + strconv.FormatUint(id, 10) + ".img" }

// Names with a decimal number as printf writes it. They are compiled when they are first asked for: most programs that link this ask for none.
var (
	fileName    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^pages-(0|[1-9][0-9]{0,19})\.img$`) })
	pagemapName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^pagemap-(shmem-)?(0|[1-9][0-9]{0,19})\.img$`) })
)

// IsPagesFileName reports whether name is that of a pages file.
func IsPagesFileName(name string) bool { return fileName().MatchString(name) }

// IsPagemapName reports whether name is that of a pagemap image.
func IsPagemapName(name string) bool {
	_, _, ok := parsePagemapName(name)
	return ok
}

// PagemapPID returns the pid whose memory the pagemap image called name describes; false for shared memory.
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
	parts := pagemapName().FindStringSubmatch(name)
	if parts == nil {
		return false, 0, false
	}
	id, err := strconv.ParseUint(parts[2], 10, 64)
	return parts[1] != "", id, err == nil
}

// ReadPagemapDir reads all pagemap images of a directory, in the order of [ComparePagemapNames], and checks them against the
// pages files: each belongs to exactly one pagemap and has exactly the length the pagemap says. A pagemap that needs no
// pages and whose pages file CRIU therefore never made is left out.
func ReadPagemapDir(dir string, pageSize int64) ([]*Pagemap, error) {
	found, files, err := list(dir, pageSize) // pages file -> pagemap that owns it, empty: none yet
	if err != nil {
		return nil, err
	}
	kept := found[:0]
	for _, m := range found {
		file := PagesFileName(m.Pages)
		owner, exists := files[file]
		if owner != "" {
			return nil, MalformedImage(m.Name, "names %s, which %s names as well", file, owner)
		}
		if !exists && m.Count == 0 {
			continue
		}
		if err := checkSize(dir, m, pageSize); err != nil {
			return nil, err
		}
		files[file] = m.Name
		kept = append(kept, m)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if files[file] == "" {
			return nil, MalformedImage(file, "belongs to no pagemap")
		}
	}
	return kept, nil
}

// ReadPagemaps reads all pagemap images of a directory as [ReadPagemapDir] does, of a dump whose pages were sent elsewhere: there
// must be no pages files.
func ReadPagemaps(dir string, pageSize int64) ([]*Pagemap, error) {
	found, files, err := list(dir, pageSize)
	if err != nil {
		return nil, err
	}
	for file := range files {
		return nil, MalformedImage(file, "is there although all pages were sent elsewhere")
	}
	owners := make(map[uint64]string)
	for _, m := range found {
		if owner, twice := owners[m.Pages]; twice {
			return nil, MalformedImage(m.Name, "names %s, which %s names as well", PagesFileName(m.Pages), owner)
		}
		owners[m.Pages] = m.Name
	}
	return slices.DeleteFunc(found, func(m *Pagemap) bool { return m.Count == 0 }), nil
}

// list reads the pagemap images of a directory and gives the names of its pages files, as keys.
func list(dir string, pageSize int64) ([]*Pagemap, map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list CRIU images: %w", err)
	}
	var found []*Pagemap
	files := make(map[string]string)
	for _, e := range entries {
		switch {
		case IsPagesFileName(e.Name()):
			files[e.Name()] = ""
		case IsPagemapName(e.Name()):
			m, err := readFile(dir, e, pageSize)
			if err != nil {
				return nil, nil, err
			}
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b *Pagemap) int { return ComparePagemapNames(a.Name, b.Name) })
	return found, files, nil
}

func readFile(dir string, e fs.DirEntry, pageSize int64) (*Pagemap, error) {
	if !e.Type().IsRegular() {
		return nil, MalformedImage(e.Name(), "is not a regular file")
	}
	f, err := os.Open(filepath.Join(dir, e.Name()))
	if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	return ReadPagemap(e.Name(), f, pageSize)
}

func checkSize(dir string, m *Pagemap, pageSize int64) error {
	file := PagesFileName(m.Pages)
	fi, err := os.Lstat(filepath.Join(dir, file))
	switch {
	case os.IsNotExist(err):
		return MalformedImage(m.Name, "needs %d pages of %s, which is missing", m.Count, file)
	case err != nil:
		return fmt.Errorf("read CRIU images: %w", err)
	case !fi.Mode().IsRegular():
		return MalformedImage(file, "is not a regular file")
	case fi.Size() != m.Count*pageSize:
		return MalformedImage(file, "has %d bytes where %s describes %d; pages that CRIU compressed are not understood",
			fi.Size(), m.Name, m.Count*pageSize)
	}
	return nil
}
