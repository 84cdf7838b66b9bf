package lazypull

import (
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// verified is a segment all of which has its digest. The file counts, not its name: what has the same name may be another.
type verified struct {
	digest digest.Digest
	file   *os.File // nil: it is in the store
}

// Verified tells of a segment that is verified and may not be in the store yet; f, which has it open for reading, is the source's to close. nil: it is in the store.
func (s *Source) Verified(d ocispec.Descriptor, f *os.File) error {
	v := verified{d.Digest, f}
	s.mu.Lock()
	s.verified = append(s.verified, v)
	arriving := slices.Clone(s.arriving)
	s.mu.Unlock()
	for _, g := range arriving {
		if err := g.take(v); err != nil {
			return err
		}
	}
	return nil
}

// known takes what was verified before the segment was opened.
func (g *segment) known(all []verified) error {
	for _, v := range all {
		if err := g.take(v); err != nil {
			return err
		}
	}
	return nil
}

// take opens the segment where it is what is verified.
func (g *segment) take(v verified) error {
	if v.digest != g.d.Digest || g.whole.Load() != nil {
		return nil
	}
	if v.file == nil {
		return g.hold(g.source.ctx)
	}
	own, err := unix.FcntlInt(v.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open segment %s: %w", g.d.Digest, err)
	}
	rc, err := g.source.store.Passed(g.d, os.NewFile(uintptr(own), v.file.Name()))
	if err != nil {
		return err
	}
	return g.have(rc)
}

// Close closes the files of segments that are verified. What was opened stays open.
func (s *Source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.verified {
		if v.file != nil {
			v.file.Close()
		}
	}
	s.verified = nil
}
