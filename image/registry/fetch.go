package registry

import (
	"context"
	"errors"
	"io"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/store"
)

// damageAttempts is how often a blob is fetched that arrives with another digest.
const damageAttempts = 2

// how are options of [Puller.fetch]. The zero value writes past the page cache.
type how struct {
	source *store.PullSource // learns which bytes have come; nil: no reader waits
	cached bool              // write through the page cache
	later  bool              // leave hashing to [store.Ingest.Verify]
}

// fetch downloads a blob and verifies it, unless hashing comes later. It resumes an earlier attempt of any process. The caller commits the blob. nil: the store has it.
func (p *Puller) fetch(ctx context.Context, d ocispec.Descriptor, t *tracker, how how) (_ *store.Ingest, err error) {
	part, err := p.dst.Resume(ctx, d)
	if err != nil {
		return nil, err
	}
	s := how.source
	if part == nil { // another process was faster
		t.have(d.Size)
		return nil, s.Stored(ctx, d)
	}
	defer func() {
		if err != nil {
			_ = part.Close() // err says more
		}
	}()
	t.there(part.Offset())
	t.seek(part.Offset())
	if how.cached {
		part.ThroughCache()
	}
	if s != nil {
		f, err := part.Content()
		if err != nil {
			return nil, err
		}
		s.Begin(d, f, part.Offset())
	}
	if how.later {
		part.Defer()
		return part, p.repo.fill(ctx, part, d, s, t)
	}
	if err := p.repo.complete(ctx, part, d, s, t, damageAttempts); err != nil {
		return nil, err
	}
	return part, s.Verified(d)
}

// complete downloads the missing part of a blob and verifies the blob. It downloads all of a damaged blob again. After the first bad answer, which a proxy or a restarting registry
// may have sent, it repeats the request once. A mirror whose bytes are damaged is left out, and is no attempt.
func (r *repo) complete(ctx context.Context, p *store.Ingest, d ocispec.Descriptor, s *store.PullSource, t *tracker, attempts int) (err error) {
	for asked := false; attempts > 0; {
		err = r.fill(ctx, p, d, s, t)
		if !asked && errors.As(err, new(*AnswerError)) && ctx.Err() == nil && r.timing.pause(ctx, 0) == nil {
			asked = true
			t.again()
			err = r.fill(ctx, p, d, s, t)
		}
		if err != nil {
			return err
		}
		if err = p.Verify(ctx); !errors.Is(err, store.ErrCorrupt) {
			return err
		}
		if !r.distrust(d.Digest) {
			attempts--
		}
	}
	return err
}

// fill fetches what is missing: all of it at once, or with a source in parts, and without those that have come otherwise.
func (r *repo) fill(ctx context.Context, p *store.Ingest, d ocispec.Descriptor, s *store.PullSource, t *tracker) error {
	buf := format.LendBuffer()
	defer format.ReturnBuffer(buf)
	inParts := s != nil
	for n := 0; p.Offset() < d.Size; {
		next := r.rest
		if inParts {
			next = r.part
		}
		err := next(ctx, p, d, s, buf, t)
		if errors.Is(err, errNoParts) && n < r.timing.attempts { // then as a whole, from its begin
			n, inParts = n+1, false
			err = p.Reset()
			s.Came(d, 0)
			t.seek(0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// part takes what has come ahead of the rest, or makes one request for what follows, which is no more than comes in a moment.
func (r *repo) part(ctx context.Context, p *store.Ingest, d ocispec.Descriptor, s *store.PullSource, buf []byte, t *tracker) error {
	off := p.Offset()
	if n, err := s.Ahead(ctx, d, off, buf[:pieceAt(off, d.Size)]); n > 0 || err != nil {
		if err == nil {
			_, err = p.Write(buf[:n])
		}
		s.Came(d, p.Offset())
		t.seek(p.Offset())
		return err
	}
	most, end, err := r.line.rest(ctx)
	if err != nil {
		return err
	}
	defer end()
	b := &blobReader{ctx: ctx, repo: r, d: d, off: off, end: s.Gap(d, off, min(off+most, d.Size)), part: true, t: t, priority: lastPriority}
	if b.end == off {
		return nil // a reader has asked for it meanwhile
	}
	if err := appendAll(p, b, d, s, buf); err != nil {
		return err
	}
	r.line.measure(b.end-b.began, b.latency, time.Since(b.since))
	return nil
}

// rest makes a request for all that is missing.
func (r *repo) rest(ctx context.Context, p *store.Ingest, d ocispec.Descriptor, s *store.PullSource, buf []byte, t *tracker) error {
	return appendAll(p, &blobReader{ctx: ctx, repo: r, d: d, off: p.Offset(), end: d.Size, t: t}, d, s, buf)
}

// appendAll appends what b reads, and closes it. What has come before an error is kept.
func appendAll(p *store.Ingest, b *blobReader, d ocispec.Descriptor, s *store.PullSource, buf []byte) error {
	defer b.Close()
	for p.Offset() < b.end {
		n, err := io.ReadFull(b, buf[:pieceAt(p.Offset(), b.end)])
		if n > 0 {
			if _, err := p.Write(buf[:n]); err != nil {
				return err
			}
			s.Came(d, p.Offset())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pieceAt is how much is written at once at an offset, before end: up to where what is aligned goes past the page cache.
func pieceAt(off, end int64) int64 { return min(format.DirectPiece-off%format.DirectPiece, end-off) }
