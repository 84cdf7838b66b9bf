package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/store"
)

// Errors that this package shares with the local store.
type (
	// NotSnapshotError says that what a reference names is something else than a snapshot.
	NotSnapshotError = store.NotSnapshotError
	// CorruptError says that bytes, received or to be sent, are not what their digest says.
	CorruptError = store.CorruptError
	// InvalidRefError says that a name is not a reference.
	InvalidRefError = store.InvalidRefError
)

// UnreachableError says that no registry answers at a host. It is an errdefs.ErrUnavailable.
type UnreachableError struct {
	Host string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("registry %s cannot be reached: %v", e.Host, e.Err)
}

// Unwrap gives the kind and the cause. A timeout of the network is not told apart from a deadline of ours by errors.Is, so it is
// left out.
func (e *UnreachableError) Unwrap() []error {
	if errors.Is(e.Err, context.DeadlineExceeded) {
		return []error{errdefs.ErrUnavailable}
	}
	return []error{errdefs.ErrUnavailable, e.Err}
}

// Hint says what to check.
func (e *UnreachableError) Hint() string {
	return "check the host and port in the reference, the network, and HTTPS_PROXY; what was sent or fetched so far is kept and the same command goes on from there"
}

// SchemeError says that one side speaks HTTP and the other HTTPS. It is an errdefs.ErrUnavailable.
type SchemeError struct {
	Host string
	TLS  bool // the registry speaks TLS and we did not; otherwise the other way round
}

func (e *SchemeError) Error() string {
	if e.TLS {
		return fmt.Sprintf("registry %s speaks HTTPS, not plain HTTP", e.Host)
	}
	return fmt.Sprintf("registry %s speaks plain HTTP, not HTTPS", e.Host)
}
func (e *SchemeError) Unwrap() error { return errdefs.ErrUnavailable }

// Hint says which option to change.
func (e *SchemeError) Hint() string {
	if e.TLS {
		return "leave out --plain-http"
	}
	return "use --plain-http if the network between here and the registry is trusted: memory of processes goes over it unencrypted"
}

// CertificateError says that the registry's certificate is not accepted. It is an errdefs.ErrUnavailable.
type CertificateError struct {
	Host string
	Err  error
}

func (e *CertificateError) Error() string {
	return fmt.Sprintf("certificate of registry %s is not accepted: %v", e.Host, e.Err)
}
func (e *CertificateError) Unwrap() []error { return []error{errdefs.ErrUnavailable, e.Err} }

// Hint says where to put the authority's certificate.
func (e *CertificateError) Hint() string {
	return fmt.Sprintf("give the certificate of its authority with --tlscacert or put it at %s/%s/ca.crt", dockerCerts, e.Host)
}

// CAFileError says that a file with certificates or keys cannot be used. It is an errdefs.ErrInvalidArgument.
type CAFileError struct {
	Path string
	Err  error
}

func (e *CAFileError) Error() string {
	return fmt.Sprintf("read certificates from %s: %v", e.Path, e.Err)
}
func (e *CAFileError) Unwrap() []error { return []error{errdefs.ErrInvalidArgument, e.Err} }

// Hint says what the file should be.
func (e *CAFileError) Hint() string { return "the file must hold certificates in PEM form" }

// AuthError says that the registry does not let us in: an errdefs.ErrUnauthenticated, or an errdefs.ErrPermissionDenied where
// it knows who we are.
type AuthError struct {
	Host   string
	Repo   string
	User   string // who we said to be; empty: nobody
	Denied bool
	Err    error
}

func (e *AuthError) Error() string {
	switch {
	case e.Denied && e.User != "":
		return fmt.Sprintf("registry %s does not allow this for user %s on %s", e.Host, e.User, e.Repo)
	case e.Denied:
		return fmt.Sprintf("registry %s does not allow this on %s without a login", e.Host, e.Repo)
	case e.User != "":
		return fmt.Sprintf("registry %s refuses the password of user %s", e.Host, e.User)
	}
	return fmt.Sprintf("registry %s wants a login for %s", e.Host, e.Repo)
}

// Unwrap gives the kind and the registry's own answer.
func (e *AuthError) Unwrap() []error {
	kind := error(errdefs.ErrUnauthenticated)
	if e.Denied {
		kind = errdefs.ErrPermissionDenied
	}
	return []error{kind, e.Err}
}

// Hint says how to log in.
func (e *AuthError) Hint() string {
	if e.Denied && e.User != "" {
		return fmt.Sprintf("check the name %s and that user %s may read and write there", e.Repo, e.User)
	}
	return fmt.Sprintf("log in with `docker login %s` or `nerdctl login %s`, as the user that runs cryo, and check the name", e.Host, e.Host)
}

// TokenServiceError says that the registry sends us with our password to a service that we do not trust with it. It is an
// errdefs.ErrPermissionDenied.
type TokenServiceError struct {
	Host string
	Err  error
}

func (e *TokenServiceError) Error() string {
	return fmt.Sprintf("registry %s names a token service that gets no password: %v", e.Host, e.Err)
}
func (e *TokenServiceError) Unwrap() []error { return []error{errdefs.ErrPermissionDenied, e.Err} }

// Hint says which services are trusted.
func (e *TokenServiceError) Hint() string {
	return "a token service must speak HTTPS if the registry does, and must have the registry's own host name or a public address"
}

// CredentialsError says that Docker's credential store cannot be read. It is an errdefs.ErrFailedPrecondition.
type CredentialsError struct {
	Host string
	Err  error
}

func (e *CredentialsError) Error() string {
	return fmt.Sprintf("read credentials for %s: %v", e.Host, e.Err)
}
func (e *CredentialsError) Unwrap() []error { return []error{errdefs.ErrFailedPrecondition, e.Err} }

// Hint says where to look.
func (e *CredentialsError) Hint() string {
	return "check config.json in $DOCKER_CONFIG or ~/.docker and that the credential helper it names is installed"
}

// UnknownRefError says that the registry has no such repository, tag or digest. It is an errdefs.ErrNotFound.
type UnknownRefError struct {
	Ref string
	Err error
}

func (e *UnknownRefError) Error() string   { return fmt.Sprintf("the registry has no %s", e.Ref) }
func (e *UnknownRefError) Unwrap() []error { return []error{errdefs.ErrNotFound, e.Err} }

// Hint says what to check.
func (e *UnknownRefError) Hint() string {
	return "check the name and the tag; a reference without host means docker.io"
}

// ServerError says that the registry answered with an error that repeating did not mend: an errdefs.ErrUnavailable for 5xx and
// 429, an errdefs.ErrFailedPrecondition for everything that it refuses.
type ServerError struct {
	Host   string
	Status int
	Err    error
}

func (e *ServerError) Error() string { return fmt.Sprintf("registry %s: %v", e.Host, e.Err) }

// Unwrap gives the kind and the registry's own answer.
func (e *ServerError) Unwrap() []error {
	if temporaryStatus(e.Status) {
		return []error{errdefs.ErrUnavailable, e.Err}
	}
	return []error{errdefs.ErrFailedPrecondition, e.Err}
}

// Hint says whether trying again makes sense.
func (e *ServerError) Hint() string {
	switch {
	case e.Status == 413:
		return "the registry, or a proxy before it, limits the size of a blob: raise the limit or use smaller segments"
	case temporaryStatus(e.Status):
		return "try again later: what was sent or fetched so far is kept"
	}
	return "look at the registry's log"
}
