// Package order has what the restore process tells the shim about memory that is not in CRIU's images: where it is. The shim passes this on to the processes that bring the
// memory: package fill for memory of processes, package load for memory of GPUs. It also has by which signatures the snapshot was accepted.
package order

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
)

// Order says where memory is.
type Order struct {
	Root     string             `json:"root"`     // of the store
	Snapshot ocispec.Descriptor `json:"snapshot"` // its manifest
	Images   string             `json:"images"`   // CRIU's images, without that memory
	// Arrival is the directory where the restore process listens, which pulls the snapshot's segments. Empty: all are in the store, or prewarmed.
	Arrival string `json:"arrival,omitempty"`
	// Whole: segments are taken when all of each is here, which nobody needs sooner; see [arrival.Coming.Whole].
	Whole bool `json:"whole,omitempty"`
	// Rate bounds how many bytes a second are filled in that nobody waits for. 0: nothing does. It is the shim's to say.
	Rate int64 `json:"rate,omitempty"`
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
		if coming, err = arrival.Join(ctx, s, o.Arrival, who); err != nil {
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

// Origin says of which snapshot CRIU's images are, and has what it is judged by.
type Origin struct {
	Refs       []string             `json:"refs"` // as in [signature.Judge]
	Digest     digest.Digest        `json:"digest"`
	Signatures []signature.Attached `json:"signatures"` // none that is damaged
}
