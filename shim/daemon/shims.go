package daemon

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/defaults"

	"github.com/cryo-project/cryo/runtime/runc"
)

// RuntimeNames are the names under which containerd starts cryo's shim; a restored container has the first unless it had another.
var RuntimeNames = []string{"io.containerd.cryo.v1", "io.containerd.runc.cryo.v1"}

// ShimName is the program behind them, and possibly behind other names (CRI's runtime_path, a link in containerd's PATH).
const ShimName = "containerd-shim-cryo-v1"

// OurShim reports whether cryo's shim runs a task: by the runtime's name, or where another name leads to it, by the program
// that is the parent of the task's first process.
func OurShim(runtime string, pid uint32) bool {
	if slices.Contains(RuntimeNames, runtime) || filepath.Base(runtime) == ShimName {
		return true
	}
	parent, err := runc.Parent(int(pid))
	if err != nil {
		return false
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", parent))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == ShimName
}

// Bundles returns the directory in which containerd keeps the bundles of a namespace; empty if no shim of cryo's runs for it. containerd does not tell its clients
// where that is. The working directory of a shim is a bundle, so a shim of this containerd and this namespace is looked for.
func Bundles(address, namespace string) string {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range processes {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		words := strings.Split(string(line), "\x00")
		if err != nil || filepath.Base(words[0]) != ShimName || argument(words, "-namespace") != namespace ||
			strings.TrimPrefix(argument(words, "-address"), "unix://") != strings.TrimPrefix(address, "unix://") {
			continue
		}
		// A path counts in the mount namespace of the process that uses it.
		if theirs, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err != nil || theirs != own {
			continue
		}
		if bundle, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && filepath.Base(filepath.Dir(bundle)) == namespace {
			return filepath.Dir(bundle)
		}
	}
	return ""
}

// argument returns the word that follows a flag.
func argument(words []string, flag string) string {
	if i := slices.Index(words, flag); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// RemoveSockets removes the sockets of the shim of a container that was removed, if no process listens: containerd leaves them where it has killed the start of a shim, until one of the same name starts. address
// is of containerd's socket. Source: containerd, pkg/shim/util_unix.go, CreateSocketAddress.
func RemoveSockets(address, namespace, id string) error {
	path := filepath.Join(strings.TrimPrefix(address, "unix://"), namespace, id)
	for _, of := range []string{path, filepath.Join(path, "debug")} {
		socket := filepath.Join(defaults.DefaultStateDir, "s", fmt.Sprintf("%x", sha256.Sum256([]byte(of))))
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close() // nothing was sent
			continue
		}
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the socket of a shim: %w", err)
		}
	}
	return nil
}
