package library

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/cryo-project/cryo/image/record"
)

// A message is a header and a payload, little-endian. A request has one number, and so have its answers.
const (
	magic      = 0x55504743 // "CGPU"
	version    = 1
	headerSize = 24
	maxPayload = 32 << 10
)

// kind is what a message asks for, and what it answers.
type kind uint16

const (
	hello   kind = 1 // answer: u32 state, pieces, foreign, mistaken, stood; char version[32]; the reason why not, to the end
	closing kind = 2 // request: u32 deadline in ms; result 600, work, or 900, a capture, has not ended: the gate is open again
	table   kind = 3 // answers of entries
	give    kind = 4 // answers of u32 numbers, with a descriptor each
	release kind = 5
	attach  kind = 6 // count of all; then requests of u32 numbers, with a descriptor each, of which the last is marked
	opening kind = 7
	own     kind = 8 // answer: count of those that are still foreign
	making  kind = 9 // count of all, u32 number; answer: u32 number, with a descriptor
	filled  kind = 10

	books     kind = 11 // answer: u32 exports, imports, imports that are not there, contexts with access to other GPUs, memory of the host; what else it shares, to the end; count of multicast objects; flag ofMulticast: there are others
	shared    kind = 12 // answers of entries of Passed, with a descriptor each
	parting   kind = 13
	exporting kind = 14 // u32 number of memory; answer: the same, with a descriptor
	importing kind = 15 // u32 number of memory, with a descriptor; flag ofMulticast

	places    kind = 16 // answers of entries
	lending   kind = 17 // u64 address, size; answer: u32 0, with a descriptor
	returning kind = 18

	standing kind = 19 // u32 deadline in ms, u32 1: threads that wait make a call each before; result as of closing, but after 600 the gate stays closed

	unbinding kind = 20
	joining   kind = 21
	binding   kind = 22
)

// last marks the last of several answers, or requests, and ofMulticast the descriptor of a multicast object.
const (
	last        = 1
	ofMulticast = 2
)

// batch is how many descriptors go with a message.
const batch = 32

type header struct {
	Magic   uint32
	Version uint16
	Kind    kind
	ID      uint32
	Result  int32 // CUresult of an answer
	Count   uint32
	Flags   uint32
}

// entry is a piece in an answer to table.
type entry struct {
	Address, Size uint64
	UUID          [16]byte
	Number, Flags uint32
}

const entrySize = 40

var errShort = errors.New("a message is shorter than its kind is")

func (h header) encode(payload []byte) []byte {
	h.Magic, h.Version = magic, version
	b := make([]byte, 0, headerSize+len(payload))
	b, err := binary.Append(b, binary.LittleEndian, h)
	if err != nil {
		panic(err) // it has a fixed size
	}
	return append(b, payload...)
}

// decode takes a message apart.
func decode(b []byte) (h header, payload []byte, err error) {
	if len(b) < headerSize || len(b) > headerSize+maxPayload {
		return h, nil, errShort
	}
	if _, err := binary.Decode(b, binary.LittleEndian, &h); err != nil {
		return h, nil, errShort
	}
	if h.Magic != magic {
		return h, nil, errors.New("a message does not begin with CGPU")
	}
	if h.Version != version {
		return h, nil, fmt.Errorf("it speaks version %d, not %d", h.Version, version)
	}
	return h, b[headerSize:], nil
}

// decodeHello reads the answer to hello.
func decodeHello(payload []byte) (Hello, error) {
	const numbers = 20
	const fixed = numbers + 32
	if len(payload) < fixed || len(payload) > fixed+1024 {
		return Hello{}, errShort
	}
	state, pieces := State(binary.LittleEndian.Uint32(payload)), binary.LittleEndian.Uint32(payload[4:])
	foreign := binary.LittleEndian.Uint32(payload[8:])
	if state > Given || pieces > maxPieces || foreign > pieces {
		return Hello{}, fmt.Errorf("it says that it has %d pieces, %d foreign, in state %d", pieces, foreign, state)
	}
	h := Hello{State: state, Pieces: int(pieces), Foreign: int(foreign), Mistaken: binary.LittleEndian.Uint32(payload[12:]) != 0, Stood: binary.LittleEndian.Uint32(payload[16:]) != 0}
	h.Version, h.Unable = printable(payload[numbers:fixed]), printable(payload[fixed:])
	return h, nil
}

// decodeBooks reads the answer to books.
func decodeBooks(payload []byte) (Books, error) {
	const fixed = 20
	if len(payload) < fixed || len(payload) > fixed+1024 {
		return Books{}, errShort
	}
	n := func(at int) int { return int(binary.LittleEndian.Uint32(payload[at:])) }
	b := Books{Exports: n(0), Imports: n(4), Apart: n(8), Peers: n(12), Hosts: n(16), Unknown: printable(payload[fixed:])}
	if b.Exports > maxPieces || b.Imports > maxPieces || b.Apart > b.Imports || b.Peers > maxPieces || b.Hosts > maxPieces {
		return Books{}, fmt.Errorf("it says that it has exported memory %d times and imported it %d times, of which %d are not there", b.Exports, b.Imports, b.Apart)
	}
	return b, nil
}

// hostNumber marks the number of memory of the host, and multicastNumber that of a multicast object.
const (
	hostNumber      = 1 << 31
	multicastNumber = 1 << 30
)

// decodePassed reads an answer to shared: u32 number of memory; what it is; and descriptor in the process. What it is: bit 0: imported; of a multicast object bits 8 to 15: devices
// that the process has added; from bit 16 on: devices of its team, where the process has made it.
func decodePassed(h header, payload []byte, files []*os.File) (all []Passed, err error) {
	const size = 12
	if uint64(len(payload)) != uint64(h.Count)*size || len(files) != int(h.Count) {
		return nil, errShort
	}
	for i, f := range files {
		n := func(at int) uint32 { return binary.LittleEndian.Uint32(payload[size*i+at:]) }
		number, what := n(0), n(4)
		p := Passed{Memory: int(number &^ (hostNumber | multicastNumber)), Host: number&hostNumber != 0, Import: what&1 != 0, Added: int(what >> 8 & 0xff), Team: int(what >> 16), FD: int(n(8)), File: f}
		if p.Memory > maxPieces || p.FD > 1<<30 || p.Import && (p.Host || p.Team > 0) || (number&multicastNumber != 0) != (p.Team > 0) || p.Team > 0 && p.Host {
			return nil, fmt.Errorf("it says that memory %d has descriptor %d", number, n(8))
		}
		all = append(all, p)
	}
	return all, nil
}

// printable is text from the process, as it may be shown and stored.
func printable(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, b))
}

// decodeEntries adds the pieces of an answer to table to those of the ones before.
func decodeEntries(pieces []record.GPUPiece, h header, payload []byte) ([]record.GPUPiece, error) {
	if uint64(len(payload)) != uint64(h.Count)*entrySize {
		return nil, errShort
	}
	if len(pieces)+int(h.Count) > maxPieces {
		return nil, fmt.Errorf("it says that it has more than %d pieces", maxPieces)
	}
	for b := payload; len(b) > 0; b = b[entrySize:] {
		var e entry
		if _, err := binary.Decode(b, binary.LittleEndian, &e); err != nil {
			return nil, errShort
		}
		switch {
		case int(e.Number) != len(pieces):
			return nil, fmt.Errorf("piece %d has number %d", len(pieces), e.Number)
		case e.Size == 0 || e.Size > record.MaxAddress || e.Size%granularity != 0 || e.Address%granularity != 0 || e.Address > record.MaxAddress:
			return nil, fmt.Errorf("piece %d has %d bytes at %#x", e.Number, e.Size, e.Address)
		case len(pieces) > 0 && e.Address < pieces[len(pieces)-1].Address+uint64(pieces[len(pieces)-1].Size):
			return nil, fmt.Errorf("piece %d at %#x begins before the end of the one before", e.Number, e.Address)
		}
		pieces = append(pieces, record.GPUPiece{Address: e.Address, Size: int64(e.Size), Device: uuidText(e.UUID)})
	}
	return pieces, nil
}

// decodeNumbers checks the numbers in an answer to give, which count on from next.
func decodeNumbers(next int, h header, payload []byte) error {
	if uint64(len(payload)) != uint64(h.Count)*4 {
		return errShort
	}
	for i := range int(h.Count) {
		if n := binary.LittleEndian.Uint32(payload[4*i:]); uint64(n) != uint64(next+i) {
			return fmt.Errorf("it gives piece %d in place of %d", n, next+i)
		}
	}
	return nil
}

func uuidText(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return "GPU-" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
