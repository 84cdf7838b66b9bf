package shim

import (
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/signature"
)

// NoSnapshotError says that images are of no snapshot that could be signed, where the configuration asks for a signature. Its kind is PermissionDenied.
type NoSnapshotError struct{ ID string }

func (e *NoSnapshotError) Error() string {
	return signature.Rule + ": the client that restores " + e.ID + " names no snapshot, so nothing says who has made the images"
}

// Hint says what to do.
func (e *NoSnapshotError) Hint() string {
	return `restore a signed snapshot with cryo restore, or set default = "unsigned" under [trust] in the configuration`
}

// Unwrap gives the kind.
func (e *NoSnapshotError) Unwrap() error { return errdefs.ErrPermissionDenied }

// judge decides by signatures whether a container may be restored, before anything of its images is read. The restore process, which has judged by its own
// configuration, says of which snapshot they are. Stock clients have images without a snapshot: for these, the default of [config.Trust] holds.
func (s *service) judge(c *container) error {
	if c.process == nil {
		if s.config.Trust.Signed() {
			return &NoSnapshotError{ID: c.runtime.ID}
		}
		return nil
	}
	p, err := s.config.Trust.Policy()
	if err != nil {
		return err
	}
	o := c.prepared.Origin
	_, err = p.Judge(o.Refs, o.Digest, o.Signatures, nil) // the restore process has warned
	return err
}
