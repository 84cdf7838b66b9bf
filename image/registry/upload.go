package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/cryo-project/cryo/image/store"
)

// source is a blob that can be read as often as sending it takes.
type source struct {
	d    ocispec.Descriptor
	open func() (io.ReadCloser, error)
	from string // another repository of the same registry that may have it; empty: none
}

// sourceError is an error of reading what is sent.
type sourceError struct{ error }

// Unwrap returns the error.
func (e *sourceError) Unwrap() error { return e.error }

// sourceReader opens a source when it is read, and tells a tracker.
type sourceReader struct {
	source
	t     *tracker
	begun atomic.Bool // net/http has the request of which this is the body
	rc    io.ReadCloser
}

// Read implements [io.Reader].
func (r *sourceReader) Read(p []byte) (n int, err error) {
	r.begun.Store(true)
	if r.rc == nil {
		r.t.seek(0)
		if r.rc, err = r.open(); err != nil {
			return 0, &sourceError{err}
		}
	}
	n, err = r.rc.Read(p)
	r.t.moved(int64(n))
	if err != nil && err != io.EOF {
		err = &sourceError{err}
	}
	return n, err
}

// Close implements [io.Closer].
func (r *sourceReader) Close() error {
	r.begun.Store(true)
	if r.rc == nil {
		return nil
	}
	return r.rc.Close()
}

// upload makes sure that the registry has a blob: it asks, mounts, or sends it as a whole, again if need be.
func (r *repo) upload(ctx context.Context, src source, t *tracker) error {
	for n := 0; ; n++ {
		// Also after a failure: the registry may have got it all and only the answer was lost.
		ok, err := r.hasBlob(ctx, src.d)
		if err != nil {
			return fmt.Errorf("look for blob %s: %w", src.d.Digest, err)
		}
		if ok {
			t.have(src.d.Size)
			return nil
		}
		body := &sourceReader{source: src, t: t}
		if err = r.send(ctx, src, body); err == nil {
			if !body.begun.Load() { // it was mounted
				t.there(src.d.Size)
			}
			t.seek(src.d.Size)
			return nil
		}
		// Requests before the blob's own have been repeated.
		if !body.begun.Load() || !sendAgain(err) || n >= r.timing.attempts || ctx.Err() != nil {
			return r.blame(src, fmt.Errorf("send blob %s: %w", src.d.Digest, err))
		}
		if err := r.timing.pause(ctx, n); err != nil {
			return err
		}
		t.again()
	}
}

// send mounts a blob, or sends it.
func (r *repo) send(ctx context.Context, src source, body *sourceReader) error {
	if src.from != "" {
		err := r.manager.Mount(ctx, src.d, src.from, func() (io.ReadCloser, error) { return body, nil })
		if err == nil || body.begun.Load() {
			return err
		}
		// No right to the other repository, or no such thing as mounting: send it.
	}
	if src.d.Size == 0 {
		return r.manager.Blobs().Push(ctx, src.d, http.NoBody)
	}
	return r.manager.Blobs().Push(ctx, src.d, body)
}

// sendAgain reports whether sending a blob again may mend the error.
func sendAgain(err error) bool {
	var answer *errcode.ErrorResponse
	if !errors.As(err, &answer) {
		return temporary(err)
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized: // the token ran out on the way
		return true
	case http.StatusNotFound, http.StatusRequestedRangeNotSatisfiable: // the upload did, or another node has it
		return true
	}
	return temporaryStatus(answer.StatusCode)
}

// askUpload begins an upload and cancels it. A registry refuses to begin one for users who may not push.
func (r *repo) askUpload(ctx context.Context) error {
	start, err := r.do(ctx, http.MethodPost, r.url("blobs", "uploads/"), nil)
	if err == nil && start.StatusCode != http.StatusAccepted {
		err = answerError(start)
	}
	if err != nil {
		return fmt.Errorf("begin an upload: %w", err)
	}
	start.Body.Close()
	at, err := start.Location()
	if err != nil || at.Hostname() != start.Request.URL.Hostname() {
		return nil // where it leads to another host, sending a blob says so
	}
	// Not every registry can cancel an upload. What is not cancelled expires there.
	if resp, err := r.do(ctx, http.MethodDelete, at.String(), nil); err == nil {
		resp.Body.Close()
	}
	return nil
}

// blame finds out which side damaged a blob that the registry found to have another digest.
func (r *repo) blame(src source, err error) error {
	var answer *errcode.ErrorResponse
	if !errors.As(err, &answer) || !hasCode(answer, errcode.ErrorCodeDigestInvalid) && !hasCode(answer, errcode.ErrorCodeSizeInvalid) {
		return err
	}
	rc, oerr := src.open()
	if oerr != nil {
		return oerr
	}
	defer rc.Close()
	v := src.d.Digest.Verifier()
	if n, rerr := io.Copy(v, rc); rerr != nil || n != src.d.Size || !v.Verified() {
		return store.Corrupt("blob "+src.d.Digest.String()+" here", errors.New("content does not have this digest"))
	}
	return err
}
