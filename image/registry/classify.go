package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/store"
)

// hinter is what all errors for users have.
type hinter interface {
	error
	Hint() string
}

// ours is an error of this package on its way through net/http and oras-go, which put the request before it.
type ours struct{ error }

// Unwrap returns the error.
func (o ours) Unwrap() error { return o.error }

// classify makes an error for users of whatever came from net/http, crypto/tls and oras.
func (r *repo) classify(ctx context.Context, err error) error {
	var (
		h      hinter
		own    ours
		answer *errcode.ErrorResponse
		uerr   *url.Error
	)
	host := r.ref.Registry
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own.error
	case errors.As(err, &h):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case strings.Contains(err.Error(), "blob upload Location"): // oras-go refuses that it leads elsewhere; the error has no type
		return serverError(host, 0, err)
	case isRealm(err):
		if errors.As(err, &uerr) {
			err = uerr.Err
		}
		return tokenServiceError(host, err)
	case errors.As(err, &answer):
		return r.classifyAnswer(withoutQuery(answer))
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return r.authError(false)
	case errors.Is(err, errdef.ErrNotFound):
		return unknownError(r.name)
	case isCertificate(err):
		if errors.As(err, &uerr) {
			err = uerr.Err
		}
		return certificateError(host, err)
	case isPlain(err):
		return plainError(host)
	case errors.Is(err, errNoParts) && !temporary(err):
		return serverError(host, 0, errNoParts)
	}
	if errors.As(err, &uerr) {
		// The URL of a redirect may hold a signature.
		err = uerr.Err
	}
	if isNetwork(err) || temporary(err) {
		return unreachableError(host, err)
	}
	return err
}

func (r *repo) authError(denied bool) error {
	return authError(r.ref.Registry, r.ref.Repository, r.user(), denied)
}

func (r *repo) classifyAnswer(e *errcode.ErrorResponse) error {
	switch {
	case e.StatusCode == http.StatusBadRequest && len(e.Errors) == 0 && e.URL != nil && e.URL.Scheme == "http":
		return securedError(r.ref.Registry, e)
	case e.StatusCode == http.StatusUnauthorized:
		return r.authError(false)
	case e.StatusCode == http.StatusForbidden, hasCode(e, errcode.ErrorCodeDenied):
		return r.authError(true)
	case hasCode(e, errcode.ErrorCodeDigestInvalid), hasCode(e, errcode.ErrorCodeSizeInvalid):
		return store.Corrupt("what the registry received", e)
	case e.StatusCode == http.StatusNotFound && !hasCode(e, errcode.ErrorCodeManifestBlobUnknown):
		return unknownError(r.name)
	}
	return serverError(r.ref.Registry, e.StatusCode, e)
}

func hasCode(e *errcode.ErrorResponse, code string) bool {
	for _, x := range e.Errors {
		if x.Code == code {
			return true
		}
	}
	return false
}

// answerError makes an error of an answer that was not expected, and closes it.
func answerError(resp *http.Response) error {
	defer resp.Body.Close()
	e := &errcode.ErrorResponse{Method: resp.Request.Method, URL: resp.Request.URL, StatusCode: resp.StatusCode}
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	if data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10)); err == nil && format.SmallJSON.Unmarshal(data, &body) == nil {
		e.Errors = body.Errors
	}
	return e
}

// withoutQuery leaves out what is secret in a URL, and of no use.
func withoutQuery(e *errcode.ErrorResponse) *errcode.ErrorResponse {
	if e.URL == nil {
		return e
	}
	shown, u := *e, *e.URL
	u.RawQuery, u.User = "", nil
	shown.URL = &u
	return &shown
}

func isCertificate(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.AlertError))
}

// isPlain reports whether TLS met plain HTTP. The second form is net/http's and has no type.
func isPlain(err error) bool {
	var record tls.RecordHeaderError
	return errors.As(err, &record) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// isRealm reports whether oras-go refuses the token service that a registry names, to keep passwords from those who could only
// want them (https://github.com/oras-project/oras-go/security/advisories/GHSA-xf85-363p-868w). The error has no type.
func isRealm(err error) bool { return strings.Contains(err.Error(), "bearer realm") }

// isNetwork is about the network, and not about a file: an error number of the kernel's is a net.Error, too.
func isNetwork(err error) bool {
	var n net.Error
	var file *fs.PathError
	return errors.As(err, &n) && !errors.As(err, &file)
}

// refused reports whether no process listens at the address.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// temporary reports whether repeating a request may mend the error: a cut, reset or stalled connection.
func temporary(err error) bool {
	if errors.Is(err, context.Canceled) || isCertificate(err) || isPlain(err) {
		return false
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return !dns.IsNotFound
	}
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT, net.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	var n net.Error
	if errors.As(err, &n) && n.Timeout() || errors.As(err, new(*MirrorError)) {
		return true
	}
	// net/http keeps these two to itself.
	return refused(err) || strings.Contains(err.Error(), "server closed idle connection") || strings.Contains(err.Error(), "malformed HTTP")
}

func temporaryStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
