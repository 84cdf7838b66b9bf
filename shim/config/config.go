package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
)

// Path is where the file is looked for unless CRYO_CONFIG names another.
const Path = "/etc/cryo/config.toml"

// Config is the file's contents. Every key may be left out.
type Config struct {
	// Root holds the local store and working directories. Default /var/lib/cryo.
	Root string `toml:"root"`
	// CRIU is the criu binary. Default: "criu" in PATH, then /opt/cryo/criu/bin/criu.
	CRIU string `toml:"criu"`
	// Store is about what the local store keeps.
	Store Store `toml:"store"`
	// Containerd is about how the cryo command asks it.
	Containerd Containerd `toml:"containerd"`
	// Registry is about how registries are reached.
	Registry Registry `toml:"registry"`
	// Dump holds CRIU's options for dumps.
	Dump Dump `toml:"dump"`
	// Checkpoint says where the annotation io.cryo.checkpoint-to may have snapshots sent.
	Checkpoint Registries `toml:"checkpoint"`
	// Restore is about how containers get their memory back.
	Restore Restore `toml:"restore"`
	// Prewarm bounds what cryo prewarm keeps ready.
	Prewarm Prewarm `toml:"prewarm"`
	// GPU is for containers with GPUs.
	GPU GPU `toml:"gpu"`
	// Trust says whose signature snapshots must have, for the cryo command and for the shim.
	Trust Trust `toml:"trust"`
}

// Store is about what the local store keeps.
type Store struct {
	// PartialPulls, in days, is how long an interrupted pull is kept for its next attempt. Default 7.
	PartialPulls int64 `toml:"partial-pulls"`
	// Containerd is the namespace of containerd that has the snapshots of the store as well, for a mirror that serves containerd's content to other hosts: who reaches that gets them. Default: none.
	Containerd string `toml:"containerd"`
}

// PartialAge is PartialPulls as a duration.
func (s Store) PartialAge() time.Duration { return time.Duration(s.PartialPulls) * 24 * time.Hour }

// Containerd is about how the cryo command asks it.
type Containerd struct {
	// Patience, in seconds, is how long a command that has begun asks a containerd again that has gone away, where that changes nothing. Default 30.
	Patience int64 `toml:"patience"`
}

// Registry is about how registries are reached.
type Registry struct {
	// Hosts are directories, as PATH lists them, with HOST/hosts.toml, as config_path of containerd names them. Default /etc/containerd/certs.d. Empty: mirrors are not asked.
	Hosts string `toml:"hosts"`
}

// Dump are CRIU's options for dumps.
type Dump struct {
	// GhostLimit is the largest deleted but open file that a dump takes, in MiB. Default 64.
	GhostLimit int64 `toml:"ghost-limit"`
	// Timeout, in seconds, is for stopping all processes. CRIU is ended where it makes no progress for three more. Default 30.
	Timeout int64 `toml:"timeout"`
	// NetworkLock is iptables, nftables or skip. Default: skip where no connection is saved; else CRIU's own, iptables; nftables where iptables is not installed.
	NetworkLock string `toml:"network-lock"`
	// InotifyPaths are directories of containers, searched for what inotify watches. Searching takes time only where something is watched that CRIU does not find otherwise. Default: those of [Default].
	InotifyPaths []string `toml:"inotify-paths"`
	// Verify has cryo checkpoint try each snapshot before the container ends, as with --verify.
	Verify bool `toml:"verify"`
}

// Restore is about how containers get their memory back.
type Restore struct {
	// Lazy has containers run at once, while their memory is filled in. Default true, where the kernel can do it.
	Lazy bool `toml:"lazy"`
	// FillRate bounds, in MiB a second, how fast memory is filled in that no process waits for. 0, the default: nothing does.
	FillRate int64 `toml:"fill-rate"`
	// Timeout, in seconds, is how long CRIU may restore a container without progress before it is ended. Default 120.
	Timeout int64 `toml:"timeout"`
	// RegistryTimeout, in seconds, is how long a container that runs waits for memory that is still to be pulled while the registry brings nothing. Then it is ended.
	// Default 3600.
	RegistryTimeout int64 `toml:"registry-timeout"`
	// ShareMemory has restored containers share equal memory with each other, by the kernel's search for equal pages. By the time of a write a container can then find out whether another has a page like its own.
	ShareMemory bool `toml:"share-memory"`
	// Policy says what containers may be restored from by their image or annotation.
	Policy Policy `toml:"policy"`
}

// Prewarm bounds what cryo prewarm keeps ready.
type Prewarm struct {
	// Disk bounds the blobs that were fetched for prewarmed snapshots, in MiB. 0, the default: nothing does.
	Disk int64 `toml:"disk"`
	// GPU bounds, on each GPU, the device memory of snapshots that are kept loaded, in MiB. 0, the default: nothing does but what is free.
	GPU int64 `toml:"gpu"`
	// Memory bounds the memory of all containers that are restored ahead and stand still, in MiB. 0, the default: one is made while twice its memory is available.
	Memory int64 `toml:"memory"`
}

// GPU is for containers with GPUs.
type GPU struct {
	// Timeout, in seconds, is for the work that processes have given to a GPU to end before a snapshot. Default 10.
	Timeout int64 `toml:"timeout"`
	// CDI are the directories of CDI files, later ones winning over earlier ones. Default: those of every CDI client,
	// /etc/cdi and /var/run/cdi.
	CDI []string `toml:"cdi"`
	// Engine is how device memory is saved: driver, by NVIDIA's driver alone, or keeper, by which containers get a library that
	// hands large allocations over. Default keeper; the driver saves containers that share their PID namespace, and all where the host has no such library. Annotation
	// io.cryo.gpu.engine of a container wins over it.
	Engine string `toml:"engine"`
}

// Default is the configuration without a file.
func Default() Config {
	return Config{
		Root:       "/var/lib/cryo",
		Store:      Store{PartialPulls: 7},
		Containerd: Containerd{Patience: 30},
		Registry:   Registry{Hosts: "/etc/containerd/certs.d"},
		Dump: Dump{GhostLimit: 64, Timeout: 30,
			InotifyPaths: []string{"/tmp", "/var/tmp", "/run", "/srv", "/app", "/workspace", "/opt", "/root", "/home", "/usr/src", "/usr/local", "/usr/share/zoneinfo", "/var/lib"}},
		Restore: Restore{Lazy: true, Timeout: 120, RegistryTimeout: 3600, Policy: Policy{Timeout: 60}},
		GPU:     GPU{Timeout: 10, Engine: record.KeeperEngine},
		Trust:   Trust{Default: unsigned},
	}
}

// Load reads the file at path; an empty path means CRYO_CONFIG, then [Path]. Only the default path may be missing.
func Load(path string) (Config, error) {
	explicit := true
	if path == "" {
		path = os.Getenv("CRYO_CONFIG")
	}
	if path == "" {
		path, explicit = Path, false
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !explicit {
		return Default(), nil
	}
	if err != nil {
		return Config{}, unreadable(path, err)
	}
	return parse(path, data)
}

func parse(path string, data []byte) (Config, error) {
	c := Default()
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, unreadable(path, explain(err))
	}
	if err := c.validate(); err != nil {
		return Config{}, unreadable(path, err)
	}
	return c, nil
}

// explain returns in a user's words, and with the line, what is wrong with TOML.
func explain(err error) error {
	var (
		strict *toml.StrictMissingError
		wrong  *toml.DecodeError
		all    []error
	)
	switch {
	case errors.As(err, &strict):
		for i := range strict.Errors {
			line, _ := strict.Errors[i].Position()
			all = append(all, fmt.Errorf("line %d: there is no key %s", line, strings.Join(strict.Errors[i].Key(), ".")))
		}
		return errors.Join(all...)
	case errors.As(err, &wrong):
		line, _ := wrong.Position()
		if _, of, is := strings.Cut(wrong.Error(), " into struct field "); is {
			_, kind, _ := strings.Cut(of, " of type ")
			return fmt.Errorf("line %d: %s is to be %s", line, strings.Join(wrong.Key(), "."), cmp.Or(kinds[kind], "a table"))
		}
		return fmt.Errorf("line %d: %s", line, strings.TrimPrefix(wrong.Error(), "toml: "))
	}
	return err
}

// kinds are the words for types of keys.
var kinds = map[string]string{"int64": "a whole number", "string": "text in quotes", "bool": "true or false", "[]string": "a list of text in quotes"}

func (c Config) validate() error {
	switch {
	case !filepath.IsAbs(c.Root):
		return fmt.Errorf("root = %q is not an absolute path", c.Root)
	case c.CRIU != "" && (!filepath.IsAbs(c.CRIU) || filepath.Base(c.CRIU) != "criu"):
		return fmt.Errorf("criu = %q: runc runs the program by the name criu, so this must be an absolute path that ends in /criu", c.CRIU)
	}
	const hour = int64(time.Hour / time.Second)
	for _, n := range []struct {
		key               string
		value, from, upTo int64
		unit              string
	}{
		{"store.partial-pulls", c.Store.PartialPulls, 0, 3650, "days"},
		{"containerd.patience", c.Containerd.Patience, 0, hour, "seconds"},
		{"dump.ghost-limit", c.Dump.GhostLimit, 0, 1 << 40, "MiB"},
		{"dump.timeout", c.Dump.Timeout, 0, hour, "seconds"},
		{"restore.fill-rate", c.Restore.FillRate, 0, 1 << 30, "MiB a second"},
		{"restore.timeout", c.Restore.Timeout, 1, hour, "seconds"},
		{"restore.registry-timeout", c.Restore.RegistryTimeout, 0, 30 * 24 * hour, "seconds"},
		{"restore.policy.timeout", c.Restore.Policy.Timeout, 1, hour, "seconds"},
		{"prewarm.disk", c.Prewarm.Disk, 0, 1 << 40, "MiB"},
		{"prewarm.gpu", c.Prewarm.GPU, 0, 1 << 40, "MiB"},
		{"prewarm.memory", c.Prewarm.Memory, 0, 1 << 40, "MiB"},
		{"gpu.timeout", c.GPU.Timeout, 1, hour, "seconds"},
	} {
		if n.value < n.from || n.value > n.upTo {
			return fmt.Errorf("%s = %d is not between %d and %d %s", n.key, n.value, n.from, n.upTo, n.unit)
		}
	}
	if c.GPU.Engine != record.DriverEngine && c.GPU.Engine != record.KeeperEngine {
		return fmt.Errorf("gpu.engine = %q is neither %s nor %s", c.GPU.Engine, record.DriverEngine, record.KeeperEngine)
	}
	if err := c.Trust.validate(); err != nil {
		return err
	}
	if err := c.Checkpoint.validate("checkpoint"); err != nil {
		return err
	}
	if err := c.Restore.Policy.validate("restore.policy"); err != nil {
		return err
	}
	for _, dir := range filepath.SplitList(c.Registry.Hosts) {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("registry.hosts: %q is not an absolute path", dir)
		}
	}
	for _, dir := range c.GPU.CDI {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("gpu.cdi: %q is not an absolute path", dir)
		}
	}
	for _, dir := range c.Dump.InotifyPaths {
		if !filepath.IsAbs(dir) || strings.ContainsAny(dir, " \t\n\"#") { // which CRIU's configuration files do not take
			return fmt.Errorf("dump.inotify-paths: %q is not an absolute path without spaces, quotes and #", dir)
		}
	}
	switch c.Dump.NetworkLock {
	case "", "iptables", "nftables", "skip":
		return nil
	}
	return fmt.Errorf("dump.network-lock = %q is none of iptables, nftables, skip", c.Dump.NetworkLock)
}

// unreadable returns what is wrong with the file at path: InvalidArgument, or PermissionDenied where we may not read it.
func unreadable(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return failure.New(errdefs.ErrPermissionDenied, "run cryo as root (sudo), or name another file with CRYO_CONFIG", "read configuration %s: %w", path, err)
	}
	return failure.New(errdefs.ErrInvalidArgument, "mend the file, or name another with CRYO_CONFIG", "read configuration %s: %w", path, err)
}
