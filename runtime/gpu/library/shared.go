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
	Multicasts       int    // multicast objects that it has made or imported, which Part takes away
	Wild             bool   // there are others, or something of these is not in the books: Unknown says why
	Unknown          string // what of it is not in the books, or could not be put back; empty: nothing
}

// Passed is a descriptor by which the process has given memory to others, or has got it from them.
type Passed struct {
	Memory int // the number of the piece, or of the import, which stays the same until the gate is opened
	Import bool
	Host   bool     // it is memory of the host that the process has made: its number is in no table
	Team   int      // of a multicast object that the process has made: how many devices it is for; 0: it is memory, or an import. Its number is in no table either
	Added  int      // devices that the process has added to the object
	FD     int      // the descriptor in the process
	File   *os.File // the same open file
}

// Books asks the library what the process shares. A library of a release before this one has no books.
func (p *Process) Books() (Books, error) {
	const step = "books"
	h, payload, err := p.ask(step, header{Kind: books}, nil)
	var call *device.CallError
	if errors.As(err, &call) && call.Code == notSupported {
		return Books{Unknown: "it has the library of a release of cryo that does not look after shared memory"}, nil
	}
	if err != nil {
		return Books{}, err
	}
	b, err := decodeBooks(payload)
	if err == nil && h.Count > maxPieces {
		err = fmt.Errorf("it says that it has %d multicast objects", h.Count)
	}
	if err != nil {
		return Books{}, p.wrong(err)
	}
	b.Multicasts, b.Wild = int(h.Count), h.Flags&ofMulticast != 0
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

// Unbind has the process unbind and unmap its multicast objects, in all processes that have any ahead of Part in any. Where it fails Bind brings back all that it has undone. The gate then opens
// by Open alone, and not before that.
func (p *Process) Unbind() error {
	_, _, err := p.ask("unbind shared", header{Kind: unbinding}, nil)
	return err
}

// Part has the process let go of what it has imported, of multicast objects, and of all descriptors of memory that it shares, ahead of Release in any process that shares. Where it fails the process
// has all of it, or some multicast objects are to be exported, imported and joined anew in all processes. The gate then opens by Open alone, and not before all imports are back.
func (p *Process) Part() error {
	_, _, err := p.ask("part", header{Kind: parting}, nil)
	return err
}

// Shareable names what a process can export: a piece by its number in Table, or else memory of the host or a multicast object, by the number that [Passed] has.
type Shareable struct {
	Number          int
	Host, Multicast bool
}

func (s Shareable) wire() int {
	switch {
	case s.Host:
		return s.Number | hostNumber
	case s.Multicast:
		return s.Number | multicastNumber
	}
	return s.Number
}

// Export returns a descriptor of something, when the process has that back, for others to import. It makes a multicast object anew: whoever has imported it before must import it again.
func (p *Process) Export(what Shareable) (*os.File, error) {
	const step = "share"
	number := what.wire()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, header{Kind: exporting}, binary.LittleEndian.AppendUint32(nil, uint32(number)), nil)
	return p.single(step, number, h, payload, files, err)
}

// Import has the process import memory again, or a multicast object, by a file that stays the caller's.
func (p *Process) Import(memory int, multicast bool, file *os.File) error {
	const step = "get shared"
	h := header{Kind: importing}
	if multicast {
		h.Flags = ofMulticast
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, h, binary.LittleEndian.AppendUint32(nil, uint32(memory)), []*os.File{file})
	_, _, err = p.plain(step, h, payload, files, err)
	return err
}

// Join has the process add its devices to its multicast objects, when all that it imports is there. It comes ahead of Bind in all processes.
func (p *Process) Join() error {
	_, _, err := p.ask("join shared", header{Kind: joining}, nil)
	return err
}

// Bind has the process bind its memory to its multicast objects and map these. The driver waits in it until all devices of an object are added, in whichever process.
func (p *Process) Bind() error {
	_, _, err := p.ask("bind shared", header{Kind: binding}, nil)
	return err
}
