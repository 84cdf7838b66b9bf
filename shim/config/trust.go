package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cryo-project/cryo/image/signature"
)

// The values of [Trust.Default]; the first is one of [Signers], too.
const (
	unsigned = "unsigned"
	signed   = "signed"
)

// Trust says whose signature snapshots must have.
type Trust struct {
	// Default is for repositories that no prefix names, and for what a person types: unsigned, by which cryo restore warns of a snapshot that none of Keys has signed, or
	// signed, by which that is refused. Default unsigned. What no person types is refused in any case.
	Default string `toml:"default"`
	// Keys are files with public keys, whose signatures count for these repositories.
	Keys []string `toml:"keys"`
	// Repositories are prefixes, of which the longest that fits counts: a registry, or one with the beginning of a path, which ends where a component does.
	Repositories map[string]Signers `toml:"repositories"`
}

// Signers are the files with the keys of which one must have signed; or the word unsigned, by which there are none.
type Signers []string

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Signers) UnmarshalText(text []byte) error {
	if string(text) != unsigned {
		return fmt.Errorf("%q is neither a list of files with public keys nor %s", text, unsigned)
	}
	*s = nil
	return nil
}

// Signed reports whether Default asks for a signature.
func (t Trust) Signed() bool { return t.Default == signed }

// Asker is the kind of client that wants a snapshot.
type Asker bool

// The askers.
const (
	Person  Asker = true  // types a command
	Machine Asker = false // acts for every client that may create containers: an image, an annotation, the node service
)

// Policy reads the files with keys. For a machine, a snapshot must be signed unless a prefix says otherwise.
func (t Trust) Policy(by Asker) (*signature.Policy, error) {
	prefixes := make(map[string][]string, len(t.Repositories))
	for prefix, files := range t.Repositories {
		prefixes[prefix] = files
	}
	p, err := signature.NewPolicy(t.Signed() || by == Machine, t.Keys, prefixes)
	if err != nil {
		return nil, fmt.Errorf("[trust] in the configuration: %w", err)
	}
	return p, nil
}

// Settles reports whether it says whose signature a snapshot in a repository, or below a prefix, must have where a machine asks for it. If not, none is taken.
func (t Trust) Settles(prefix string) bool {
	if len(t.Keys) > 0 {
		return true
	}
	full := signature.CanonicalPrefix(prefix) + "/"
	for other := range t.Repositories {
		if other = signature.CanonicalPrefix(other) + "/"; strings.HasPrefix(full, other) || strings.HasPrefix(other, full) {
			return true
		}
	}
	return false
}

func (t Trust) validate() error {
	if t.Default != signed && t.Default != unsigned {
		return fmt.Errorf("trust.default = %q is neither %s nor %s", t.Default, signed, unsigned)
	}
	files := func(key string, paths []string) error {
		for _, path := range paths {
			if !filepath.IsAbs(path) {
				return fmt.Errorf("%s: %q is not an absolute path", key, path)
			}
		}
		return nil
	}
	if err := files("trust.keys", t.Keys); err != nil {
		return err
	}
	named := make(map[string]string)
	for prefix, paths := range t.Repositories {
		if err := checkPrefix(prefix); err != nil {
			return fmt.Errorf("trust.repositories: %w", err)
		}
		if other, twice := named[signature.CanonicalPrefix(prefix)]; twice {
			return fmt.Errorf("trust.repositories: %q and %q are one", min(prefix, other), max(prefix, other))
		}
		named[signature.CanonicalPrefix(prefix)] = prefix
		key := fmt.Sprintf("trust.repositories: %q", prefix)
		if paths != nil && len(paths) == 0 {
			return fmt.Errorf("%s has no keys: name files, or write %q", key, unsigned)
		}
		if err := files(key, paths); err != nil {
			return err
		}
	}
	return nil
}
