package restore

import (
	"context"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// Tagged is a snapshot of the local store.
type Tagged struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Container string    `json:"container"`
	Image     string    `json:"image"`
	Created   time.Time `json:"created"`
	Memory    int64     `json:"memory"`          // bytes in the container, zero pages included
	Size      int64     `json:"size"`            // bytes of all blobs
	Error     string    `json:"error,omitempty"` // why nothing but its name and digest is known
}

// ListTagged describes every tag; one that is damaged does not hide the others.
func ListTagged(ctx context.Context, s *store.Store) ([]Tagged, error) {
	tags, err := s.Tags(ctx)
	if err != nil {
		return nil, err
	}
	all := []Tagged{}
	for _, t := range tags {
		l := Tagged{Reference: t.Ref, Digest: t.Descriptor.Digest.String()}
		if snapshot, err := image.Open(ctx, s, t.Descriptor); err != nil {
			log.G(ctx).WithError(err).WithField("ref", t.Ref).Debug("open")
			l.Error = err.Error()
		} else {
			c := snapshot.Config
			l.Container, l.Image, l.Created, l.Memory, l.Size = c.Container.ID, c.Container.Image, c.Created, c.Memory.Total, snapshot.Size()
		}
		all = append(all, l)
	}
	return all, nil
}
