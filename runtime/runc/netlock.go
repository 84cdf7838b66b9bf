package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Network is the network of a container, which other containers of its pod may share. It outlives the container's processes while it is open.
type Network struct {
	file   *os.File
	shared bool // with this process, as the host's is
}

// OpenNetwork finds the network of the container with the first process pid.
func OpenNetwork(pid int) (*Network, error) {
	n, err := OpenNetworkAt(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, fmt.Errorf("find the network of process %d: %w", pid, err)
	}
	return n, nil
}

// OpenNetworkAt opens the network namespace at path.
func OpenNetworkAt(path string) (*Network, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	own, errOwn := os.Stat("/proc/self/ns/net")
	its, errIts := file.Stat()
	if err := errors.Join(errOwn, errIts); err != nil {
		return nil, errors.Join(fmt.Errorf("compare network namespaces: %w", err), file.Close())
	}
	return &Network{file: file, shared: os.SameFile(own, its)}, nil
}

// Shared reports whether this process has the same network, as it has with a container that has the host's.
func (n *Network) Shared() bool { return n.shared }

// Has reports whether a process is in the network.
func (n *Network) Has(pid int) bool {
	own, errOwn := n.file.Stat()
	its, errIts := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	return errOwn == nil && errIts == nil && os.SameFile(own, its)
}

// Unlock removes the lock that a CRIU has left that dumped the container, and sees that it is gone. CRIU must have ended, with what it has
// started. run is the id of CRIU's run (criu.RunID); empty if unknown. Without a lock nothing is done.
func (n *Network) Unlock(ctx context.Context, run string) error {
	err := n.removeTables(run)
	if n.shared {
		return err
	}
	return errors.Join(err, n.removeChains(ctx))
}

// Close lets go of the network.
func (n *Network) Close() error { return n.file.Close() }
