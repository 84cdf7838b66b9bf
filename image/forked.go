package image

import "crypto/sha256"

// Forked is how much memory of the snapshot, in bytes, another of its processes has at the same address, as far as whole frames tell.
// Most of it was shared since a fork, and is again when CRIU restores it, but is each process's own when it is restored lazily.
func (i *Unpacked) Forked() (n int64) {
	type content struct {
		addr   uint64
		digest [sha256.Size]byte
	}
	seen := make(map[content]struct{}, len(i.x.Frames))
	for k := range i.x.Frames {
		f := &i.x.Frames[k]
		if onDevice(*f) {
			continue
		}
		c := content{f.Runs[0].Addr, f.Digest}
		if _, twice := seen[c]; twice {
			n += f.Raw
		}
		seen[c] = struct{}{}
	}
	return n
}
