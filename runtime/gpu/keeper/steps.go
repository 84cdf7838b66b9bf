package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// Hold takes device memory over: files are the descriptors of pieces, in their order, and remain the caller's. The pieces come
// after those that are held already; the numbers of all are what is sent through the ring. After an error none of this call's are held.
func (c *Client) Hold(ctx context.Context, pieces []Piece, files []*os.File) (err error) {
	if len(pieces) != len(files) {
		return fmt.Errorf("hold: %d descriptors for %d pieces: %w", len(files), len(pieces), errdefs.ErrInvalidArgument)
	}
	defer timed(ctx, "hold device memory", pieces, time.Now(), &err)
	return c.add(ctx, verbHold, pieces, func(from int, some []Piece) error {
		_, _, err := c.ask(ctx, request{Do: verbHold, Pieces: some}, files[from:from+len(some)], moveTime(0))
		return err
	})
}

// Make makes memory that is all zero and held after what is held already. The descriptors are for other processes, in the order of pieces,
// and the caller's to close. After an error none of this call's is held.
func (c *Client) Make(ctx context.Context, pieces []Piece) (files []*os.File, err error) {
	defer timed(ctx, "make device memory", pieces, time.Now(), &err)
	err = c.add(ctx, verbMake, pieces, func(_ int, some []Piece) error {
		_, got, err := c.ask(ctx, request{Do: verbMake, Pieces: some}, nil, moveTime(sum(some)))
		files = append(files, got...)
		return err
	})
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

// add asks for pieces in batches, and lets go of all where one of them fails.
func (c *Client) add(ctx context.Context, do verb, pieces []Piece, ask func(from int, some []Piece) error) error {
	end, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", do, err)
	}
	defer end()
	if len(c.pieces)+len(pieces) > maxPieces {
		return fmt.Errorf("%s: %d pieces are too many: %w", do, len(c.pieces)+len(pieces), errdefs.ErrInvalidArgument)
	}
	from := 0
	for some := range slices.Chunk(pieces, batch) {
		if err := ask(from, some); err != nil {
			var p *PieceError
			if errors.As(err, &p) {
				p.Number += from
			}
			return errors.Join(err, c.cut(context.WithoutCancel(ctx), len(c.pieces)))
		}
		from += len(some)
	}
	c.pieces = append(c.pieces, pieces...)
	return nil
}

// cut lets go of all pieces but the first count. The driver has done so where the keeper has ended.
func (c *Client) cut(ctx context.Context, count int) error {
	select {
	case <-c.Ended():
		return nil
	default:
	}
	_, _, err := c.ask(ctx, request{Do: verbCut, Count: count}, nil, askTime)
	return err
}

// Copy fills pieces with what others of their sizes and devices have, from device to device. All are given by their descriptors, which remain the caller's, and
// none of them is held afterwards.
func (c *Client) Copy(ctx context.Context, pieces []Piece, from, to []*os.File) error {
	if len(from) != len(pieces) || len(to) != len(pieces) {
		return fmt.Errorf("%s: %d and %d descriptors for %d pieces: %w", verbCopy, len(from), len(to), len(pieces), errdefs.ErrInvalidArgument)
	}
	end, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", verbCopy, err)
	}
	defer end()
	_, _, err = c.ask(ctx, request{Do: verbCopy, Pieces: pieces}, slices.Concat(from, to), moveTime(sum(pieces)))
	return err
}

// Room tells whether each device has room for what is held of it once more, for other pieces, and for spare bytes beside: its driver needs these for what it is
// to bring back there. Then the processes can go on with copies of their own, and what is held stays as it is.
func (c *Client) Room(ctx context.Context, others []Piece, spare int64) (bool, error) {
	end, err := c.begin(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", verbRoom, err)
	}
	defer end()
	a, _, err := c.ask(ctx, request{Do: verbRoom, Pieces: others, Spare: spare}, nil, askTime)
	return err == nil && a.Room, err
}

// Send sends all that is held to peer, the end of a socket at whose other end is [ring.Receive], and returns when that has taken all.
// peer is closed here, whatever comes of it. It may take as long as it likes while it moves: a peer that does nothing for
// [ring.Patience] is an error. What is held is still held afterwards, and may be sent again to another peer, also after an error.
func (c *Client) Send(ctx context.Context, peer *os.File) error {
	return c.move(ctx, verbSend, "send device memory", peer)
}

// Receive fills all that is held from peer, the end of a socket at whose other end is [ring.Send], and returns when everything is on
// the devices. As in Send, peer is closed here, and has its patience. After an error the contents are undefined.
func (c *Client) Receive(ctx context.Context, peer *os.File) error {
	return c.move(ctx, verbReceive, "receive device memory", peer)
}

func (c *Client) move(ctx context.Context, do verb, name string, peer *os.File) (err error) {
	defer peer.Close()
	end, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", do, err)
	}
	defer end()
	defer timed(ctx, name, c.pieces, time.Now(), &err)
	_, _, err = c.ask(ctx, request{Do: do}, []*os.File{peer}, ring.Patience+askTime)
	return err
}

// LetGo lets go of everything that is held. A keeper that has died has done so.
func (c *Client) LetGo(ctx context.Context) error {
	select {
	case <-c.Ended():
		return nil
	default:
	}
	end, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("let go: %w", err)
	}
	defer end()
	if err := c.cut(ctx, 0); err != nil {
		return err
	}
	c.pieces = nil
	return nil
}

// timed says how long a step took.
func timed(ctx context.Context, step string, pieces []Piece, begin time.Time, err *error) {
	l := log.G(ctx).WithField("pieces", len(pieces)).WithField("bytes", sum(pieces)).WithField("seconds", time.Since(begin).Seconds())
	if *err != nil {
		l = l.WithError(*err)
	}
	l.Debug(step)
}
