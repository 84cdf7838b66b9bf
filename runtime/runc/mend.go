package runc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
)

// mendTime bounds how long a container is mended after a failed dump.
const mendTime = 30 * time.Second

// ErrResidue is the kind of the error of a failed dump that has left something in a container which could not be taken away: the container cannot go on. It wraps Internal.
var ErrResidue = fmt.Errorf("something was left in the container: %w", errdefs.ErrInternal)

// mend takes away what a dump leaves whose runc or CRIU was killed: CRIU itself, its network lock, and its repair mode of connections.
func (c Container) mend(ctx context.Context, d Dump, network *Network) error {
	work, err := filepath.EvalSymlinks(d.Work)
	if err != nil {
		work = d.Work // its owner, the checkpoint process, has ended
	}
	g := group{work: work, named: d.Work}
	if !network.Shared() {
		g.network = network
	}
	if err := g.endAll(ctx); err != nil {
		return err
	}
	err = network.Unlock(ctx, criu.RunID(filepath.Join(work, "dump.log")))
	if d.TCPEstablished {
		err = errors.Join(err, c.endRepair(ctx))
	}
	return err
}

// Unlock removes the network lock of a dump with CRIU's work directory work whose shim has died, and whose CRIU was ended.
func (c Container) Unlock(ctx context.Context, work string) error {
	s, err := c.state()
	if err != nil {
		return err
	}
	network, err := OpenNetwork(s.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the network has ended with the process
	}
	if err != nil {
		return err
	}
	return errors.Join(network.Unlock(ctx, criu.RunID(filepath.Join(work, "dump.log"))), network.Close())
}

// endRepair takes the container's connections out of the repair mode in which a CRIU that was killed has left them, in which they neither send nor
// receive. Source: https://criu.org/TCP_connection.
func (c Container) endRepair(ctx context.Context) error {
	pids, err := c.Processes(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, pid := range pids {
		err := connections(pid, seen, func(socket int) (bool, error) {
			mode, err := unix.GetsockoptInt(socket, unix.SOL_TCP, unix.TCP_REPAIR)
			if err != nil || mode == 0 {
				return false, err
			}
			return false, unix.SetsockoptInt(socket, unix.SOL_TCP, unix.TCP_REPAIR, 0)
		})
		if err != nil && !Ended(pid) {
			return fmt.Errorf("end the repair mode of connections of process %d: %w", pid, err)
		}
	}
	return nil
}
