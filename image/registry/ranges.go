package registry

import (
	"context"
	"fmt"
	"io"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/store"
)

// Ranges reads parts of blobs of one repository. It is for several goroutines; how many requests are under way at once is theirs
// to bound.
type Ranges struct {
	ref  string
	repo *repo
	o    Options
}

// Read reads len(p) bytes of a blob from off on. A part of a blob has no digest of its own, so it is not verified. A reader waits for it, and less of the rest is
// fetched meanwhile, unless it is fetched ahead: then its reader has asked for a turn.
func (g *Ranges) Read(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, ahead bool) error {
	if off < 0 || off > d.Size || int64(len(p)) > d.Size-off {
		return store.Corrupt("blob "+d.Digest.String(), fmt.Errorf("it has %d bytes, not %d and %d", d.Size, off, len(p)))
	}
	if !ahead {
		defer g.repo.line.urgent()()
	}
	ctx = g.repo.scoped(ctx, auth.ActionPull)
	b := &blobReader{ctx: ctx, repo: g.repo, d: d, off: off, end: off + int64(len(p)), part: true, t: &tracker{m: &meter{counts: g.o.Counts}}}
	defer b.Close()
	if _, err := io.ReadFull(b, p); err != nil {
		return fmt.Errorf("read from %s: %w", g.ref, g.repo.classify(ctx, err))
	}
	if int64(len(p)) >= partLeast && !g.repo.line.measured() {
		g.repo.line.measure(b.end-b.began, b.latency, time.Since(b.since))
	}
	return nil
}

// Damaged says that bytes of a blob were not what they should be. Mirrors that have sent some of it are left out for it from now on.
func (g *Ranges) Damaged(d ocispec.Descriptor) { g.repo.distrust(d.Digest) }

// Turn waits until n bytes may be fetched ahead. What comes soon delays no other request.
func (g *Ranges) Turn(ctx context.Context, n int64) (end func(), err error) {
	if g.repo.line.soon(n) {
		return func() {}, nil
	}
	_, end, err = g.repo.line.rest(ctx)
	return end, err
}
