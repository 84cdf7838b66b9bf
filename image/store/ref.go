package store

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
)

const (
	maxRef  = 512 // bounds references: a name has at most 255 bytes, a tag 128, a digest 71
	maxPath = 255 // of a name without its registry
)

// grammar is that of a full reference: registry, path, tag, digest. Package github.com/distribution/reference has it too, and compiles a
// dozen of regular expressions whenever a program begins that links it. The shim links this package and its beginning is a part of
// every container's, so here it is compiled when it is needed; a test compares the two.
// Source: https://github.com/distribution/reference/blob/v0.6.0/reference.go, Grammar.
var grammar = sync.OnceValue(func() *regexp.Regexp {
	const (
		label     = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
		registry  = `(?:` + label + `(?:\.` + label + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`
		component = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`
		tag       = `[\w][\w.-]{0,127}`
		digest    = `[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[[:xdigit:]]{32,}`
	)
	return regexp.MustCompile(`^(?:(` + registry + `)/)?(` + component + `(?:/` + component + `)*)(?::(` + tag + `))?(?:@(` + digest + `))?$`)
})

// Docker's own registry, by its name and its former one, and where its images are that have no owner.
const (
	hub     = "docker.io"
	oldHub  = "index.docker.io"
	library = "library/"
)

// Normalize returns the full form of a reference, as Docker does: app becomes docker.io/library/app:latest. A name with both tag
// and digest loses the tag. A digest alone (sha256:...) stays as it is.
func Normalize(ref string) (string, error) {
	if len(ref) > maxRef {
		return "", InvalidRef(ref[:64]+"...", errors.New("too long"))
	}
	if d, ok := bareDigest(ref); ok {
		return d.String(), nil
	}
	full, err := normalize(ref)
	if err != nil {
		return "", InvalidRef(ref, err)
	}
	return full, nil
}

func normalize(ref string) (string, error) {
	if _, ok := bareDigest(string(digest.SHA256) + ":" + ref); ok {
		return "", errors.New("64 hexadecimal digits are a digest's and no name")
	}
	registry, rest := splitRegistry(ref)
	given := rest
	if !strings.HasSuffix(ref, rest) { // its owner is ours
		given = strings.TrimPrefix(rest, library)
	}
	if name, _, _ := strings.Cut(given, ":"); strings.ToLower(name) != name {
		return "", fmt.Errorf("name %s must be lower case", name)
	}
	parts := grammar().FindStringSubmatch(registry + "/" + rest)
	if parts == nil {
		return "", errors.New("invalid reference format")
	}
	registry, path, tag, hash := parts[1], parts[2], parts[3], digest.Digest(parts[4])
	if len(path) > maxPath {
		return "", fmt.Errorf("name has more than %d bytes", maxPath)
	}
	name := path
	if registry != "" {
		name = registry + "/" + path
	}
	switch {
	case hash != "":
		if err := checkDigest(hash); err != nil {
			return "", err
		}
		return name + "@" + hash.String(), nil
	case tag != "":
		return name + ":" + tag, nil
	}
	return name + ":latest", nil
}

// splitRegistry returns the registry of a name, and the rest, to which one of Docker's gets its owner. What comes before the first slash is a registry if no
// owner could be called so.
func splitRegistry(ref string) (registry, rest string) {
	first, after, slash := strings.Cut(ref, "/")
	switch {
	case !slash:
		return hub, library + ref
	case first == oldHub:
		registry, rest = hub, after
	case first == "localhost" || strings.ContainsAny(first, ".:") || strings.ToLower(first) != first:
		registry, rest = first, after
	default:
		registry, rest = hub, ref
	}
	if registry == hub && !strings.Contains(rest, "/") {
		rest = library + rest
	}
	return registry, rest
}

// Familiar returns the short form of a normalised reference that Docker shows, unless that would name something else: without its
// registry, docker.io/localhost/app:1 is of another one, and docker.io/library/sha256:... may be a digest.
func Familiar(ref string) string {
	short, ours := strings.CutPrefix(ref, hub+"/")
	if !ours {
		return ref
	}
	if name, ok := strings.CutPrefix(short, library); ok && !strings.Contains(name, "/") {
		short = name
	}
	if again, err := Normalize(short); err != nil || again != ref {
		return ref
	}
	return short
}

// NamesRegistry reports whether a reference says in which registry it is. Without, Docker's is meant.
func NamesRegistry(ref string) bool {
	first, _, slash := strings.Cut(ref, "/")
	full, err := Normalize(ref)
	return err == nil && slash && (first == oldHub || strings.HasPrefix(full, first+"/"))
}

// bareDigest reports whether ref is a sha256 digest and nothing else.
func bareDigest(ref string) (digest.Digest, bool) {
	d := digest.Digest(ref)
	return d, checkDigest(d) == nil
}

// refDigest returns the digest that a normalised reference is, or ends with.
func refDigest(ref string) (digest.Digest, bool) {
	if _, after, ok := strings.Cut(ref, "@"); ok {
		ref = after
	}
	return bareDigest(ref)
}
