package library

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Books are what a library knows of memory that its process shares.
type Books struct {
	Exports, Imports int
	Apart            int    // imports that are not there, and without which the gate stays closed
	Peers            int    // contexts that have access to the memory of other GPUs
	Hosts            int    // memory of the host with handles, which Release takes away
	Unknown          string // what of it is not in the books, or could not be put back; empty: nothing
}

// Passed is a descriptor by which the process has given memory to others, or has got it from them.
type Passed struct {
	Memory int // the number of the piece, or of the import, which stays the same until the gate is opened
	Import bool
	Host   bool     // it is memory of the host that the process has made: its number is in no table
	FD     int      // the descriptor in the process
	File   *os.File // the same open file
}

// Books asks the library what the process shares. A library of a release before this one has no books.
func (p *Process) Books() (Books, error) {
	const step = "books"
	_, payload, err := p.ask(step, header{Kind: books}, nil)
	var call *device.CallError
	if errors.As(err, &call) && call.Code == notSupported {
		return Books{Unknown: "it has the library of a release of cryo that does not look after shared memory"}, nil
	}
	if err != nil {
		return Books{}, err
	}
	b, err := decodeBooks(payload)
	if err != nil {
		return Books{}, p.wrong(err)
	}
	return b, nil
}

// Shared returns all descriptors by which memory has come and gone, one or more of each memory. The gate is closed. The files are the caller's.
func (p *Process) Shared() (all []Passed, err error) {
	const step = "share"
	defer func() {
		if err != nil {
			for _, s := range all {
				s.File.Close()
			}
			all = nil
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, header{Kind: shared}, nil, nil)
	for {
		if err != nil {
			return all, err
		}
		var got []Passed
		if err := p.result(step, h); err != nil {
			closeFiles(files)
			return all, err
		}
		if got, err = decodePassed(h, payload, files); err != nil {
			closeFiles(files)
			return all, p.wrong(err)
		}
		all = append(all, got...)
		for _, f := range files {
			if err := checkMemory(f); err != nil {
				return all, p.wrong(err)
			}
		}
		switch {
		case h.Flags&last != 0:
			return all, nil
		case len(got) == 0 || len(all) > maxPieces:
			return all, p.wrong(fmt.Errorf("it says that it shares memory %d times and more", len(all)))
		}
		h, payload, files, err = p.receive(ctx, step, shared)
	}
}

// Part has the process let go of what it has imported, and of all descriptors of memory that it shares, ahead of Release in any process that shares. Where it fails the process has all of it.
// The gate then opens by Open alone, and not before all imports are back.
func (p *Process) Part() error {
	_, _, err := p.ask("part", header{Kind: parting}, nil)
	return err
}

// Export returns a descriptor of a piece, or of memory of the host, when the process has that back, for others to import.
func (p *Process) Export(memory int, host bool) (*os.File, error) {
	const step = "share"
	if host {
		memory |= hostNumber
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, header{Kind: exporting}, binary.LittleEndian.AppendUint32(nil, uint32(memory)), nil)
	return p.single(step, memory, h, payload, files, err)
}

// Import has the process import memory again, by a file that stays the caller's.
func (p *Process) Import(memory int, file *os.File) error {
	const step = "get shared"
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, header{Kind: importing}, binary.LittleEndian.AppendUint32(nil, uint32(memory)), []*os.File{file})
	_, _, err = p.plain(step, h, payload, files, err)
	return err
}
