package worker

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// ChangesVersion is the version of [Changes] as a file. Within a version, members are only added.
const ChangesVersion = 1

// ChangesPath is the file with the changes in the root file system of a container that has asked for its restore.
const ChangesPath = "/.cryo/" + changesFile

// changesFile is the file's name in a control directory, too.
const changesFile = "restored.json"

// Changes are what is another in a restored container than its program remembers, and what the program cannot find out: CRIU has restored its environment and arguments. They
// become a file in the container; see CONTRACT.md.
type Changes struct {
	Version int `json:"version"`
	// Generation is another in each restore. It has at most 53 bits, which every reader of JSON keeps.
	Generation int64         `json:"generation"`
	Snapshot   string        `json:"snapshot"`
	Digest     digest.Digest `json:"digest"`
	Frozen     time.Time     `json:"frozen,omitzero"` // since when the program has stood still, by the clock of the snapshot's host; absent if unknown
	Time       time.Time     `json:"time"`            // just before the program goes on
	Pause      float64       `json:"pause,omitempty"` // seconds from Frozen to Time; at least 0
	// Held is for how many seconds of Pause the program stood restored, as a member of a pool. Its clocks went on meanwhile, as those of a paused container do.
	Held      float64 `json:"held,omitempty"`
	Container string  `json:"container,omitempty"` // what its user calls it: containerd's id, or nerdctl's name
	Hostname  Change  `json:"hostname"`
	// Addresses are those of the network namespace but its loopback addresses, as 192.0.2.1/24.
	Addresses AddressChange `json:"addresses"`
	GPUs      []Change      `json:"gpus"` // UUIDs, in the snapshot's order
	// Environment are the variables of the container that differ from those of the snapshot's, with their values; null: it has none of this name. Annotations likewise.
	Environment map[string]*string `json:"environment"`
	Annotations map[string]*string `json:"annotations"`
	// Members are those of the group with which the container was restored in step, itself included; absent: it was restored alone.
	Members []Member `json:"members,omitempty"`
}

// Change is a value in the snapshot's container, and in the restored one.
type Change struct {
	Was string `json:"was"`
	Is  string `json:"is"`
}

// AddressChange are addresses in the snapshot's container, and in the restored one; none where they are unknown.
type AddressChange struct {
	Was []string `json:"was"`
	Is  []string `json:"is"`
}

// Compare compares the specifications of the snapshot's container and of the restored one.
func Compare(was, is *specs.Spec) *Changes {
	c := &Changes{Environment: differing(environment(was), environment(is)), Annotations: differing(was.Annotations, is.Annotations)}
	delete(c.Annotations, criu.Annotation) // the shim's, of this bundle
	delete(c.Annotations, runc.MarkAnnotation)
	c.Hostname = Change{Was: hostname(was), Is: hostname(is)}
	return c
}

// Unknown returns the changes of a container of whose snapshot no specification is known.
func Unknown(is *specs.Spec) *Changes {
	return &Changes{Hostname: Change{Is: hostname(is)}, Environment: map[string]*string{}, Annotations: map[string]*string{}}
}

// Complete adds what is known only when the container is about to run.
func (c *Changes) Complete(addresses []string, gpus []Change) {
	c.Version, c.Generation, c.Time = ChangesVersion, generation(), time.Now().UTC()
	if !c.Frozen.IsZero() {
		c.Pause = max(c.Time.Sub(c.Frozen).Seconds(), 0)
	}
	c.Addresses = AddressChange{Was: append([]string{}, c.Addresses.Was...), Is: append([]string{}, addresses...)}
	c.GPUs = append([]Change{}, gpus...)
}

// generation returns a random number from 1 to 2^53.
func generation() int64 {
	const bits = 53
	var b [8]byte
	_, _ = rand.Read(b[:]) // which never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>(64-bits)) + 1
}

// environment returns the environment variables of the container's first process.
func environment(s *specs.Spec) map[string]string {
	all := map[string]string{}
	if s.Process == nil {
		return all
	}
	for _, v := range s.Process.Env {
		if name, value, ok := strings.Cut(v, "="); ok {
			all[name] = value
		}
	}
	return all
}

// SetEnvironment sets variables of the container's first process, NAME=VALUE each.
func SetEnvironment(s *specs.Spec, all []string) {
	if s.Process == nil || len(all) == 0 {
		return
	}
	process, env := *s.Process, slices.Clone(s.Process.Env)
	for _, v := range all {
		name, _, _ := strings.Cut(v, "=")
		env = append(slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") }), v)
	}
	process.Env = env
	s.Process = &process // a copy of the specification keeps the old one
}

// ParseVariable reads NAME=VALUE. It returns an error for a variable that a control directory goes by: the restored program has the old one.
func ParseVariable(text string) error {
	name, _, ok := strings.Cut(text, "=")
	if !ok || name == "" || strings.ContainsRune(text, 0) {
		return fmt.Errorf("%q is not NAME=VALUE: %w", text, errdefs.ErrInvalidArgument)
	}
	if slices.ContainsFunc(controls, func(c Control) bool { return c.Variable == name }) {
		return fmt.Errorf("%s names a directory that the program has made already: %w", name, errdefs.ErrInvalidArgument)
	}
	return nil
}

// hostname returns the container's. In a pod it is the sandbox's, and CRI writes it into the environment.
func hostname(s *specs.Spec) string {
	return cmp.Or(s.Hostname, environment(s)["HOSTNAME"])
}

// differing returns what differs, as it is.
func differing(was, is map[string]string) map[string]*string {
	all := map[string]*string{}
	for name, value := range is {
		if old, ok := was[name]; !ok || old != value {
			all[name] = &value
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok {
			all[name] = nil
		}
	}
	return all
}

// file returns the content of the file.
func (c *Changes) file() ([]byte, error) {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", changesFile, err)
	}
	return append(data, '\n'), nil
}

// Write writes the file [ChangesPath] below root, for the container's user alone: environments have passwords. Links do not lead out of root.
func (c *Changes) Write(root string, spec *specs.Spec) error {
	data, err := c.file()
	if err != nil {
		return err
	}
	var user specs.User
	if spec.Process != nil {
		user = spec.Process.User
	}
	uid, gid, rootUID, rootGID := int(user.UID), int(user.GID), 0, 0
	if l := spec.Linux; l != nil && len(l.UIDMappings) > 0 {
		uid, gid = HostID(l.UIDMappings, user.UID), HostID(l.GIDMappings, user.GID)
		rootUID, rootGID = HostID(l.UIDMappings, 0), HostID(l.GIDMappings, 0)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("write %s: %w", ChangesPath, err)
	}
	defer dir.Close()
	at, in := ChangesPath[1:], path.Dir(ChangesPath[1:])
	made := dir.Mkdir(in, 0o755)
	if made == nil {
		made = dir.Lchown(in, rootUID, rootGID)
	}
	if gone := dir.Remove(at); errors.Is(made, fs.ErrExist) && (gone == nil || errors.Is(gone, fs.ErrNotExist)) {
		made = nil
	}
	err = made
	if err == nil {
		err = dir.WriteFile(at, data, 0o400)
	}
	if err == nil {
		err = dir.Lchown(at, uid, gid)
	}
	if err != nil {
		return failure.New(errdefs.ErrFailedPrecondition, "leave "+path.Dir(ChangesPath)+" in the image to cryo", "write %s in the container: %v", ChangesPath, err)
	}
	return nil
}

// HostID returns the host's id of a container's user or group; the host's 0 where it has none.
func HostID(mappings []specs.LinuxIDMapping, id uint32) int {
	for _, m := range mappings {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return int(m.HostID + id - m.ContainerID)
		}
	}
	return 0
}

// Addresses returns the IP addresses of the network namespace of a process but its loopback addresses, as 192.0.2.1/24.
func Addresses(pid int) ([]string, error) {
	return addressesAt(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// AddressesOf returns the addresses that a container of a specification will have: those of the network namespace that it names, or the host's. One that will have a new namespace has none yet.
func AddressesOf(spec *specs.Spec) ([]string, error) {
	path, own := criu.NamespaceIn(spec, specs.NetworkNamespace)
	switch {
	case path != "":
		return addressesAt(path)
	case own:
		return nil, nil
	}
	return addressesAt("/proc/self/ns/net")
}

// addressesAt returns the addresses of a network namespace but its loopback addresses.
func addressesAt(namespace string) (all []string, err error) {
	err = criu.InNamespace(unix.CLONE_NEWNET, namespace, func() error {
		found, err := net.InterfaceAddrs()
		for _, a := range found {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() {
				all = append(all, n.String())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the addresses in %s: %w", namespace, err)
	}
	return all, nil
}
