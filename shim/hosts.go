package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

const hostsPath = "/etc/hosts"

// maxHosts is more than a file of names and addresses has, bytes.
const maxHosts = 1 << 20

// hostsFile is the file that a container has as /etc/hosts, as the host sees it.
type hostsFile struct {
	dir  string // no link leads out of it
	name string // in dir
	own  bool   // the file is the container's, or cryo has made it
}

// renewHosts writes the new addresses of a group's members into the container's /etc/hosts, while CRIU still stops its processes. A file that another program has mounted there is left as it is, with a warning
// if it has an old address: that program answers for it, as the kubelet does.
func (c *container) renewHosts(spec *specs.Spec) error {
	addresses, err := c.prepared.Together.Renewed()
	if err != nil || len(addresses) == 0 {
		return err
	}
	left := func(reason string) {
		log.L.WithField("id", c.request.ID).Warnf("the container's %s may have old addresses of its group: %s; write the new ones there, or have the program take them from restored.json", hostsPath, reason)
	}
	h, covered := c.hostsFile(spec)
	if covered != "" {
		left(covered + " is mounted over it")
		return nil
	}
	f, err := h.open()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		left(err.Error())
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHosts+1))
	if err != nil {
		return fmt.Errorf("read the container's %s: %w", hostsPath, err)
	}
	renewed := renewWords(text, addresses)
	switch {
	case string(renewed) == string(text):
		return nil
	case !h.own:
		left("it is a mount of " + filepath.Join(h.dir, h.name) + ", which is not cryo's")
		return nil
	case len(text) > maxHosts:
		left(fmt.Sprintf("it has more than %d bytes", maxHosts))
		return nil
	}
	// The container's mount is of this very file, so that none takes its place.
	_, err = f.WriteAt(renewed, 0)
	if err == nil {
		err = f.Truncate(int64(len(renewed)))
	}
	if err != nil {
		return failure.New(errdefs.ErrFailedPrecondition, "see whether the disk of the container's root file system is full or read-only", "write the new addresses into the container's %s: %v", hostsPath, err)
	}
	return nil
}

// hostsFile finds the container's /etc/hosts: in its root file system, or what is mounted there. covered is the mount that hides it; empty: none does.
func (c *container) hostsFile(spec *specs.Spec) (h hostsFile, covered string) {
	for i := len(spec.Mounts) - 1; i >= 0; i-- { // the last one counts
		m := spec.Mounts[i]
		switch at := filepath.Clean(m.Destination); at {
		case hostsPath:
			h.dir, h.name = filepath.Split(m.Source)
			h.own = c.prepared.Etc != "" && filepath.Clean(m.Source) == filepath.Join(c.prepared.Etc, "hosts")
			return h, ""
		case "/", filepath.Dir(hostsPath):
			return h, m.Source + " at " + at
		}
	}
	return hostsFile{dir: c.bundle.rootfs(spec), name: strings.TrimPrefix(hostsPath, "/"), own: true}, ""
}

// open opens the file, for writing if it may be changed. Devices and pipes are not opened.
func (h hostsFile) open() (*os.File, error) {
	dir, err := os.OpenRoot(h.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	info, err := dir.Stat(h.name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("it is no file, but %s", info.Mode())
	}
	if err != nil {
		return nil, err
	}
	flags := os.O_RDONLY
	if h.own {
		flags = os.O_RDWR
	}
	return dir.OpenFile(h.name, flags|unix.O_NONBLOCK, 0)
}

// word finds what may be an address in a file of addresses and names.
var word = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^\s#]+`) })

// renewWords replaces addresses that are whole words, in whatever way they are written. All else stays byte for byte.
func renewWords(text []byte, addresses map[netip.Addr]netip.Addr) []byte {
	return word().ReplaceAllFunc(text, func(w []byte) []byte {
		was, err := netip.ParseAddr(string(w))
		if err != nil {
			return w
		}
		if is, ok := addresses[was]; ok && is != was {
			return []byte(is.String())
		}
		return w
	})
}
