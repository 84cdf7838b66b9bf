package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// source is a blob that can be read as often as sending it takes.
type source struct {
	d    ocispec.Descriptor
	open func() (io.ReadCloser, error)
	from string // another repository of the same registry that may have it; empty: none
}

// sourceError is an error of reading what is sent.
type sourceError struct{ error }

// Unwrap gives the error.
func (e *sourceError) Unwrap() error { return e.error }

// sourceReader reads what is sent, and tells a tracker.
type sourceReader struct {
	io.ReadCloser
	t *tracker
}

// Read implements [io.Reader].
func (r *sourceReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.t.moved(int64(n))
	if err != nil && err != io.EOF {
		err = &sourceError{err}
	}
	return n, err
}

// sendError is an error that came up while the blob itself was under way.
type sendError struct {
	err   error
	again bool
}

func (e *sendError) Error() string { return e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

// upload makes sure that the registry has a blob: it asks, mounts, or sends it as a whole, again if need be.
func (r *repo) upload(ctx context.Context, src source, t *tracker) error {
	for n := 0; ; n++ {
		// Also after a failure: the registry may have got it all and only the answer was lost.
		ok, err := r.hasBlob(ctx, src.d)
		if err != nil {
			return fmt.Errorf("look for blob %s: %w", src.d.Digest, err)
		}
		if ok {
			t.there(src.d.Size)
		} else {
			t.seek(0)
			err = r.uploadOnce(ctx, src, t)
		}
		if err == nil {
			t.seek(src.d.Size)
			return nil
		}
		var s *sendError
		if !errors.As(err, &s) || !s.again || n >= r.timing.attempts || ctx.Err() != nil {
			return r.blame(src, fmt.Errorf("send blob %s: %w", src.d.Digest, err))
		}
		if err := r.timing.pause(ctx, n); err != nil {
			return err
		}
		t.again()
	}
}

// uploadOnce starts an upload and sends the blob: POST and PUT of the distribution specification,
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#post-then-put.
func (r *repo) uploadOnce(ctx context.Context, src source, t *tracker) error {
	start, err := r.startUpload(ctx, src)
	if err == nil && start == nil {
		t.there(src.d.Size)
	}
	if err != nil || start == nil {
		return err
	}
	location, err := r.location(start, src.d.Digest)
	if err != nil {
		return err
	}
	body := func() (io.ReadCloser, error) {
		rc, err := src.open()
		if err != nil {
			return nil, &sourceError{err}
		}
		t.seek(0)
		return &sourceReader{rc, t}, nil
	}
	first, err := body()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(once(ctx), http.MethodPut, location, first)
	if err != nil {
		first.Close()
		return err
	}
	req.GetBody = body
	req.ContentLength = src.d.Size
	if src.d.Size == 0 {
		first.Close()
		req.Body, req.GetBody = http.NoBody, nil
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if a := start.Request.Header.Get("Authorization"); a != "" {
		// So that the blob is not sent just to be told to log in.
		req.Header.Set("Authorization", a)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return &sendError{err, temporary(err)}
	}
	if resp.StatusCode != http.StatusCreated {
		// 401: the token ran out on the way. 404, 416: the upload did, or another node has it.
		again := temporaryStatus(resp.StatusCode) || resp.StatusCode == http.StatusUnauthorized ||
			resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable
		return &sendError{answerError(resp), again}
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Docker-Content-Digest"); got != "" && got != src.d.Digest.String() {
		return &CorruptError{What: "blob " + src.d.Digest.String(), Err: fmt.Errorf("the registry stored it as %.80q", got)}
	}
	return nil
}

// startUpload returns no answer where the blob could be mounted.
func (r *repo) startUpload(ctx context.Context, src source) (*http.Response, error) {
	uploads := r.url("blobs", "uploads/")
	if src.from != "" {
		from := r.ref
		from.Repository = src.from
		query := url.Values{"mount": {src.d.Digest.String()}, "from": {src.from}}
		resp, err := r.do(auth.AppendRepositoryScope(ctx, from, auth.ActionPull), http.MethodPost, uploads+"?"+query.Encode(), nil)
		if err == nil {
			resp.Body.Close()
			switch resp.StatusCode {
			case http.StatusCreated:
				return nil, nil
			case http.StatusAccepted:
				return resp, nil
			}
		}
		// No right to the other repository, or no such thing as mounting: send it.
	}
	resp, err := r.do(ctx, http.MethodPost, uploads, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusAccepted {
		return nil, answerError(resp)
	}
	resp.Body.Close()
	return resp, nil
}

// askUpload begins an upload and cancels it. A registry refuses to begin one for users who may not push.
func (r *repo) askUpload(ctx context.Context) error {
	start, err := r.startUpload(ctx, source{})
	if err != nil {
		return fmt.Errorf("begin an upload: %w", err)
	}
	at, err := start.Location()
	if err != nil || at.Hostname() != start.Request.URL.Hostname() {
		return nil // where it leads to another host, sending a blob says so
	}
	// Not every registry can cancel an upload. What is not cancelled expires there.
	if resp, err := r.do(once(ctx), http.MethodDelete, at.String(), nil); err == nil {
		resp.Body.Close()
	}
	return nil
}

// location is where the blob is to be sent: on the registry's own host, or our credentials and the memory of processes could be
// led elsewhere (GHSA-jxpm-75mh-9fp7 in oras-go).
func (r *repo) location(resp *http.Response, d digest.Digest) (string, error) {
	u, err := resp.Location()
	if err != nil {
		return "", fmt.Errorf("start upload: %w", err)
	}
	if u.Hostname() != resp.Request.URL.Hostname() || port(u) != port(resp.Request.URL) {
		return "", serverError(r.ref.Registry, 0, fmt.Errorf("it wants the blob sent to another host, %s", u.Host))
	}
	if u.Scheme != resp.Request.URL.Scheme && u.Scheme != "https" {
		return "", serverError(r.ref.Registry, 0, fmt.Errorf("it wants the blob sent over %s", u.Scheme))
	}
	q := u.Query()
	q.Set("digest", d.String())
	u.RawQuery = q.Encode()
	return u.String(), nil
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	// Some registries leave the port out behind a proxy that ends TLS, so both schemes' default is one.
	return "443"
}

// blame finds out who damaged a blob that the registry found to have another digest.
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
		return &CorruptError{What: "blob " + src.d.Digest.String() + " here", Err: errors.New("content does not have this digest")}
	}
	return err
}
