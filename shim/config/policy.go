package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
)

// Registries say which repositories containers may name by their image or by annotations, and how they are reached. The client that creates a container chooses both, so nothing is allowed by default.
type Registries struct {
	// Repositories are prefixes of what is allowed: a registry, or one with the beginning of a path, which ends where a component does. Default: none.
	Repositories []string `toml:"repositories"`
	// Credentials is a file in the form of Docker's config.json. Default: the one of the user that containerd runs as.
	Credentials string `toml:"credentials"`
	// PlainHTTP are registries, HOST[:PORT], that are spoken to without TLS. Default: none.
	PlainHTTP []string `toml:"plain-http"`
}

// Policy says what containers may be restored from by their image, or by the annotation io.cryo.restore.
type Policy struct {
	Registries
	// Allow are grants, as those of cryo restore --allow, for what a snapshot asks beyond the container's own specification. Default: none.
	Allow []string `toml:"allow"`
	// Force are rules of cryo inspect --check that are overridden. Default: none.
	Force []string `toml:"force"`
	// Timeout, in seconds, is how long it may take until all of a snapshot but its memory is here. Default 60.
	Timeout int64 `toml:"timeout"`
}

// Allows reports whether a normalised reference is of one of the repositories.
func (r Registries) Allows(ref string) bool {
	full := signature.RepositoryOf(ref)
	return full != "" && slices.ContainsFunc(r.Repositories, func(prefix string) bool { // none has a digest alone
		prefix = signature.CanonicalPrefix(prefix)
		return full == prefix || strings.HasPrefix(full, prefix+"/")
	})
}

// AllowsImage reports whether an image of this name, as CRI has it, is of one of the repositories.
func (r Registries) AllowsImage(name string) bool {
	if len(r.Repositories) == 0 {
		return false
	}
	full, err := store.Normalize(name)
	return err == nil && r.Allows(full)
}

// Plain reports whether the registry of a normalised reference is spoken to without TLS.
func (r Registries) Plain(ref string) bool {
	registry := signature.DomainOf(ref)
	return slices.ContainsFunc(r.PlainHTTP, func(name string) bool { return signature.CanonicalDomain(name) == registry })
}

// Patience is Timeout.
func (p Policy) Patience() time.Duration { return time.Duration(p.Timeout) * time.Second }

// validate checks the keys of a table of this name.
func (r Registries) validate(table string) error {
	for _, prefix := range r.Repositories {
		if err := checkPrefix(prefix); err != nil {
			return fmt.Errorf("%s.repositories: %w", table, err)
		}
	}
	for _, host := range r.PlainHTTP {
		if err := checkPrefix(host); err != nil || strings.Contains(host, "/") {
			return fmt.Errorf("%s.plain-http: %q is no registry: write HOST[:PORT] in lower case", table, host)
		}
	}
	if r.Credentials != "" && !filepath.IsAbs(r.Credentials) {
		return fmt.Errorf("%s.credentials = %q is not an absolute path", table, r.Credentials)
	}
	return nil
}

// checkPrefix refuses what is no prefix of repositories.
func checkPrefix(prefix string) error {
	// A repository below it has this prefix, and is its own full name.
	below := prefix + "/x/x:latest"
	if full, err := store.Normalize(below); err != nil || full != below || strings.ToLower(prefix) != prefix {
		return fmt.Errorf("%q is no prefix: write HOST[:PORT][/PATH] in lower case, with docker.io for Docker's registry, and no tag", prefix)
	}
	return nil
}
