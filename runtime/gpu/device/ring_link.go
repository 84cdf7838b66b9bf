package device

import (
	"context"
	"syscall"
	"time"
)

// Patience is how long a side waits for the other that has not done what is its turn to do.
const Patience = 2 * time.Minute

// TellTime is how often the sender says that it waits for what it is to send; see [Sender.Wait].
const TellTime = Patience / 4

// Chunk is a part of a piece.
type Chunk struct {
	Piece  int
	Offset int64  // in the piece, bytes
	Data   []byte // in the ring
	Zero   int64  // bytes that are zero; 0: it has data
	Same   int64  // bytes that have not changed since they were copied ahead; 0: it has data
}

// Link is a ring and the connection to the process on its other side. It moves memory once, in one direction.
type Link struct {
	// Patience is how long the other side may do nothing.
	Patience time.Duration
	// Waits, unless nil, is called when the sender says that it waits for what it is to send.
	Waits func()

	conn   conn
	memory *Ring
	own    bool // the memory was made here, and is another's to close
}

// OfferRing is the keeper's beginning: it hands its ring to the process at the other end of socket, an [*os.File] or
// [*net.UnixConn]. The socket remains the caller's to close, the memory as well.
func OfferRing(socket syscall.Conn, m *Ring) (*Link, error) {
	c, err := newConn(socket)
	if err != nil {
		return nil, err
	}
	g := m.geometry
	if err := c.write(message{Kind: kindRing, Slot: g.Slots, Length: g.SlotBytes}, int(m.file.Fd())); err != nil {
		c.Close()
		return nil, err
	}
	return &Link{Patience: Patience, conn: c, memory: m, own: true}, nil
}

// AcceptRing is the other side's: it waits for the keeper's ring as long as the keeper lives and keeps its end open, or until ctx
// ends. The socket remains the caller's to close.
func AcceptRing(ctx context.Context, socket syscall.Conn) (*Link, error) {
	c, err := newConn(socket)
	if err != nil {
		return nil, err
	}
	stop := c.cutOff(ctx)
	m, files, err := c.readFiles()
	file := fileOf(files)
	if !stop() && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && (m.Kind != kindRing || file == nil) {
		err = broken("it does not begin with a ring")
	}
	var memory *Ring
	if err == nil {
		memory, err = adopt(file, RingGeometry{Slots: m.Slot, SlotBytes: m.Length})
	} else if file != nil {
		file.Close()
	}
	if err != nil {
		c.hangUp()
		c.Close()
		return nil, err
	}
	return &Link{Patience: Patience, conn: c, memory: memory}, nil
}

// Geometry is the ring's.
func (l *Link) Geometry() RingGeometry { return l.memory.geometry }

// Close hangs up. Slots still in use can be used until they are given back.
func (l *Link) Close() error {
	l.conn.hangUp()
	_ = l.conn.Close() // once
	if l.own {
		return nil
	}
	return l.memory.Close()
}

// ReceivePieces is [AcceptRing] and [Link.Receive]: the checkpoint process's part of a checkpoint.
func ReceivePieces(ctx context.Context, socket syscall.Conn, sizes []int64, take func(c Chunk, release func()) error) error {
	l, err := AcceptRing(ctx, socket)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Receive(ctx, sizes, take)
}

// SendPieces is [AcceptRing] and [Link.Send]: the loader's part of a restore.
func SendPieces(ctx context.Context, socket syscall.Conn, sizes []int64, give func(ctx context.Context, s *Sender) error) error {
	l, err := AcceptRing(ctx, socket)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Send(ctx, sizes, give)
}
