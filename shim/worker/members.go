package worker

import (
	"net/netip"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// Together is what a member of a group needs to know of the others. A group is several containers that were checkpointed in step, and are restored in step, each perhaps with another address. Connections
// between members go on.
type Together struct {
	// Addresses has each IP address that a member had, and the one that takes its place. Both ends of a connection are changed by the same addresses.
	Addresses map[string]string `json:"addresses,omitempty"`
	Members   []Member          `json:"members"`
}

// Member is a container of a group, with its IP addresses at the checkpoint and now. A program finds it in [Changes].
type Member struct {
	Name string   `json:"name"`
	Was  []string `json:"was"`
	Is   []string `json:"is"`
}

// Renewed returns the addresses that take the place of others. nil has none.
func (t *Together) Renewed() (map[netip.Addr]netip.Addr, error) {
	if t == nil {
		return nil, nil
	}
	all := make(map[netip.Addr]netip.Addr, len(t.Addresses))
	for old, anew := range t.Addresses {
		was, err := netip.ParseAddr(old)
		if err != nil {
			return nil, notAddress(err)
		}
		is, err := netip.ParseAddr(anew)
		if err != nil {
			return nil, notAddress(err)
		}
		all[was] = is
	}
	return all, nil
}

func notAddress(err error) error {
	return failure.New(errdefs.ErrInvalidArgument, "write each address of the group without its prefix, as 192.0.2.1", "read the addresses of the group: %v", err)
}
