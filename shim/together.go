package shim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/runtime/runc"
)

// A member of a group is restored in step with the others (worker.Together). Its sockets get the addresses that members have now, and a fence stands around them from before CRIU makes them until all members
// are ready. Without it, the kernel would answer packets of a connection that one host has already and the other has not with a reset, which ends the connection.

// barrier is a fence that stands in a network namespace.
type barrier struct {
	network *runc.Network
	fence   *runc.Fence
}

// readdress writes the members' new addresses into the container's images.
func (c *container) readdress() error {
	addresses, err := c.prepared.Together.Renewed()
	if err != nil {
		return err
	}
	return criu.Readdress(c.restore, addresses)
}

// raiseFence puts up the fence in the network namespace that the container joins, or in the host's if it has that. A container with a network namespace of its own gets the fence from [container.fenceOwn]
// when CRIU has made the namespace. A container that is restored alone gets none.
func (c *container) raiseFence() error {
	if c.prepared.Together == nil {
		return nil
	}
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	path, has := criu.NamespaceIn(spec, specs.NetworkNamespace)
	if has && path == "" {
		return nil
	}
	if !has {
		path = "/proc/self/ns/net"
	}
	network, err := runc.OpenNetworkAt(path)
	if err != nil {
		return err
	}
	return c.fenceIn(network)
}

// fenceOwn puts up the fence in the network namespace that CRIU has just made for the container with the first process init. The namespace has no sockets yet, and no network plugin has connected it.
func (c *container) fenceOwn(init int) error {
	if c.prepared.Together == nil {
		return nil
	}
	network, err := runc.OpenNetwork(init)
	if err != nil {
		return err
	}
	return c.fenceIn(network)
}

// fenceIn puts up the fence for the sockets that the images have.
func (c *container) fenceIn(network *runc.Network) error {
	connections, listeners, err := criu.Connections(c.restore)
	if err != nil {
		return errors.Join(err, network.Close())
	}
	slices.SortFunc(listeners, netip.AddrPort.Compare)
	sockets := runc.Sockets{Listeners: slices.Compact(listeners)} // sockets may share a port
	for _, own := range connections {
		if !slices.Contains(connections, criu.Connection{Local: own.Remote, Remote: own.Local}) { // else both ends are the container's, and there at once
			sockets.Connections = append(sockets.Connections, runc.Connection(own))
		}
	}
	fence, err := network.Fence(sockets)
	if err != nil {
		return errors.Join(fmt.Errorf("keep packets from the connections of a member of a group: %w", err), network.Close())
	}
	c.barrier = &barrier{network: network, fence: fence}
	return nil
}

// lowerFence takes the fence away, if there is one.
func (c *container) lowerFence() error {
	if c.barrier == nil {
		return nil
	}
	b := c.barrier
	c.barrier = nil
	return errors.Join(b.fence.Close(), b.network.Close())
}

// silence has the connections of a member end without a word when it is killed before it runs. Else the kernel would send its peers the end of each connection for minutes, and meanwhile no other attempt could have
// the connection.
func (c *container) silence(init int) {
	if c.prepared.Together == nil {
		return
	}
	pids, err := guard.ProcessesOf(init)
	if err == nil {
		err = runc.SilenceProcesses(pids)
	}
	if err != nil {
		log.L.WithError(err).WithField("id", c.request.ID).Warn("silence the connections of a member of a group whose restore was refused")
	}
}

// commit asks the restore process whether the container may run. That of a member of a group answers when all members are ready: until then the restore stands still, and that is no fault.
func (c *container) commit() error {
	c.awaiting.Store(c.prepared.Together != nil)
	defer c.awaiting.Store(false)
	return c.process.Commit()
}

// probe has the connections of a member go on at once that stood still since its peer had no room: see [runc.Probe].
func (c *container) probe(pids []int, err error) {
	if err == nil {
		err = runc.Probe(pids)
	}
	if err != nil {
		log.L.WithError(err).WithField("id", c.request.ID).Warn("probe the connections of a member of a group, which go on later")
	}
}

// probeAgain probes while the member runs, for peers whose fences fall later. No checkpoint is under way meanwhile: CRIU has connections in repair mode, which a probe ends.
func (c *container) probeAgain(ctx context.Context) {
	if c.prepared.Together == nil {
		return
	}
	for _, pause := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second} {
		time.Sleep(pause)
		in, err := c.life.admit(ctx, toUse, c.request.ID)
		if err != nil {
			return
		}
		over := c.life.now() == ended
		if !over {
			c.probe(c.runtime.Processes(ctx))
		}
		in.leave()
		if over {
			return
		}
	}
}
