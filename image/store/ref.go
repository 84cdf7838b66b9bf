package store

import (
	"errors"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// maxRef bounds references: a name has at most 255 bytes, a tag 128, a digest 71.
const maxRef = 512

// Normalize gives a reference its full form as Docker does: app becomes docker.io/library/app:latest. A name with both tag
// and digest loses the tag. A digest alone (sha256:...) stays as it is.
func Normalize(ref string) (string, error) {
	if len(ref) > maxRef {
		return "", &InvalidRefError{Ref: ref[:64] + "...", Err: errors.New("too long")}
	}
	if d, ok := bareDigest(ref); ok {
		return d.String(), nil
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", &InvalidRefError{Ref: ref, Err: err}
	}
	if c, ok := named.(reference.Canonical); ok && c.Digest().Algorithm() != digest.SHA256 {
		return "", &InvalidRefError{Ref: ref, Err: errors.New("digest is not sha256")}
	}
	return named.String(), nil
}

// Familiar gives a normalised reference the short form that Docker shows, unless that would name something else: without its
// registry, docker.io/localhost/app:1 is of another one, and docker.io/library/sha256:... may be a digest.
func Familiar(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	short := reference.FamiliarString(named)
	if again, err := Normalize(short); err != nil || again != ref {
		return ref
	}
	return short
}

// bareDigest says whether ref is a sha256 digest and nothing else.
func bareDigest(ref string) (digest.Digest, bool) {
	d := digest.Digest(ref)
	return d, checkDigest(d) == nil
}

// refDigest returns the digest that a normalised reference ends with.
func refDigest(ref string) (digest.Digest, bool) {
	if d, ok := bareDigest(ref); ok {
		return d, true
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", false
	}
	c, ok := named.(reference.Canonical)
	if !ok || checkDigest(c.Digest()) != nil {
		return "", false
	}
	return c.Digest(), true
}
