//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// held is a piece that is mapped.
type held struct {
	record.GPUPiece
	device  *cudaDevice
	memory  *memory
	planned *plannedPiece // what was copied ahead of what is there; nil: nothing
	marks   []mark        // of its units; nil: nothing is known of them
}

// hold maps what others have given. planned is as in the request.
func (s *server) hold(pieces []record.GPUPiece, files []*os.File, planned []int) error {
	first := len(s.pieces)
	s.precopy.closeStages() // where nothing came of it
	if err := s.add(pieces, func(i int, d *cudaDevice) (*memory, error) { return d.Import(files[i], pieces[i].Size) }); err != nil {
		return err
	}
	for i, n := range planned {
		if n > 0 {
			p, err := s.precopy.of(n-1, pieces[i])
			if err != nil {
				return device.PieceError(first+i, pieces[i], err)
			}
			s.pieces[first+i].planned = p
		}
	}
	for i := range s.pieces[first:] {
		if h := &s.pieces[first+i]; h.planned != nil || h.device.findsZero() {
			h.marks = make([]mark, h.Size/device.Unit)
		}
	}
	return s.lookAll(first)
}

// make makes memory that is zero, and gives its descriptors.
func (s *server) make(pieces []record.GPUPiece) (files []*os.File, err error) {
	before := len(s.pieces)
	err = s.add(pieces, func(i int, d *cudaDevice) (*memory, error) {
		m, err := d.Make(pieces[i].Size)
		if err != nil {
			return nil, err
		}
		file, err := m.Export()
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		return m, nil
	})
	if err == nil {
		err = s.clear(before)
	}
	return files, err
}

// clear makes all but the first count pieces zero. A process that gets their descriptors could read what others have left there.
func (s *server) clear(count int) error {
	for _, numbers := range s.devices(count) {
		var all []*memory
		for _, n := range numbers {
			all = append(all, s.pieces[n].memory)
		}
		first := s.pieces[numbers[0]]
		if err := first.device.Clear(all); err != nil {
			return fmt.Errorf("clear device memory on %s: %w", first.Device, err)
		}
	}
	return nil
}

// add maps pieces.
func (s *server) add(pieces []record.GPUPiece, one func(i int, d *cudaDevice) (*memory, error)) error {
	if len(s.pieces)+len(pieces) > device.MaxPieces {
		return fmt.Errorf("%d pieces are too many: %w", len(s.pieces)+len(pieces), errdefs.ErrInvalidArgument)
	}
	for i, p := range pieces {
		d, err := s.memory.Device(p.Device)
		var m *memory
		if err == nil {
			m, err = one(i, d)
		}
		if err != nil {
			return device.PieceError(len(s.pieces), p, err)
		}
		s.pieces = append(s.pieces, held{GPUPiece: p, device: d, memory: m})
	}
	return nil
}

// letGo lets go of all.
func (s *server) letGo() (err error) {
	for _, h := range s.pieces {
		err = errors.Join(err, h.memory.Free())
	}
	s.pieces = nil
	return err
}

// copy fills memory with what other memory has. Both are another process's, and neither is held afterwards.
func (s *server) copy(p record.GPUPiece, from, to *os.File) (err error) {
	d, err := s.memory.Device(p.Device)
	if err != nil {
		return device.PieceError(0, p, err)
	}
	var both []*memory
	for _, f := range []*os.File{to, from} {
		var m *memory
		if m, err = d.Import(f, p.Size); err != nil {
			break
		}
		both = append(both, m)
	}
	if err == nil {
		err = d.Copy(both[0], both[1])
	}
	for _, m := range both {
		err = errors.Join(err, m.Free())
	}
	if err != nil {
		return device.PieceError(0, p, err)
	}
	return nil
}

// room reports whether each device has room for what is held of it once more, for other pieces, and for so many bytes beside.
func (s *server) room(others []record.GPUPiece, spare int64) (bool, error) {
	need := make(map[string]int64)
	for _, h := range s.pieces {
		need[h.Device] += h.Size
	}
	for _, p := range others {
		need[p.Device] += p.Size
	}
	for uuid, bytes := range need {
		d, err := s.memory.Device(uuid)
		if err != nil {
			return false, err
		}
		room, err := d.Room()
		if err != nil || room < bytes+spare {
			return false, err
		}
	}
	return true, nil
}

// devices returns the numbers of the pieces from one on by the device they are on, each in order.
func (s *server) devices(from int) [][]int {
	var groups [][]int
	at := make(map[string]int)
	for n, h := range s.pieces {
		if n < from {
			continue
		}
		i, known := at[h.Device]
		if !known {
			i = len(groups)
			at[h.Device] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], n)
	}
	return groups
}
