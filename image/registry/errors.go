package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// AnswerError says that a registry has not brought bytes that it was asked for: it cannot be reached, refuses, or answers with something else. What is wrong with
// bytes that it has brought is another error. Its kind is its cause's.
type AnswerError struct{ Err error }

func (e *AnswerError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *AnswerError) Unwrap() error { return e.Err }

// unknownError returns the error that the registry has no such repository, tag or digest.
func unknownError(ref string) error {
	return failure.New(errdefs.ErrNotFound, "check the name and the tag; a reference without host means docker.io", "the registry has no %s", ref)
}

// unreachableError returns the error that no registry answers at a host. A timeout of the network is not told apart from a deadline of ours by errors.Is, so it is only shown.
func unreachableError(host string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New(err.Error())
	}
	return failure.New(errdefs.ErrUnavailable,
		"check the host and port in the reference, the network, and HTTPS_PROXY; what was sent or fetched so far is kept and the same command goes on from there",
		"registry %s cannot be reached: %w", host, err)
}

// plainError returns the error that a registry speaks HTTP where we speak HTTPS.
func plainError(host string) error {
	return failure.New(errdefs.ErrUnavailable, "use --plain-http if the network between here and the registry is trusted: memory of processes goes over it unencrypted",
		"registry %s speaks plain HTTP, not HTTPS", host)
}

// securedError returns the error that a registry refuses HTTP, as servers do that speak HTTPS.
func securedError(host string, err error) error {
	return failure.New(errdefs.ErrUnavailable, "leave out --plain-http", "registry %s refuses plain HTTP, perhaps since it speaks HTTPS: %w", host, err)
}

// certificateError returns the error that the registry's certificate is not accepted.
func certificateError(host string, err error) error {
	return failure.New(errdefs.ErrUnavailable, fmt.Sprintf("give the certificate of its authority with --tlscacert or put it at %s/%s/ca.crt", dockerCerts, host),
		"certificate of registry %s is not accepted: %w", host, err)
}

// authorityError returns the error that a file with certificates or keys cannot be used.
func authorityError(path string, err error) error {
	return failure.New(errdefs.ErrInvalidArgument, "the file must hold certificates in PEM form", "read certificates from %s: %w", path, err)
}

// authError returns the error that the registry does not let us in: denied, where it knows us. user is the name that we gave; empty: none.
func authError(host, repo, user string, denied bool) error {
	login := fmt.Sprintf("log in with `docker login %s` or `nerdctl login %s`, as the user that runs cryo, and check the name", host, host)
	switch {
	case denied && user != "":
		return failure.New(errdefs.ErrPermissionDenied, fmt.Sprintf("check the name %s and that user %s may read and write there", repo, user),
			"registry %s does not allow this for user %s on %s", host, user, repo)
	case denied:
		return failure.New(errdefs.ErrPermissionDenied, login, "registry %s does not allow this on %s without a login", host, repo)
	case user != "":
		return failure.New(errdefs.ErrUnauthenticated, login, "registry %s refuses the password of user %s", host, user)
	}
	return failure.New(errdefs.ErrUnauthenticated, login, "registry %s wants a login for %s", host, repo)
}

// tokenServiceError returns the error that the registry sends us with our password to a service that we do not trust with it.
func tokenServiceError(host string, err error) error {
	return failure.New(errdefs.ErrPermissionDenied, "a token service must speak HTTPS if the registry does, and must have the registry's own host name or a public address",
		"registry %s names a token service that gets no password: %w", host, err)
}

// credentialsError returns the error that Docker's credential store cannot be read.
func credentialsError(host string, err error) error {
	return failure.New(errdefs.ErrFailedPrecondition, "check config.json in $DOCKER_CONFIG or ~/.docker and that the credential helper it names is installed",
		"read credentials for %s: %w", host, err)
}

// serverError returns the error that the registry answered with an error that repeating did not mend: of kind Unavailable for 5xx and 429, of kind FailedPrecondition for
// everything that it refuses. A status of 0 is that of an answer that is no error, and of no use.
func serverError(host string, status int, err error) error {
	kind, hint := error(errdefs.ErrFailedPrecondition), "look at the registry's log"
	switch {
	case status == http.StatusRequestEntityTooLarge:
		hint = "the registry, or a proxy before it, limits the size of a blob: raise the limit or use smaller segments"
	case temporaryStatus(status):
		kind, hint = errdefs.ErrUnavailable, "try again later: what was sent or fetched so far is kept"
	}
	return failure.New(kind, hint, "registry %s: %w", host, err)
}
