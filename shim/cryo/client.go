package cryo

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
)

// Options say where cryo is on this host. The zero value is right for an installed cryo.
type Options struct {
	// Address is containerd's socket. Default: /run/containerd/containerd.sock.
	Address string
	// ConfigFile is cryo's configuration. Default: the file that the environment variable CRYO_CONFIG names, or /etc/cryo/config.toml.
	ConfigFile string
	// Root has the local store. Default: the environment variable CRYO_ROOT, or root of the configuration, /var/lib/cryo.
	Root string
	// Program is the cryo command, which is started where a process of cryo's own is needed. cryo's other programs are in the same directory. Default: cryo in PATH.
	Program string
}

// Client is cryo on one host.
type Client struct {
	options Options
	config  config.Config
	store   *store.Store
}

// New reads the configuration and opens the local store. It does not reach containerd.
func New(o Options) (*Client, error) {
	o.Address = cmp.Or(o.Address, defaults.DefaultAddress)
	c, err := config.Load(o.ConfigFile)
	if err != nil {
		return nil, err
	}
	c.Root = cmp.Or(o.Root, os.Getenv("CRYO_ROOT"), c.Root)
	s, err := daemon.OpenStore(c, o.Address)
	if err != nil {
		return nil, err
	}
	return &Client{options: o, config: c, store: s}, nil
}

// namespace returns containerd's namespace.
func namespace(ctx context.Context) string {
	name, _ := namespaces.Namespace(ctx)
	return cmp.Or(name, namespaces.Default)
}

// connect reaches containerd. The caller closes the client.
func (c *Client) connect(ctx context.Context) (context.Context, *containerd.Client, error) {
	return daemon.Connect(ctx, c.daemon(ctx))
}

func (c *Client) daemon(ctx context.Context) daemon.Options {
	return daemon.Options{Address: c.options.Address, Namespace: namespace(ctx), Patience: time.Duration(c.config.Containerd.Patience) * time.Second, Trace: true}
}

// program returns the path of the cryo command.
func (c *Client) program() (string, error) {
	path, err := exec.LookPath(cmp.Or(c.options.Program, "cryo"))
	if err != nil {
		return "", failure.New(errdefs.ErrFailedPrecondition, "install cryo, or set Options.Program", "find the cryo command: %w", err)
	}
	return path, nil
}

// Registry says how a registry is reached. The zero value uses TLS and Docker's credentials (docker login). Registries on loopback addresses need no TLS.
type Registry struct {
	// Username and Password take the place of stored credentials.
	Username, Password string
	// CredentialsFile is a file like Docker's config.json, whose credentials and credential helpers take the place of Docker's own.
	CredentialsFile string
	// PlainHTTP reaches the registry without TLS.
	PlainHTTP bool
	// Insecure accepts any certificate.
	Insecure bool
	// CAFile has certificate authorities to trust beside those of the system, PEM.
	CAFile string
	// Concurrency is how many blobs are transferred at once. Default: half as many as there are cores, 4 to 8.
	Concurrency int
}

func (r Registry) options(c config.Config, h Hooks) (registry.Options, error) {
	if r.Concurrency < 0 {
		return registry.Options{}, fmt.Errorf("Registry.Concurrency is %d: %w", r.Concurrency, errdefs.ErrInvalidArgument)
	}
	return registry.Options{
		Username: r.Username, Password: r.Password, DockerConfig: r.CredentialsFile, PlainHTTP: r.PlainHTTP, Insecure: r.Insecure, CAFile: r.CAFile,
		Concurrency: r.Concurrency, Progress: h.progress(), Hosts: c.Registry.Hosts,
	}, nil
}

// Hooks are functions that a call uses to report what happens until it returns. Each may be nil. They are called from several goroutines at once, and must return soon.
type Hooks struct {
	Progress func(Progress)
	// Warning gets a text that the user should read.
	Warning func(text string)
}

// Progress is how far an activity is. Several go on at once.
type Progress struct {
	// Activity is "dump", "devices", "pack", "verify", "push", "pull", "read" or another word.
	Activity string
	// Done of Total bytes are done. Total is 0 while it is unknown.
	Done, Total int64
	// Ended reports that an activity has ended whose Total is unknown. Done is then 0.
	Ended bool
}

func (h Hooks) progress() image.Progress {
	if h.Progress == nil {
		return nil
	}
	return func(activity string, done, total int64) {
		h.Progress(Progress{Activity: activity, Done: done, Total: total})
	}
}

func (h Hooks) warn(format string, args ...any) {
	if h.Warning != nil {
		h.Warning(fmt.Sprintf(format, args...))
	}
}

func (h Hooks) job() restore.Hooks {
	j := restore.Hooks{Progress: h.progress(), Warn: h.warn}
	if h.Progress != nil {
		j.Ended = func(activity string) { h.Progress(Progress{Activity: activity, Ended: true}) }
	}
	return j
}

// Transfer is what a registry was sent, or has sent.
type Transfer struct {
	// Moved bytes went over the network, repetitions included. Present bytes were there already.
	Moved, Present int64
	// Retries is the number of requests that were repeated.
	Retries int64
	Took    time.Duration
}

func transfer(t *restore.Transfer) *Transfer {
	if t == nil {
		return nil
	}
	return &Transfer{Moved: t.Moved, Present: t.There, Retries: t.Retries, Took: seconds(t.Seconds)}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
