package signature

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// Rule is the name of the rule by which a snapshot is refused.
const Rule = "signature"

// Reason says why a signature does not count.
type Reason string

// The reasons there are, the more telling ones later.
const (
	Unsigned     Reason = "unsigned"      // there is none
	Damaged      Reason = "damaged"       // it cannot be read, or is not what its key has signed
	UntrustedKey Reason = "untrusted-key" // no key that counts has made it
	OtherDigest  Reason = "other-digest"  // it is one of another snapshot
)

func (r Reason) rank() int {
	switch r {
	case Damaged:
		return 1
	case UntrustedKey:
		return 2
	case OtherDigest:
		return 3
	}
	return 0
}

// Error says that a snapshot has no signature that counts. Its kind is PermissionDenied.
type Error struct {
	Ref    string
	Reason Reason
	Signer string // fingerprint of the key that it is of, or says that it is; empty: unknown
	NoKeys bool   // no key counts for this repository
	Many   bool   // there are more signatures than are looked at
	Err    error  // what is damaged
}

func (e *Error) Error() string {
	text := Rule + ": "
	signer := e.Signer
	if signer == "" {
		signer = "a key that it does not name"
	}
	switch e.Reason {
	case OtherDigest:
		text += fmt.Sprintf("%s has a signature of another snapshot, by %s", e.Ref, signer)
	case UntrustedKey:
		text += fmt.Sprintf("%s is signed by %s, as far as it says itself, and that is no key that is trusted here", e.Ref, signer)
	case Damaged:
		text += fmt.Sprintf("the signature of %s is damaged: %v", e.Ref, e.Err)
	default:
		text += e.Ref + " is not signed"
	}
	if e.Many {
		text += fmt.Sprintf(" (only %d signatures of it are looked at)", MaxAttached)
	}
	return text
}

// ByRule returns [Rule].
func (e *Error) ByRule() string { return Rule }

// Hint says what to do next.
func (e *Error) Hint() string {
	unsigned := `or, if whoever may write there is trusted without, write under [trust.repositories] in /etc/cryo/config.toml: "HOST/PATH" = "unsigned"`
	if repository := RepositoryOf(e.Ref); repository != "" {
		unsigned = strings.Replace(unsigned, "HOST/PATH", repository, 1)
	}
	switch {
	case e.Reason == OtherDigest:
		return "it was moved there: find out who may write to the repository, and take the snapshot from where it was signed"
	case e.NoKeys:
		return `no key counts for it yet: have it signed, cryo sign REF --key FILE, and write under [trust] in /etc/cryo/config.toml: keys = ["PUBLIC-KEY-FILE"]; ` + unsigned
	case e.Reason == UntrustedKey:
		return "if that key is to be trusted, name the file with its public key under [trust] in the configuration; else sign with one that is: cryo sign REF --key FILE"
	case e.Reason == Damaged:
		return "sign it again, cryo sign REF --key FILE, and fetch it with cryo pull"
	}
	return "have it signed, cryo sign REF --key FILE or cosign sign --key FILE REPOSITORY@DIGEST, and fetch the signature with cryo pull; " + unsigned
}

// Unwrap returns the kind. That of what is damaged is no matter: the snapshot itself may be whole.
func (e *Error) Unwrap() error { return errdefs.ErrPermissionDenied }

// keyError returns the error that a file holds no key that can be used.
func keyError(path, hint string, err error) error {
	return failure.New(errdefs.ErrInvalidArgument, hint, "read key %s: %w", path, err)
}

// damagedf returns what is wrong with a signature.
func damagedf(format string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss, "", format, args...)
}
