package signature

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Policy says whose signature a snapshot must have to be used.
type Policy struct {
	// Require asks for a signature also where the rules do not.
	Require bool

	fallback rule
	rules    map[string]rule // by prefix
}

// rule is what holds for a part of all repositories.
type rule struct {
	signed bool // by one of keys
	silent bool // unsigned is as good, and not worth a word
	keys   []*PublicKey
}

// NewPolicy reads the files with public keys. For repositories that no prefix names, keys count, and a signature is asked for if signed
// says so. A prefix is a registry, or one with the beginning of a path that ends where a component ends; the longest that fits counts. It has files of
// keys, of which one must have signed, or none: then nothing is asked for. Errors are of kind InvalidArgument.
func NewPolicy(signed bool, keys []string, prefixes map[string][]string) (*Policy, error) {
	read := make(map[string]*PublicKey)
	all := func(paths []string) (keys []*PublicKey, err error) {
		for _, path := range paths {
			if read[path] == nil {
				if read[path], err = ReadPublicKey(path); err != nil {
					return nil, err
				}
			}
			keys = append(keys, read[path])
		}
		return keys, nil
	}
	p := &Policy{fallback: rule{signed: signed}, rules: make(map[string]rule)}
	var err error
	if p.fallback.keys, err = all(keys); err != nil {
		return nil, err
	}
	for prefix, paths := range prefixes {
		r := rule{signed: len(paths) > 0, silent: len(paths) == 0}
		if r.keys, err = all(paths); err != nil {
			return nil, err
		}
		p.rules[CanonicalPrefix(prefix)] = r
	}
	return p, nil
}

// rule is that of a normalised reference; empty: of no repository.
func (p *Policy) rule(ref string) rule {
	found := p.fallback
	for name := RepositoryOf(ref); name != ""; {
		if r, ok := p.rules[name]; ok {
			found = r
			break
		}
		end := strings.LastIndexByte(name, '/')
		name = name[:max(end, 0)]
	}
	if p.Require && !found.signed {
		found.signed = true
		if found.silent { // it has none of its own
			found.keys = p.fallback.keys
		}
	}
	return found
}

// Judge decides whether a snapshot may be used, before anything of it is parsed. It goes by these normalised references at once, where an
// empty one, or none, is one of no repository; d is its digest and all its signatures, or else unread says why they could not be had. The error is of
// the rule [Rule], or unread.
type Judge func(refs []string, d digest.Digest, all []Attached, unread error) error

// Judge is a [Judge]. Where nothing asks for the signature that is missing, doubt says what is wrong with it instead.
func (p *Policy) Judge(refs []string, d digest.Digest, all []Attached, unread error) (doubt, err error) {
	refs = orNone(refs)
	called := refs[0]
	if called == "" {
		called = d.String()
	}
	for _, ref := range refs {
		r := p.rule(ref)
		if !r.signed && r.silent {
			continue
		}
		found := r.examine(called, d, all, unread)
		if found != nil && r.signed {
			return nil, found
		}
		if doubt == nil {
			doubt = found
		}
	}
	return doubt, nil
}

// orNone is what stands for no repository where there are no references: a snapshot may lose its name at any time.
func orNone(refs []string) []string {
	if len(refs) == 0 {
		return []string{""}
	}
	return refs
}

// examine is nil where one of the rule's keys has signed d.
func (r rule) examine(ref string, d digest.Digest, all []Attached, unread error) error {
	worst := verdict{ref: ref, reason: Unsigned, noKeys: len(r.keys) == 0, many: len(all) >= MaxAttached}
	for _, a := range all {
		if reason, signer, err := r.one(d, a); reason == "" {
			return nil
		} else if reason.rank() > worst.reason.rank() {
			worst.reason, worst.signer, worst.err = reason, signer, err
		}
	}
	if unread != nil {
		return fmt.Errorf("read the signatures of %s: %w", ref, unread)
	}
	return worst.error()
}

// one returns what is wrong with a signature, nothing if it is right, and whose it is or claims to be.
func (r rule) one(d digest.Digest, a Attached) (reason Reason, signer string, err error) {
	if a.Err != nil {
		return Damaged, "", a.Err
	}
	b, err := parseBundle(a.Bundle.Data)
	if err != nil {
		return Damaged, "", err
	}
	key := b.by(r.keys)
	if key == nil {
		for _, k := range r.keys {
			if b.hint == k.hint() {
				return Damaged, k.Fingerprint(), errors.New("it is not what the key has signed")
			}
		}
		return UntrustedKey, claimed(b.hint), nil
	}
	switch digests, signature, err := b.digests(); {
	case err != nil:
		return Damaged, key.Fingerprint(), err
	case !signature:
		return Unsigned, "", nil // the key says something else about it
	default:
		for _, signed := range digests {
			if signed == d {
				return "", key.Fingerprint(), nil
			}
		}
		return OtherDigest, key.Fingerprint(), nil
	}
}

// by is the key that has made the bundle's signature; nil: none of them.
func (b *bundle) by(keys []*PublicKey) *PublicKey {
	for _, k := range keys {
		if k.verifies(b.signed, b.sig) {
			return k
		}
	}
	return nil
}

// Signer is a signer of a snapshot.
type Signer struct {
	Key      string `json:"key,omitempty"`  // fingerprint; empty if the signature names none
	File     string `json:"file,omitempty"` // of the configuration, whose key it is; empty: none is, so it is not known whether Key is true
	Problem  Reason `json:"problem,omitempty"`
	Accepted bool   `json:"accepted"` // the key counts for this snapshot's repository
}

// Signers lists the signatures of a snapshot for people, checked by all keys that the policy knows. Each of refs has to take one.
func (p *Policy) Signers(refs []string, d digest.Digest, all []Attached) []Signer {
	known := rule{keys: p.fallback.keys}
	for _, r := range p.rules {
		known.keys = append(known.keys, r.keys...)
	}
	signers := []Signer{}
	for _, a := range all {
		var s Signer
		s.Problem, s.Key, _ = known.one(d, a)
		if s.Problem == Unsigned {
			continue // it is no signature
		}
		for _, k := range known.keys {
			if k.Fingerprint() == s.Key && s.Problem != Damaged {
				s.File = k.Path
			}
		}
		s.Accepted = s.Problem == "" && !slices.ContainsFunc(orNone(refs), func(ref string) bool {
			return !slices.ContainsFunc(p.rule(ref).keys, func(k *PublicKey) bool { return k.Fingerprint() == s.Key })
		})
		signers = append(signers, s)
	}
	return signers
}

// SignedBy reports whether one of the signatures is of this key and of d.
func (k *PublicKey) SignedBy(d digest.Digest, all []Attached) bool {
	for _, a := range all {
		if reason, _, _ := (rule{keys: []*PublicKey{k}}).one(d, a); reason == "" {
			return true
		}
	}
	return false
}
