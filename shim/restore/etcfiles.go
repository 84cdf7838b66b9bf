package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// etcFiles are files that clients such as nerdctl make on the host for each container and mount over the image's. They
// are of the old host, so the new one makes its own, of the same names.
var etcFiles = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}

// EtcDir is where those of a container are. containerd is part of it, as two of them may share cryo's root.
func EtcDir(root, address, namespace, id string) string {
	return filepath.Join(root, "containers", digest.FromString(address).Encoded()[:16], namespace, id)
}

// ProvideEtcFiles points the mounts of etcFiles at files in dir, which are still to be made, and returns their
// destinations. Mounts in given have their source already; others are kept if mounts are allowed and the source exists.
func ProvideEtcFiles(spec *specs.Spec, dir string, given []string, allowed bool) []string {
	var provided []string
	for i, m := range spec.Mounts {
		at := filepath.Clean(m.Destination)
		if !trust.IsBindMount(m) || !slices.Contains(etcFiles, at) || slices.Contains(given, m.Destination) || allowed && exists(m.Source) {
			continue
		}
		spec.Mounts[i].Source = filepath.Join(dir, filepath.Base(at))
		provided = append(provided, m.Destination)
	}
	return provided
}

// ExistsOr reports whether a path is on this host, or is one of the files that are to be made in dir; empty: none are.
func ExistsOr(dir string) func(path string) bool {
	return func(path string) bool { return exists(path) || dir != "" && filepath.Dir(path) == dir }
}

// WriteEtcFiles makes the files in dir, as this host has them.
func WriteEtcFiles(dir, hostname string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make files for /etc: %w", err)
	}
	resolv, err := os.ReadFile("/etc/resolv.conf")
	if strings.Contains(string(resolv), "nameserver 127.0.0.53") {
		// systemd-resolved listens on the host's loopback only; this file names the servers behind it.
		resolv, err = os.ReadFile("/run/systemd/resolve/resolv.conf")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the host's name servers: %w", err)
	}
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostname != "" {
		hosts += "127.0.1.1\t" + hostname + "\n"
	}
	for name, text := range map[string]string{"hosts": hosts, "hostname": hostname + "\n", "resolv.conf": string(resolv)} {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, []byte(text), 0o600)
		if err == nil {
			// Every user of the container reads them, whatever the umask; the directories above let only root pass.
			err = os.Chmod(path, 0o644) //nolint:gosec // see above
		}
		if err != nil {
			return fmt.Errorf("make files for /etc: %w", err)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
