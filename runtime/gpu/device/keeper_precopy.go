package device

import (
	"context"
	"os"
	"slices"

	"github.com/cryo-project/cryo/image/record"
)

// Plan names pieces that are to be copied while their processes run, once. It returns false where a device cannot sum its memory, or has no room for what that takes: then they cannot be.
func (c *Keeper) Plan(ctx context.Context, pieces []record.GPUPiece) (able bool, err error) {
	err = c.inTurn(ctx, VerbPlan, func() error {
		for some := range slices.Chunk(pieces, Batch) {
			a, _, err := c.ask(ctx, KeeperRequest{Do: VerbPlan, Pieces: some}, nil, askTime)
			if able = a.Sums; err != nil || !able {
				return err
			}
		}
		return nil
	})
	return able, err
}

// Begin begins to copy what was planned to peer, as [Keeper.Send] does what is held. It returns at once. peer is closed here, whatever comes of it.
func (c *Keeper) Begin(ctx context.Context, peer *os.File) error {
	defer peer.Close()
	return c.inTurn(ctx, VerbBegin, func() error {
		_, _, err := c.ask(ctx, KeeperRequest{Do: VerbBegin}, []*os.File{peer}, askTime)
		return err
	})
}

// Precopy copies a part of a planned piece, and has nothing of it when it returns. file is the piece's descriptor, and the caller's; nil: the part is taken for zeros, which it need not be. What a
// process has between two multiples of [Window] must be copied in the order of addresses, all of it.
func (c *Keeper) Precopy(ctx context.Context, p Part, file *os.File) error {
	var files []*os.File
	if file != nil {
		files = append(files, file)
	}
	return c.inTurn(ctx, VerbPrecopy, func() error {
		_, _, err := c.ask(ctx, KeeperRequest{Do: VerbPrecopy, Part: &p}, files, Patience+askTime)
		return err
	})
}

// Precopied waits until the receiver has taken all that was copied.
func (c *Keeper) Precopied(ctx context.Context) error {
	return c.inTurn(ctx, VerbPrecopied, func() error {
		_, _, err := c.ask(ctx, KeeperRequest{Do: VerbPrecopied}, nil, Patience+askTime)
		return err
	})
}
