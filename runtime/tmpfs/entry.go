package tmpfs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Types of entries: pax(1) in POSIX.1-2024, section "ustar Interchange Format", and GNU tar's manual, appendix D.
const (
	typeFile      = '0'
	typeHardLink  = '1'
	typeSymlink   = '2'
	typeCharacter = '3'
	typeBlock     = '4'
	typeDirectory = '5'
	typeFIFO      = '6'
	typePax       = 'x'
	typeLongName  = 'L' // GNU
	typeLongLink  = 'K' // GNU
	typeSparse    = 'S' // GNU, before 1.0
)

const (
	blockSize = 512
	// maxPax bounds what comes before an entry, in bytes: attributes above all, of which each may have 64 KiB.
	maxPax = 16 << 20
	// maxExtents bounds how many parts a sparse file has; 64 MiB of memory.
	maxExtents = 4 << 20
)

// entry is one file of an image.
type entry struct {
	name         string // as in the tar; "./" is the directory itself
	kind         byte
	mode         uint32 // permissions, set-id bits and the sticky bit
	uid, gid     uint32
	size         int64 // of a file's contents, holes included
	mtime, atime unix.Timespec
	link         string // what a symbolic link says, or the name of the entry whose file this is
	major, minor uint32
	xattrs       []xattr
	sparse       bool
	extents      []extent // of a sparse file: what is not a hole, ascending
}

type xattr struct{ name, value string }

// extent is a part of a file's contents.
type extent struct{ offset, length int64 }

// stored is how many bytes of contents are in the tar.
func (e *entry) stored() (n int64) {
	if !e.sparse {
		return e.size
	}
	for _, x := range e.extents {
		n += x.length
	}
	return n
}

// attributes is how many bytes an entry has beside its contents.
func (e *entry) attributes() int64 {
	n := len(e.name) + len(e.link)
	for _, x := range e.xattrs {
		n += len(x.name) + len(x.value)
	}
	return int64(n)
}

// checkExtents says whether extents ascend and lie in the file.
func checkExtents(extents []extent, size int64) error {
	var at int64
	for _, x := range extents {
		if x.offset < at || x.length < 0 || x.offset > size || x.length > size-x.offset {
			return fmt.Errorf("its map of holes is wrong at %d", x.offset)
		}
		at = x.offset + x.length
	}
	return nil
}

// padding is what follows n bytes of contents.
func padding(n int64) int64 { return -n & (blockSize - 1) }
