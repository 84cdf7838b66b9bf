package signature

import (
	"cmp"
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

// verdict is why no signature of a snapshot counts.
type verdict struct {
	ref    string
	reason Reason
	signer string // fingerprint of the key that made the signature, or that the signature names; empty: unknown
	noKeys bool   // no key counts for this repository
	many   bool   // there are more signatures than are looked at
	err    error  // what is damaged
}

// error returns the error of the verdict. Its kind is PermissionDenied, whatever is damaged: the snapshot itself may be whole.
func (v verdict) error() error {
	signer := cmp.Or(v.signer, "a key that it does not name")
	var text string
	switch v.reason {
	case OtherDigest:
		text = fmt.Sprintf("%s has a signature of another snapshot, by %s", v.ref, signer)
	case UntrustedKey:
		text = fmt.Sprintf("%s is signed by %s, as far as it says itself, and that is no key that is trusted here", v.ref, signer)
	case Damaged:
		text = fmt.Sprintf("the signature of %s is damaged: %v", v.ref, v.err)
	default:
		text = v.ref + " is not signed"
	}
	if v.many {
		text += fmt.Sprintf(" (only %d signatures of it are looked at)", MaxAttached)
	}
	return failure.New(errdefs.ErrPermissionDenied, v.hint(), "%s: %s", Rule, text).By(Rule)
}

// hint returns what to do next.
func (v verdict) hint() string {
	unsigned := `or, if whoever may write there is trusted without, write under [trust.repositories] in /etc/cryo/config.toml: "HOST/PATH" = "unsigned"`
	if repository := RepositoryOf(v.ref); repository != "" {
		unsigned = strings.Replace(unsigned, "HOST/PATH", repository, 1)
	}
	switch {
	case v.reason == OtherDigest:
		return "it was moved there: find out who may write to the repository, and take the snapshot from where it was signed"
	case v.noKeys:
		return `no key counts for it yet: have it signed, cryo sign REF --key FILE, and write under [trust] in /etc/cryo/config.toml: keys = ["PUBLIC-KEY-FILE"]; ` + unsigned
	case v.reason == UntrustedKey:
		return "if that key is to be trusted, name the file with its public key under [trust] in the configuration; else sign with one that is: cryo sign REF --key FILE"
	case v.reason == Damaged:
		return "sign it again, cryo sign REF --key FILE, and fetch it with cryo pull"
	}
	return "have it signed, cryo sign REF --key FILE or cosign sign --key FILE REPOSITORY@DIGEST, and fetch the signature with cryo pull; " + unsigned
}

// keyError returns the error that a file holds no key that can be used.
func keyError(path, hint string, err error) error {
	return failure.New(errdefs.ErrInvalidArgument, hint, "read key %s: %w", path, err)
}

// damagedf returns what is wrong with a signature.
func damagedf(format string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss, "", format, args...)
}
