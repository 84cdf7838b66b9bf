package trust

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	imagefs "github.com/checkpoint-restore/go-criu/v8/crit/images/fs"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	criumm "github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	skpacket "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-packet"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// opened are the files of files.img that have a path, with what each is to be opened as.
type opened struct {
	files   []*fdinfo.FileEntry
	kind    map[uint32]uint32 // S_IFMT bits by the file's id
	deleted map[uint32]bool   // it has no name, and CRIU makes it, or links it
	linked  map[uint32]bool   // it is where CRIU finds a deleted one
}

// openedIn reads them. A file that was deleted is of the kind that CRIU makes, or of that of the file by which it is kept.
func openedIn(images fs.FS) (o opened, err error) {
	if o.files, err = read[fdinfo.FileEntry](images, "files.img"); err != nil {
		return o, err
	}
	const remapped = "remap-fpath.img"
	remaps, err := read[remapfile.RemapFilePathEntry](images, remapped)
	if err != nil {
		return o, err
	}
	o.kind, o.deleted, o.linked = map[uint32]uint32{}, map[uint32]bool{}, map[uint32]bool{}
	stated := map[uint32]bool{}
	for _, f := range o.files {
		if reg := f.GetReg(); reg != nil {
			if _, twice := o.kind[f.GetId()]; twice {
				return o, &DamagedError{File: "files.img", Err: fmt.Errorf("two open files with the number %d", f.GetId())}
			}
			o.kind[f.GetId()], stated[f.GetId()] = reg.GetMode()&unix.S_IFMT, reg.Mode != nil
		}
	}
	ghosts := map[uint32]uint32{} // the kind of each: one may be named a million times
	for _, m := range remaps {
		kind := o.kind[m.GetOrigId()]
		o.deleted[m.GetOrigId()] = true
		switch m.GetRemapType() {
		case remapfile.RemapType_LINKED:
			if !stated[m.GetRemapId()] {
				o.kind[m.GetRemapId()], stated[m.GetRemapId()] = kind, true
			}
			o.linked[m.GetRemapId()] = true
			if o.kind[m.GetRemapId()] != kind {
				return o, &DamagedError{File: remapped, Err: errors.New("a deleted file is of another kind than the link to it")}
			}
		case remapfile.RemapType_GHOST:
			name := fmt.Sprintf("ghost-file-%x.img", m.GetRemapId())
			made, known := ghosts[m.GetRemapId()]
			if !known {
				ghost, err := readFirst[ghostfile.GhostFileEntry](images, name)
				if err != nil {
					return o, err
				}
				made = ghost.GetMode() & unix.S_IFMT
				ghosts[m.GetRemapId()] = made
			}
			if made != kind {
				return o, &DamagedError{File: name, Err: errors.New("a deleted file is of another kind than the one that is open")}
			}
		}
	}
	for _, f := range o.files {
		if f.GetReg() != nil && !stated[f.GetId()] {
			return o, &DamagedError{File: "files.img", Err: fmt.Errorf("the open file %q without its kind", f.GetReg().GetName())}
		}
	}
	return o, nil
}

// fifos refuses a FIFO that is opened as another file, since that waits for its other end. CRIU opens the others, and then those that are FIFOs,
// by the path of an entry that is one of a regular file, and which no other entry may open. Source: CRIU 4.2, criu/fifo.c.
func (r *imageReviewer) fifos(o opened) error {
	for _, f := range o.files {
		if e := f.GetFifo(); e != nil {
			id := e.GetId()
			if e.RegfId != nil {
				id = e.GetRegfId()
			}
			if o.kind[id] != unix.S_IFIFO {
				return &DamagedError{File: "files.img", Err: errors.New("a FIFO whose path is that of another kind of file")}
			}
		}
	}
	others := false
	for _, kind := range o.kind {
		others = others || kind == unix.S_IFIFO
	}
	if !others {
		return nil
	}
	other := func(ids ...uint32) error {
		for _, id := range ids {
			if o.kind[id] == unix.S_IFIFO {
				return fmt.Errorf("file %d, a FIFO, is opened as another kind of file", id)
			}
		}
		return nil
	}
	for _, f := range o.files {
		if err := other(f.GetTty().GetRegfId(), f.GetTty().GetId(), f.GetTunf().GetId()); err != nil {
			return &DamagedError{File: "files.img", Err: err}
		}
	}
	return errors.Join(
		each(r.images, "fdinfo-*.img", func(e *fdinfo.FdinfoEntry) error {
			if e.GetType() != fdinfo.FdTypes_REG {
				return nil
			}
			return other(e.GetId())
		}),
		each(r.images, "fs-*.img", func(e *imagefs.FsEntry) error { return other(e.GetCwdId(), e.GetRootId()) }),
		each(r.images, "mm-*.img", func(e *criumm.MmEntry) error {
			const mapped = 1<<6 | 1<<7 // VMA_FILE_PRIVATE and VMA_FILE_SHARED of CRIU 4.2, criu/include/image.h
			ids := []uint32{e.GetExeFileId()}
			for _, v := range e.GetVmas() {
				if v.GetStatus()&mapped != 0 {
					ids = append(ids, uint32(v.GetShmid()))
				}
			}
			return other(ids...)
		}),
		r.inFlight(other),
	)
}

// inFlight calls review with the files that wait in sockets.
func (r *imageReviewer) inFlight(review func(ids ...uint32) error) error {
	const name = "sk-queues.img"
	data, err := readImage(r.images, name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, data, err = format.ImageBody(data)
	}
	for err == nil && len(data) > 0 {
		var e skpacket.SkPacketEntry
		if data, err = nextInto(data, &e); err != nil {
			break
		}
		if int64(e.GetLength()) > int64(len(data)) {
			err = errors.New("ends within a packet")
			break
		}
		data = data[e.GetLength():]
		for _, s := range e.GetScm() {
			err = errors.Join(err, review(s.GetRights()...))
		}
	}
	if err != nil {
		return &DamagedError{File: name, Err: err}
	}
	return nil
}

// ghost is what CRIU calls a deleted file while it restores; a symbolic link may be one of them. Source: CRIU 4.2, criu/files-reg.c, ghost_path.
var ghost = NewPattern(`\.cr\.[0-9a-f]+\.ghost$`)
