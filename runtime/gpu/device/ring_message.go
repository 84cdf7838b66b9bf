package device

// Kinds of messages; see the package's comment.
const (
	kindRing = "ring"
	kindFull = "full"
	kindZero = "zero"
	kindSame = "same"
	kindFree = "free"
	kindEnd  = "end"
	kindDone = "done"
	kindWait = "wait"
)

// message is one of the protocol. What a kind does not use is zero.
type message struct {
	Kind   string `json:"kind"`
	Slot   int    `json:"slot,omitempty"`
	Piece  int    `json:"piece,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length,omitempty"`
}

// within checks that a full slot's content, or what is zero, lies in its piece.
func (m message) within(sizes []int64, g RingGeometry) error {
	if m.Piece < 0 || m.Piece >= len(sizes) {
		return broken("piece %d of %d", m.Piece, len(sizes))
	}
	size := sizes[m.Piece]
	if m.Length <= 0 || m.Kind != kindZero && m.Kind != kindSame && m.Length > g.SlotBytes || m.Offset < 0 || m.Offset > size || m.Length > size-m.Offset {
		return broken("%d bytes from %d on of piece %d, which has %d", m.Length, m.Offset, m.Piece, size)
	}
	return nil
}
