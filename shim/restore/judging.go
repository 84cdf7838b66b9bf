package restore

import (
	"context"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/worker"
)

// Judging decides by its signatures whether a snapshot is used.
type Judging struct {
	Policy *signature.Policy
	Origin worker.Origin // what was judged, for the shim
	doubt  error         // what is wrong with the signature of one that is used all the same
}

// NewJudging reads the policy in the configuration; require asks for a signature of one of its keys, whatever it says.
func NewJudging(c config.Trust, by config.Asker, require bool) (*Judging, error) {
	p, err := c.Policy(by)
	if err != nil {
		return nil, err
	}
	p.Require = require
	return &Judging{Policy: p}, nil
}

var _ signature.Judge = (*Judging)(nil).Judge

// Judge is a [signature.Judge].
func (j *Judging) Judge(refs []string, d digest.Digest, all []signature.Attached, unread error) (err error) {
	whole := slices.DeleteFunc(slices.Clone(all), func(a signature.Attached) bool { return a.Err != nil })
	j.Origin = worker.Origin{Refs: refs, Digest: d, Signatures: whole}
	j.doubt, err = j.Policy.Judge(refs, d, all, unread)
	return err
}

// local judges a snapshot of the local store. A digest is judged by all names that the snapshot has.
func (j *Judging) local(ctx context.Context, s *store.Store, ref string, d digest.Digest) error {
	refs, err := Names(ctx, s, ref, d)
	if err != nil {
		return err
	}
	all, err := s.Signatures(ctx, d)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return j.Judge(refs, d, all, err)
}

// Names are what a snapshot is judged by that the local store has as ref.
func Names(ctx context.Context, s *store.Store, ref string, d digest.Digest) ([]string, error) {
	full, err := store.Normalize(ref)
	if err != nil {
		return nil, err
	}
	if full != d.String() {
		return []string{full}, nil
	}
	tags, err := s.Tags(ctx)
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, t := range tags {
		if t.Descriptor.Digest == d && !slices.Contains(refs, t.Ref) {
			refs = append(refs, t.Ref)
		}
	}
	return refs, nil
}

// warning is one line about the doubt; none if there is none.
func (j *Judging) warning() []string {
	if j.doubt == nil {
		return nil
	}
	return []string{fmt.Sprintf("%v; it is taken all the same (--require-signature refuses it)", j.doubt)}
}
