package shim

import (
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/shim/config"
)

// judge decides by signatures whether a container may be restored, before anything of its images is read. The restore process, which has judged by its own
// configuration, says of which snapshot they are. Stock clients have images without a snapshot: for these, the default of [config.Trust] holds.
func (s *service) judge(c *container) error {
	if c.process == nil {
		if s.config.Trust.Signed() {
			return failure.New(errdefs.ErrPermissionDenied, `restore a signed snapshot with cryo restore, or set default = "unsigned" under [trust] in the configuration`,
				"%s: the client that restores %s names no snapshot, so nothing says who has made the images", signature.Rule, c.runtime.ID)
		}
		return nil
	}
	by := config.Person
	if c.asks() {
		by = config.Machine
	}
	p, err := s.config.Trust.Policy(by)
	if err != nil {
		return err
	}
	o := c.prepared.Origin
	_, err = p.Judge(o.Refs, o.Digest, o.Signatures, nil) // the restore process has warned
	return err
}
