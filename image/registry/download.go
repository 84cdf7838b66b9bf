package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/store"
)

// damageAttempts is how often a blob is fetched that arrives with another digest.
const damageAttempts = 2

// verified brings a blob, which is still to be placed into the store, going on where an earlier attempt of any process stopped; nil: the
// store has it. What comes goes past the page cache.
func (r *repo) verified(ctx context.Context, dst *store.Store, d ocispec.Descriptor, t *tracker) (*store.Partial, error) {
	p, err := resume(ctx, dst, d, false, t)
	if err != nil || p == nil {
		return nil, err
	}
	if err := r.complete(ctx, p, d, nil, t, damageAttempts); err != nil {
		_ = p.Close() // err says more
		return nil, err
	}
	return p, nil
}

// resume opens what an earlier attempt has left of a blob; nil: the store has it. What comes goes past the page cache, unless cached.
func resume(ctx context.Context, dst *store.Store, d ocispec.Descriptor, cached bool, t *tracker) (*store.Partial, error) {
	p, err := dst.Partial(ctx, d)
	if err != nil {
		return nil, err
	}
	if p == nil { // another process was faster
		t.there(d.Size)
		t.seek(d.Size)
		return nil, nil
	}
	if cached {
		p.ThroughCache()
	}
	t.there(p.Offset())
	return p, nil
}

// complete brings what is missing of a blob, and verifies it. Where it is damaged all of it comes again.
func (r *repo) complete(ctx context.Context, p *store.Partial, d ocispec.Descriptor, w *Wanted, t *tracker, attempts int) (err error) {
	for range attempts {
		if err = r.fill(ctx, p, d, w, t); err != nil {
			return err
		}
		if err = p.Verify(ctx); !errors.As(err, new(*CorruptError)) {
			return err
		}
	}
	return err
}

// fill fetches what is missing, in parts where somebody may want some of it first. Cut connections are taken up again as long as every attempt brings something.
func (r *repo) fill(ctx context.Context, p *store.Partial, d ocispec.Descriptor, w *Wanted, t *tracker) error {
	high := p.Offset()
	for n := 0; p.Offset() < d.Size; n++ {
		t.seek(p.Offset())
		part, err := r.request(ctx, p, d, w, t)
		if err != nil {
			return err
		}
		if p.Offset() < d.Size {
			err = r.fetch(ctx, p, d, part, w, t)
		}
		if err == nil && p.Offset() < part.end {
			err = &sendError{io.ErrUnexpectedEOF, true}
		}
		if err == nil {
			n = -1
			continue
		}
		var s *sendError
		if !errors.As(err, &s) || !s.again || ctx.Err() != nil {
			return fmt.Errorf("fetch blob %s: %w", d.Digest, err)
		}
		if p.Offset() > high && moved(err, p.Offset()-high) { // further than ever: starting over is no progress
			n, high = 0, p.Offset()
		}
		if n >= r.timing.attempts {
			return fmt.Errorf("fetch blob %s: %w", d.Digest, err)
		}
		if err := r.timing.pause(ctx, n, 0); err != nil {
			return err
		}
		t.again()
	}
	return nil
}

// request is one for what is missing of a blob, up to an end.
type request struct {
	end  int64
	turn *turn
}

// request waits until more may be asked for. What has come ahead of the rest goes to its place before.
func (r *repo) request(ctx context.Context, p *store.Partial, d ocispec.Descriptor, w *Wanted, t *tracker) (request, error) {
	if w == nil {
		return request{d.Size, r.line.join(d.Size - p.Offset())}, nil
	}
	buf := direct.Lend()
	defer direct.Return(buf)
	for p.Offset() < d.Size {
		w.brought(d, p.Offset(), 0)
		turn, end, ahead, err := w.request(ctx, r.line, d, p.Offset(), buf)
		if turn != nil || err != nil {
			return request{end, turn}, err
		}
		if _, err := p.Write(ahead); err != nil {
			return request{}, err
		}
		t.seek(p.Offset())
	}
	w.brought(d, p.Offset(), 0)
	return request{end: d.Size}, nil
}

// fetch makes one request.
func (r *repo) fetch(ctx context.Context, p *store.Partial, d ocispec.Descriptor, part request, w *Wanted, t *tracker) error {
	defer part.turn.end()
	ctx, dog := watch(ctx, r.timing.idle)
	defer dog.stop()
	dog.pause() // until there is an answer the transport bounds the time
	header := http.Header{}
	switch {
	case w != nil:
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Offset(), part.end-1))
		header.Set("Priority", lastPriority)
	case p.Offset() > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-", p.Offset()))
	}
	resp, err := r.do(ctx, http.MethodGet, r.url("blobs", d.Digest.String()), header)
	if err != nil {
		return err
	}
	if has, known := sizeThere(resp); known && has != d.Size {
		resp.Body.Close()
		return &CorruptError{What: "blob " + d.Digest.String(), Err: fmt.Errorf("the registry has %d bytes, not %d", has, d.Size)}
	}
	switch {
	case resp.StatusCode == http.StatusPartialContent && rangeFrom(resp, p.Offset()):
	case resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusPartialContent, resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		// It does not do ranges.
		if p.Offset() > 0 {
			if err := p.Reset(); err != nil {
				return err
			}
			t.seek(0)
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			return &sendError{fmt.Errorf("unusable answer to a request for a range: %s", resp.Status), true}
		}
	case resp.StatusCode == http.StatusNotFound:
		resp.Body.Close()
		return &CorruptError{What: "snapshot in the registry", Err: fmt.Errorf("blob %s is gone", d.Digest)}
	default:
		return answerError(resp)
	}
	dog.kick()
	body := &watched{ReadCloser: resp.Body, w: dog, t: t}
	defer body.Close()
	part.turn.answered()
	return copyBody(ctx, p, part.turn.on(body), func() { w.brought(d, p.Offset(), part.end) }, dog.stop)
}

// readAhead is how many pieces of a body may be in memory: one comes while another is hashed and written.
const readAhead = 3

// copyBody tells errors of the network, which may pass, from those of the disk. more is called when some is written; stop ends ctx, and with it reading.
func copyBody(ctx context.Context, p *store.Partial, body io.Reader, more, stop func()) error {
	free, pieces := make(chan []byte, readAhead), make(chan piece, readAhead)
	for range readAhead {
		buf := direct.Lend()
		defer direct.Return(buf)
		free <- buf
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	off := p.Offset()
	reading.Go(func() { readPieces(ctx, body, off, free, pieces) })
	for piece := range pieces {
		if piece.n > 0 {
			if _, err := p.Write(piece.buf[:piece.n]); err != nil {
				return err
			}
			more()
		}
		if errors.Is(piece.err, io.EOF) {
			return nil
		}
		if piece.err != nil {
			return cutOff(ctx, piece.err)
		}
		free <- piece.buf
	}
	return cutOff(ctx, context.Canceled)
}

// cutOff is the error of a body that ends too early.
func cutOff(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &sendError{err, temporary(err)}
}

// piece is some of a body.
type piece struct {
	buf []byte
	n   int
	err error // behind it
}

// readPieces reads a body, which begins at off, until it ends or ctx does.
func readPieces(ctx context.Context, body io.Reader, off int64, free <-chan []byte, pieces chan<- piece) {
	defer close(pieces)
	for {
		var next piece
		select {
		case next.buf = <-free:
		case <-ctx.Done():
			return
		}
		// Up to a multiple of the piece: what is aligned goes past the page cache.
		next.n, next.err = fillPiece(body, next.buf[:maxPiece-off%maxPiece])
		off += int64(next.n)
		pieces <- next // there is room for all: what came before an error is kept
		if next.err != nil {
			return
		}
	}
}

// fillPiece is io.ReadFull with the reader's own errors: the end of a body is not the cut of a connection.
func fillPiece(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = r.Read(b[n:])
		n += k
	}
	return n, err
}

// rangeFrom says whether an answer starts at the byte that was asked for.
func rangeFrom(resp *http.Response, off int64) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", off))
}

// sizeThere is how large the registry says that the whole blob is, if it does.
func sizeThere(resp *http.Response) (size int64, known bool) {
	switch resp.StatusCode {
	case http.StatusOK:
		return resp.ContentLength, resp.ContentLength >= 0
	case http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		_, total, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
		size, err := strconv.ParseInt(total, 10, 64)
		return size, err == nil && size >= 0
	}
	return 0, false
}
