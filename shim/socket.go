package shim

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/shim"
)

// bootstrapFile is where containerd keeps what the shim's start answered.
const bootstrapFile = "bootstrap.json"

// removeSockets removes the sockets of the shim of a bundle if no process listens. The stock manager leaves those of a dead
// shim until one of the same name starts.
func removeSockets(ctx context.Context, bundle, id string) error {
	data, err := os.ReadFile(filepath.Join(bundle, bootstrapFile))
	if err != nil {
		return fmt.Errorf("find the shim's socket: %w", err)
	}
	var bootstrap struct{ Address string }
	if err := json.Unmarshal(data, &bootstrap); err != nil {
		return fmt.Errorf("find the shim's socket: %w", err)
	}
	path, ok := strings.CutPrefix(bootstrap.Address, "unix://")
	if !ok || shim.CanConnect(bootstrap.Address) {
		return nil
	}
	err = shim.RemoveSocket(bootstrap.Address)
	// containerd tells of its own address by a flag; the socket of a shim that is debugged is named after that.
	if daemon := flag.Lookup("address"); daemon != nil {
		debug, derr := shim.CreateSocketAddress(ctx, filepath.Dir(path), daemon.Value.String(), id, true)
		if derr == nil {
			derr = shim.RemoveSocket(debug)
		}
		err = errors.Join(err, derr)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the sockets of a dead shim: %w", err)
	}
	return nil
}
