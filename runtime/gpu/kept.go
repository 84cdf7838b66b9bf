package gpu

import (
	"context"
	"os"
	"slices"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
)

// Kept is device memory that was loaded before; see [prewarmed.Lease], which is the one there is.
type Kept interface {
	Info() prewarmed.Info
	Files() []*os.File
	Use(ctx context.Context)
	Close() error
}

var _ Kept = (*prewarmed.Lease)(nil)

// borrow takes memory that was loaded for this snapshot, on the devices that it would be loaded to; nil: there is none. Whatever is wrong with
// it, it is loaded anew. What the driver said then holds, but for what is free.
func (r *Restore) borrow(ctx context.Context) Kept {
	if r.Kept == nil {
		return nil
	}
	var places []driver.Device
	kept, err := r.Kept(func(i prewarmed.Info) (fits bool) {
		places, fits = r.sameAs(i)
		return fits
	})
	if err != nil {
		log.G(ctx).WithError(err).Warn("use device memory that was kept loaded; it is loaded anew")
	}
	if kept == nil {
		return nil
	}
	c := &coming{kept: kept, files: slices.Clone(kept.Files()), done: make(chan struct{})}
	close(c.done)
	r.coming, r.places, r.pairs = c, places, r.Record.pairs(places)
	return kept
}

// sameAs tells whether all that the record has was loaded where it would be.
func (r *Restore) sameAs(i prewarmed.Info) ([]driver.Device, bool) {
	places, err := r.Record.places(r.visible(i.Facts), r.Map)
	if err != nil {
		return nil, false
	}
	if pieces := Pieces(&r.Record.GPU, places); len(pieces) == 0 || !slices.Equal(pieces, i.Pieces) {
		return nil, false
	}
	roomy := slices.Clone(places)
	for n := range roomy {
		roomy[n].Free = roomy[n].Memory // see fitsBeside
	}
	return places, r.Record.fits(i.Facts, roomy) == nil
}

// fitsBeside starts a helper, and makes sure that there is room for what memory that was loaded before leaves to load.
func (r *Restore) fitsBeside(ctx context.Context, loaded prewarmed.Info) error {
	facts, err := r.facts(ctx)
	if err != nil {
		return err
	}
	places, err := r.Record.places(r.visible(facts), r.Map)
	if err != nil {
		return err
	}
	bytes := loaded.Bytes()
	for i := range places {
		places[i].Free += bytes[places[i].UUID]
	}
	return r.Record.fits(facts, places)
}
