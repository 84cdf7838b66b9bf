package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
)

// errNoParts says that a registry answers a request for a part of a blob with something else.
var errNoParts = errors.New("it does not serve parts of blobs")

// blobReader reads bytes of a blob, which are not verified here. A connection that is cut or stalls is taken up where it ended, as long as attempts bring something.
type blobReader struct {
	ctx      context.Context
	repo     *repo
	d        ocispec.Descriptor
	off, end int64 // what is read next, and up to where
	part     bool  // it is asked for as a part, also where it is all of the blob
	t        *tracker
	priority string // of RFC 9218; empty: as usual

	body    io.ReadCloser // nil: it is to be asked for
	began   int64         // where body began
	fails   int           // attempts that have brought next to nothing
	cut     error         // why the last attempt ended; nil: it is the first
	latency time.Duration // until the last answer
	since   time.Time     // of the last answer
}

// lastPriority is that of requests for what no reader waits for. Source: RFC 9218, sections 4.1 and 5.
const lastPriority = "u=7"

// open asks for what follows.
func (b *blobReader) open() error {
	header := http.Header{}
	if b.isPart() {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", b.off, b.end-1))
	}
	if b.priority != "" {
		header.Set("Priority", b.priority)
	}
	for {
		asked := time.Now()
		resp, err := b.repo.do(b.ctx, http.MethodGet, b.repo.url("blobs", b.d.Digest.String()), header)
		if err != nil {
			return err
		}
		if err = b.check(resp); err == nil {
			b.body, b.began, b.since = resp.Body, b.off, time.Now()
			b.latency = b.since.Sub(asked)
			return nil
		}
		resp.Body.Close()
		if !wrong(resp.Body) {
			return err
		}
	}
}

func (b *blobReader) isPart() bool { return b.part || b.off > 0 || b.end < b.d.Size }

// check returns an error unless an answer brings what was asked for.
func (b *blobReader) check(resp *http.Response) error {
	if has, known := sizeThere(resp); known && has != b.d.Size {
		return store.Corrupt("blob "+b.d.Digest.String(), fmt.Errorf("the registry has %d bytes, not %d", has, b.d.Size))
	}
	switch resp.StatusCode {
	case http.StatusPartialContent:
		if b.isPart() && strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", b.off)) {
			return nil
		}
		return errNoParts
	case http.StatusRequestedRangeNotSatisfiable:
		return errNoParts
	case http.StatusOK:
		if b.isPart() {
			return errNoParts
		}
		return nil
	case http.StatusNotFound:
		return store.Corrupt(b.repo.name+" in the registry", fmt.Errorf("blob %s is gone", b.d.Digest))
	}
	return answerError(resp)
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

// Read implements [io.Reader].
func (b *blobReader) Read(p []byte) (int, error) {
	for b.off < b.end {
		if b.body == nil {
			if err := b.open(); err != nil { // for which requests are repeated elsewhere
				if errors.Is(err, errNoParts) && b.cut != nil {
					err = fmt.Errorf("%w, and %w", b.cut, err)
				}
				return 0, b.failed(err)
			}
		}
		n, err := b.body.Read(p[:min(int64(len(p)), b.end-b.off)])
		b.off += int64(n)
		b.t.moved(int64(n))
		if moved := b.off - b.began; moved >= leastMoved || moved > b.d.Size/16 {
			b.fails = 0
		}
		if n > 0 || err == nil {
			return n, nil // an error comes again
		}
		body := b.body
		b.Close()
		if b.ctx.Err() == nil && broken(body) {
			b.t.again()
			continue
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if b.ctx.Err() != nil || !temporary(err) || b.fails >= b.repo.timing.attempts {
			return 0, b.failed(err)
		}
		b.cut = err
		if err := b.repo.timing.pause(b.ctx, b.fails); err != nil {
			return 0, err
		}
		b.fails++
		b.t.again()
	}
	return 0, io.EOF
}

func (b *blobReader) failed(err error) error {
	return &AnswerError{fmt.Errorf("fetch blob %s: %w", b.d.Digest, err)}
}

// Close implements [io.Closer].
func (b *blobReader) Close() error {
	if b.body == nil {
		return nil
	}
	body := b.body
	b.body = nil
	return body.Close()
}
