package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cryo-project/cryo/image/store"
)

// Policy says what containers may be restored from by their image, or by the annotation io.cryo.restore. Whoever creates containers chooses both, so nothing is allowed by default.
type Policy struct {
	// Repositories are prefixes of what is allowed: a registry, or one with the beginning of a path, which ends where a component does. Default: none.
	Repositories []string `toml:"repositories"`
	// Allow are grants, as those of cryo restore --allow, for what a snapshot asks beyond the container's own specification. Default: none.
	Allow []string `toml:"allow"`
	// Force are rules of cryo inspect --check that are overridden. Default: none.
	Force []string `toml:"force"`
	// Credentials is a file in the form of Docker's config.json. Default: the one of the user that containerd runs as.
	Credentials string `toml:"credentials"`
	// PlainHTTP are registries, HOST[:PORT], that are spoken to without TLS. Default: none.
	PlainHTTP []string `toml:"plain-http"`
	// Timeout, in seconds, is how long it may take until all of a snapshot but its memory is here. Default 60.
	Timeout int64 `toml:"timeout"`
}

// Allows tells whether a normalised reference is of one of the repositories.
func (p Policy) Allows(ref string) bool { return below(p.Repositories, ref) }

// below tells whether a normalised reference is of one of these repositories.
func below(repositories []string, ref string) bool {
	name, _, _ := strings.Cut(ref, "@")
	host, path, ok := strings.Cut(name, "/")
	if !ok {
		return false // a digest alone
	}
	path, _, _ = strings.Cut(path, ":")
	full := strings.ToLower(host) + "/" + path
	return slices.ContainsFunc(repositories, func(prefix string) bool {
		return full == prefix || strings.HasPrefix(full, prefix+"/")
	})
}

// AllowsImage tells whether an image of this name, as CRI has it, is of one of the repositories.
func (p Policy) AllowsImage(name string) bool {
	if len(p.Repositories) == 0 {
		return false
	}
	full, err := store.Normalize(name)
	return err == nil && p.Allows(full)
}

// Plain tells whether the registry of a normalised reference is spoken to without TLS.
func (p Policy) Plain(ref string) bool { return at(p.PlainHTTP, ref) }

// at tells whether a normalised reference is of one of these registries.
func at(registries []string, ref string) bool {
	host, _, _ := strings.Cut(ref, "/")
	return slices.Contains(registries, strings.ToLower(host))
}

// Patience is Timeout.
func (p Policy) Patience() time.Duration { return time.Duration(p.Timeout) * time.Second }

func (p Policy) validate() error {
	if err := checkRegistries("restore.policy", p.Repositories, p.PlainHTTP, p.Credentials); err != nil {
		return err
	}
	if p.Timeout < 1 || p.Timeout > int64(time.Hour/time.Second) {
		return fmt.Errorf("restore.policy.timeout = %d is not between 1 and 3600 seconds", p.Timeout)
	}
	return nil
}

// checkRegistries looks at the keys of a table that says which repositories containers may name, and how they are reached.
func checkRegistries(table string, repositories, plainHTTP []string, credentials string) error {
	for _, prefix := range repositories {
		if err := checkPrefix(prefix); err != nil {
			return fmt.Errorf("%s.repositories: %w", table, err)
		}
	}
	for _, host := range plainHTTP {
		if err := checkPrefix(host); err != nil || strings.Contains(host, "/") {
			return fmt.Errorf("%s.plain-http: %q is no registry: write HOST[:PORT] in lower case", table, host)
		}
	}
	if credentials != "" && !filepath.IsAbs(credentials) {
		return fmt.Errorf("%s.credentials = %q is not an absolute path", table, credentials)
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
