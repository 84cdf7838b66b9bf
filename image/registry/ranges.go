package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// Ranges reads parts of blobs of one repository. It is for several goroutines; how many requests are under way at once is theirs
// to bound.
type Ranges struct {
	ref  string
	repo *repo
	o    Options
}

// Read reads len(p) bytes of a blob from off on, again where the connection is cut. A part of a blob has no digest of its own, so
// it cannot be verified here: check says whether p is what was wanted, and gets a second try where it is not. Its error is
// returned as it is.
func (g *Ranges) Read(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, check func([]byte) error) error {
	return g.read(ctx, d, off, p, check, nil)
}

// read is Read in a turn, unless that is nil.
func (g *Ranges) read(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, check func([]byte) error, turn *turn) error {
	if off < 0 || off > d.Size || int64(len(p)) > d.Size-off {
		return &CorruptError{What: "blob " + d.Digest.String(), Err: fmt.Errorf("it has %d bytes, not %d and %d", d.Size, off, len(p))}
	}
	if len(p) == 0 {
		return check(p)
	}
	ctx = g.repo.scoped(ctx, auth.ActionPull)
	for damaged := 1; ; damaged++ {
		if err := g.fill(ctx, d, off, p, turn); err != nil {
			return fmt.Errorf("read from %s: %w", g.ref, g.repo.classify(ctx, err))
		}
		err := check(p)
		if err == nil || damaged == damageAttempts || ctx.Err() != nil {
			return err
		}
		g.o.Counts.add(0, 0, 1)
		turn = nil
	}
}

// fill goes on after cuts as long as every attempt brings something.
func (g *Ranges) fill(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, turn *turn) (err error) {
	for n := 0; ; n++ {
		if turn == nil {
			if turn, err = g.repo.line.begin(ctx, int64(len(p)), urgent); err != nil {
				return err
			}
		}
		got, err := g.fetch(ctx, d, off, p, turn)
		turn.end()
		turn = nil
		off, p = off+int64(got), p[got:]
		var s *sendError
		if err == nil || !errors.As(err, &s) || !s.again || ctx.Err() != nil {
			return err
		}
		if got > 0 && moved(err, int64(got)) {
			n = 0
		}
		if n >= g.repo.timing.attempts {
			return fmt.Errorf("fetch %d bytes of blob %s at %d: %w", len(p), d.Digest, off, err)
		}
		if err := g.repo.timing.pause(ctx, n, 0); err != nil {
			return err
		}
		g.o.Counts.add(0, 0, 1)
	}
}

// fetch makes one request.
func (g *Ranges) fetch(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, turn *turn) (int, error) {
	ctx, dog := watch(ctx, g.repo.timing.idle)
	defer dog.stop()
	dog.pause() // until there is an answer the transport bounds the time
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1)}}
	resp, err := g.repo.do(ctx, http.MethodGet, g.repo.url("blobs", d.Digest.String()), header)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return 0, &CorruptError{What: "snapshot in the registry", Err: fmt.Errorf("blob %s is gone", d.Digest)}
	case resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusPartialContent && !rangeFrom(resp, off):
		return 0, serverError(g.repo.ref.Registry, 0, errors.New("it does not serve parts of blobs"))
	case resp.StatusCode != http.StatusPartialContent:
		return 0, answerError(resp)
	}
	if has, known := sizeThere(resp); known && has != d.Size {
		return 0, &CorruptError{What: "blob " + d.Digest.String(), Err: fmt.Errorf("the registry has %d bytes, not %d", has, d.Size)}
	}
	dog.kick()
	turn.answered()
	n, err := io.ReadFull(turn.on(&watched{ReadCloser: resp.Body, w: dog, t: &tracker{m: &meter{counts: g.o.Counts}}}), p)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return n, &sendError{err, temporary(err)}
	}
	return n, nil
}
