package device

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/record"
)

// Hold takes device memory over: files are the descriptors of pieces, in their order, and remain the caller's. The pieces come
// after those that are held already; the numbers of all are what is sent through the ring. planned, unless nil, has for each which of the pieces of [Keeper.Plan] was at its place,
// from 1, or 0: of these Send sends what has changed.
func (c *Keeper) Hold(ctx context.Context, pieces []record.GPUPiece, files []*os.File, planned []int) (err error) {
	if len(pieces) != len(files) || planned != nil && len(planned) != len(pieces) {
		return fmt.Errorf("hold: %d descriptors for %d pieces: %w", len(files), len(pieces), errdefs.ErrInvalidArgument)
	}
	defer timed(ctx, "hold device memory", pieces, time.Now(), &err)
	return c.inTurn(ctx, VerbHold, func() error {
		for at := 0; at < len(pieces); at += Batch {
			end := min(at+Batch, len(pieces))
			r := KeeperRequest{Do: VerbHold, Pieces: pieces[at:end]}
			if planned != nil {
				r.Planned = planned[at:end]
			}
			if _, _, err := c.ask(ctx, r, files[at:end], moveTime(0)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Make makes memory that is all zero and held after what is held already. The descriptors are for other processes, in the order of pieces,
// and the caller's to close.
func (c *Keeper) Make(ctx context.Context, pieces []record.GPUPiece) (files []*os.File, err error) {
	defer timed(ctx, "make device memory", pieces, time.Now(), &err)
	err = c.inTurn(ctx, VerbMake, func() error {
		for some := range slices.Chunk(pieces, Batch) {
			_, got, err := c.ask(ctx, KeeperRequest{Do: VerbMake, Pieces: some}, nil, moveTime(sum(some)))
			if err != nil {
				return err
			}
			files = append(files, got...)
		}
		return nil
	})
	if err != nil {
		CloseAll(files)
		return nil, err
	}
	return files, nil
}

// Copy fills a piece with what another of its size and device has, from device to device. Both are given by their descriptors, which remain the caller's, and
// none of them is held afterwards.
func (c *Keeper) Copy(ctx context.Context, p record.GPUPiece, from, to *os.File) error {
	return c.inTurn(ctx, VerbCopy, func() error {
		_, _, err := c.ask(ctx, KeeperRequest{Do: VerbCopy, Pieces: []record.GPUPiece{p}}, []*os.File{from, to}, moveTime(p.Size))
		return err
	})
}

// Room reports whether each device has room for what is held of it once more, for other pieces, and for spare bytes beside: its driver needs these for what it is
// to bring back there. Then the processes can go on with copies of their own, and what is held stays as it is.
func (c *Keeper) Room(ctx context.Context, others []record.GPUPiece, spare int64) (room bool, err error) {
	err = c.inTurn(ctx, VerbRoom, func() error {
		a, _, err := c.ask(ctx, KeeperRequest{Do: VerbRoom, Pieces: others, Spare: spare}, nil, askTime)
		room = a.Room
		return err
	})
	return room, err
}

// Send sends all that is held to peer, the end of a socket at whose other end is [ReceivePieces], and returns when that has taken all.
// peer is closed here, whatever comes of it. It may take as long as it likes while it moves: a peer that does nothing for
// [Patience] is an error. It is broken off by [Keeper.Kill].
func (c *Keeper) Send(ctx context.Context, peer *os.File) error {
	return c.move(ctx, VerbSend, "send device memory", peer)
}

// Receive fills all that is held from peer, the end of a socket at whose other end is [SendPieces], and returns when everything is on
// the devices. Else it is as Send. After an error the contents are undefined.
func (c *Keeper) Receive(ctx context.Context, peer *os.File) error {
	return c.move(ctx, VerbReceive, "receive device memory", peer)
}

func (c *Keeper) move(ctx context.Context, do KeeperVerb, name string, peer *os.File) (err error) {
	defer peer.Close()
	defer timed(ctx, name, nil, time.Now(), &err)
	return c.inTurn(ctx, do, func() error {
		_, _, err := c.ask(ctx, KeeperRequest{Do: do}, []*os.File{peer}, Patience+askTime)
		return err
	})
}

// LetGo lets go of everything that is held. A keeper that has died has done so.
func (c *Keeper) LetGo(ctx context.Context) error {
	select {
	case <-c.Ended():
		return nil
	default:
	}
	return c.inTurn(ctx, VerbLetGo, func() error {
		_, _, err := c.ask(ctx, KeeperRequest{Do: VerbLetGo}, nil, askTime)
		return err
	})
}

// timed says how long a step took.
func timed(ctx context.Context, step string, pieces []record.GPUPiece, begin time.Time, err *error) {
	l := log.G(ctx).WithField("seconds", time.Since(begin).Seconds())
	if pieces != nil {
		l = l.WithField("pieces", len(pieces)).WithField("bytes", sum(pieces))
	}
	if *err != nil {
		l = l.WithError(*err)
	}
	l.Debug(step)
}
