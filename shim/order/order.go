// Package order is what the cryo command tells the processes of the shim that bring memory, of processes (package fill) and of devices (package load): where
// that is which CRIU's images lack, and what it tells the shim of who has signed them. It is a file for each in CRIU's work directory, where nothing that comes
// out of a snapshot ever lies.
package order

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
)

// Of is what memory an order is of: the file's name.
type Of string

// Memory that is filled in later, and that of devices.
const (
	Memory  Of = "cryo-lazy.json"
	Devices Of = "cryo-devices.json"
)

// Order says where memory is.
type Order struct {
	Root     string             `json:"root"`     // of the store
	Snapshot ocispec.Descriptor `json:"snapshot"` // its manifest
	Images   string             `json:"images"`   // CRIU's images, without that memory
	// Arrival is the directory where the command listens that pulls the snapshot's segments. Empty: all are in the store, or prewarmed.
	Arrival string `json:"arrival,omitempty"`
	// Awaited is the file that stands until all that is needed of them is here; see [arrival.Expect].
	Awaited string `json:"awaited,omitempty"`
	// Whole: segments are taken when all of each is here, which nobody needs sooner; see [arrival.Coming.Whole].
	Whole bool `json:"whole,omitempty"`
	// Rate bounds how many bytes a second are filled in that nobody waits for. 0: nothing does. It is the shim's to say.
	Rate int64 `json:"rate,omitempty"`
}

// Write writes the order into CRIU's work directory.
func (o Order) Write(work string, of Of) error { return write(work, string(of), "order memory", o) }

// Read reads the order of the restore with this work directory of CRIU's, whose images are in images; nil: there is none.
func Read(work string, of Of, images string) (*Order, error) {
	const doing = "read what memory is wanted"
	var o Order
	path, found, err := read(work, string(of), doing, &o)
	if err != nil || !found {
		return nil, err
	}
	// One of another restore would bring other memory.
	if filepath.Clean(o.Images) != filepath.Clean(images) || !filepath.IsAbs(o.Root) {
		return nil, fmt.Errorf("%s: %s is not for %s: %w", doing, path, images, errdefs.ErrInvalidArgument)
	}
	return &o, nil
}

// Damaged has the store verify the snapshot's blobs before they are read again, if an error says that something of the snapshot is damaged. It returns the error.
func (o Order) Damaged(err error) error {
	if !errdefs.IsDataLoss(err) {
		return err
	}
	s, failed := store.Open(o.Root)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return s.Damaged(context.Background(), o.Snapshot, err)
}

// Open gives what has the snapshot's blobs, until done is called: what was opened by then stays. Where segments are missing still, coming is not nil, and the
// caller ends it, also after an error. who says what becomes of them, see [arrival.Join].
func (o Order) Open(ctx context.Context, who string) (from image.Fetcher, coming *arrival.Coming, done func(), err error) {
	done = func() {}
	s, err := store.Open(o.Root)
	if err != nil {
		return nil, nil, done, err
	}
	if o.Arrival != "" {
		if coming, err = arrival.Join(ctx, s, o.Arrival, o.Awaited, who); err != nil {
			return nil, nil, done, err
		}
		if o.Whole {
			err = coming.Whole()
		}
		return coming, coming, done, err
	}
	ready, err := warm.New(o.Root).Find(ctx, o.Snapshot.Digest)
	if err != nil || ready == nil {
		return s, nil, done, err
	}
	return ready, nil, func() { _ = ready.Close() }, nil // nothing was written
}
