// Package config reads cryo's configuration file, for the shim and the command line alike.
//
// The file is /etc/cryo/config.toml, or what the environment variable CRYO_CONFIG names. Without a file the defaults
// hold; a key the file should not have is an error. Flags and environment variables of the command line win over it.
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

	"github.com/cryo-project/cryo/image/spec"
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
	// Dump holds CRIU's options for dumps.
	Dump Dump `toml:"dump"`
	// Checkpoint says where the snapshots of containers may be sent by their annotation.
	Checkpoint Checkpoint `toml:"checkpoint"`
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
}

// PartialAge is PartialPulls as a duration.
func (s Store) PartialAge() time.Duration { return time.Duration(s.PartialPulls) * 24 * time.Hour }

// Containerd is about how the cryo command asks it.
type Containerd struct {
	// Patience, in seconds, is how long a command that has begun waits for a containerd that has gone away. Default 30.
	Patience int64 `toml:"patience"`
}

// Dump are CRIU's options for dumps.
type Dump struct {
	// GhostLimit is the largest deleted but open file that a dump takes, in MiB. Default 64.
	GhostLimit int64 `toml:"ghost-limit"`
	// Timeout, in seconds, is for stopping all processes. Default 30.
	Timeout int64 `toml:"timeout"`
	// NetworkLock is iptables, nftables or skip. Default: CRIU's own, iptables; nftables where iptables is not installed.
	NetworkLock string `toml:"network-lock"`
}

// Restore is about how containers get their memory back.
type Restore struct {
	// Lazy has containers run at once, while their memory is filled in. Default true, where the kernel can do it.
	Lazy bool `toml:"lazy"`
	// FillRate bounds, in MiB a second, how fast memory is filled in that nobody waits for. 0, the default: nothing does.
	FillRate int64 `toml:"fill-rate"`
	// Timeout, in seconds, is how long CRIU may restore a container without progress before it is ended. Default 120.
	Timeout int64 `toml:"timeout"`
	// RegistryTimeout, in seconds, is how long a container that runs waits for memory that is still to be pulled while the registry brings nothing. Then it is ended.
	// Default 3600.
	RegistryTimeout int64 `toml:"registry-timeout"`
	// Policy says what containers may be restored from by their image or annotation.
	Policy Policy `toml:"policy"`
}

// Prewarm bounds what cryo prewarm keeps ready.
type Prewarm struct {
	// Disk bounds the blobs that were fetched for prewarmed snapshots, in MiB. 0, the default: nothing does.
	Disk int64 `toml:"disk"`
	// GPU bounds, on each GPU, the device memory of snapshots that are kept loaded, in MiB. 0, the default: nothing does but what is free.
	GPU int64 `toml:"gpu"`
}

// GPU is for containers with GPUs.
type GPU struct {
	// Timeout, in seconds, is for the work that processes have given to a GPU to end before a snapshot. Default 10.
	Timeout int64 `toml:"timeout"`
	// CDI are the directories of CDI files, later ones winning over earlier ones. Default: those of every CDI client,
	// /etc/cdi and /var/run/cdi.
	CDI []string `toml:"cdi"`
	// Engine is how device memory is saved: driver, by NVIDIA's driver alone, or keeper, by which containers get a library that
	// hands large allocations over. Default driver. Annotation io.cryo.gpu.engine of a container wins over it.
	Engine string `toml:"engine"`
}

// Default is the configuration without a file.
func Default() Config {
	return Config{
		Root:       "/var/lib/cryo",
		Store:      Store{PartialPulls: 7},
		Containerd: Containerd{Patience: 30},
		Dump:       Dump{GhostLimit: 64, Timeout: 30},
		Restore:    Restore{Lazy: true, Timeout: 120, RegistryTimeout: 3600, Policy: Policy{Timeout: 60}},
		GPU:        GPU{Timeout: 10, Engine: spec.DriverEngine},
		Trust:      Trust{Default: unsigned},
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
		return Config{}, &Error{Path: path, Err: err}
	}
	return parse(path, data)
}

func parse(path string, data []byte) (Config, error) {
	c := Default()
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, &Error{Path: path, Err: explain(err)}
	}
	if err := c.validate(); err != nil {
		return Config{}, &Error{Path: path, Err: err}
	}
	return c, nil
}

// explain says in a user's words, and with the line, what is wrong with TOML.
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
	case c.Store.PartialPulls < 0 || c.Store.PartialPulls > 3650:
		return fmt.Errorf("store.partial-pulls = %d is not between 0 and 3650 days", c.Store.PartialPulls)
	case c.Dump.GhostLimit < 0:
		return fmt.Errorf("dump.ghost-limit = %d is negative", c.Dump.GhostLimit)
	case c.Dump.Timeout < 0 || c.Dump.Timeout > int64(time.Hour/time.Second):
		return fmt.Errorf("dump.timeout = %d is not between 0 and 3600 seconds", c.Dump.Timeout)
	case c.Containerd.Patience < 0 || c.Containerd.Patience > int64(time.Hour/time.Second):
		return fmt.Errorf("containerd.patience = %d is not between 0 and 3600 seconds", c.Containerd.Patience)
	case c.Restore.FillRate < 0 || c.Restore.FillRate > 1<<30:
		return fmt.Errorf("restore.fill-rate = %d is not between 0 and %d MiB a second", c.Restore.FillRate, 1<<30)
	}
	if t := c.Restore.Timeout; t < 1 || t > int64(time.Hour/time.Second) {
		return fmt.Errorf("restore.timeout = %d is not between 1 and 3600 seconds", t)
	}
	if t := c.Restore.RegistryTimeout; t < 0 || t > int64(30*24*time.Hour/time.Second) {
		return fmt.Errorf("restore.registry-timeout = %d is not between 0 and %d seconds", t, 30*24*time.Hour/time.Second)
	}
	if p := c.Prewarm; min(p.Disk, p.GPU) < 0 || max(p.Disk, p.GPU) > 1<<40 {
		return fmt.Errorf("prewarm.disk = %d, prewarm.gpu = %d: not between 0 and %d MiB", p.Disk, p.GPU, int64(1)<<40)
	}
	if c.GPU.Timeout < 1 || c.GPU.Timeout > int64(time.Hour/time.Second) {
		return fmt.Errorf("gpu.timeout = %d is not between 1 and 3600 seconds", c.GPU.Timeout)
	}
	if c.GPU.Engine != spec.DriverEngine && c.GPU.Engine != spec.KeeperEngine {
		return fmt.Errorf("gpu.engine = %q is neither %s nor %s", c.GPU.Engine, spec.DriverEngine, spec.KeeperEngine)
	}
	if err := c.Trust.validate(); err != nil {
		return err
	}
	if err := c.Checkpoint.validate(); err != nil {
		return err
	}
	if err := c.Restore.Policy.validate(); err != nil {
		return err
	}
	for _, dir := range c.GPU.CDI {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("gpu.cdi: %q is not an absolute path", dir)
		}
	}
	switch c.Dump.NetworkLock {
	case "", "iptables", "nftables", "skip":
		return nil
	}
	return fmt.Errorf("dump.network-lock = %q is none of iptables, nftables, skip", c.Dump.NetworkLock)
}

// Error says what is wrong with the file. Its kind is InvalidArgument, or PermissionDenied where we may not read it.
type Error struct {
	Path string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("read configuration %s: %v", e.Path, e.Err) }

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if errors.Is(e.Err, fs.ErrPermission) {
		return []error{errdefs.ErrPermissionDenied, e.Err}
	}
	return []error{errdefs.ErrInvalidArgument, e.Err}
}

// Hint says what to do.
func (e *Error) Hint() string {
	if errors.Is(e.Err, fs.ErrPermission) {
		return "run cryo as root (sudo), or name another file with CRYO_CONFIG"
	}
	return "mend the file, or name another with CRYO_CONFIG"
}
