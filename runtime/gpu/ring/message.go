package ring

import (
	"encoding/binary"
)

// Layout of a message; see the package's comment.
const (
	magic       = 0x52475543
	version     = 1
	messageSize = 32
)

type kind uint16

const (
	kindRing kind = 1 + iota
	kindFull
	kindFree
	kindEnd
	kindDone
	kindWait
)

type message struct {
	kind           kind
	slot, piece    uint32
	offset, length uint64
}

func (m message) encode() [messageSize]byte {
	var b [messageSize]byte
	binary.LittleEndian.PutUint32(b[0:], magic)
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint16(b[6:], uint16(m.kind))
	binary.LittleEndian.PutUint32(b[8:], m.slot)
	binary.LittleEndian.PutUint32(b[12:], m.piece)
	binary.LittleEndian.PutUint64(b[16:], m.offset)
	binary.LittleEndian.PutUint64(b[24:], m.length)
	return b
}

// decode refuses what encode never gives. Whether numbers are in range is for who knows the range.
func decode(b [messageSize]byte) (message, error) {
	m := message{
		kind:   kind(binary.LittleEndian.Uint16(b[6:])),
		slot:   binary.LittleEndian.Uint32(b[8:]),
		piece:  binary.LittleEndian.Uint32(b[12:]),
		offset: binary.LittleEndian.Uint64(b[16:]),
		length: binary.LittleEndian.Uint64(b[24:]),
	}
	if got := binary.LittleEndian.Uint32(b[0:]); got != magic {
		return message{}, broken("a message begins with %#x", got)
	}
	if got := binary.LittleEndian.Uint16(b[4:]); got != version {
		return message{}, broken("a message of version %d, not %d", got, version)
	}
	used := message{kind: m.kind}
	switch m.kind {
	case kindRing:
		used.slot, used.length = m.slot, m.length
	case kindFull:
		used = m
	case kindFree:
		used.slot = m.slot
	case kindEnd, kindDone, kindWait:
	default:
		return message{}, broken("a message of kind %d", m.kind)
	}
	if m != used {
		return message{}, broken("a message of kind %d with more than it has", m.kind)
	}
	return m, nil
}

// within checks that a full slot's content lies in its piece.
func (m message) within(sizes []int64, g Geometry) error {
	if int64(m.piece) >= int64(len(sizes)) {
		return broken("piece %d of %d", m.piece, len(sizes))
	}
	size := uint64(sizes[m.piece])
	if m.length == 0 || m.length > uint64(g.SlotBytes) || m.offset > size || m.length > size-m.offset {
		return broken("%d bytes from %d on of piece %d, which has %d", m.length, m.offset, m.piece, size)
	}
	return nil
}
