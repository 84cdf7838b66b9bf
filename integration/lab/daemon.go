package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
)

// containerdConfig leaves out what is slow to start or reaches outside the host's directory. %[1]s is that directory, %[2]s what is imported, %[3]s plugins
// that are not to be.
const containerdConfig = `version = 3
root = "%[1]s/containerd"
state = "/run/containerd"
imports = [%[2]s]
disabled_plugins = [%[3]s
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
]

[grpc]
  address = "/run/containerd/containerd.sock"

[debug]
  level = "debug"

[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
`

// criPlugins are what serves kubelets alone.
const criPlugins = `
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.podsandbox.controller.v1.podsandbox",
  "io.containerd.nri.v1.nri",`

func (h *Host) writeConfig() error {
	imports, disabled := "", criPlugins
	if h.options.Node != nil {
		imports, disabled = `"/etc/containerd/conf.d/*.toml"`, ""
	}
	config := fmt.Sprintf(containerdConfig, h.Dir, imports, disabled) + h.options.Config
	if err := os.WriteFile(filepath.Join(h.Dir, "config.toml"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("write containerd configuration: %w", err)
	}
	return h.Configure(h.options.CryoConfig)
}

// Configure replaces the file CRYO_CONFIG names.
func (h *Host) Configure(content string) error {
	if err := os.WriteFile(filepath.Join(h.Dir, "cryo.toml"), []byte(content), 0o600); err != nil {
		return fmt.Errorf("write cryo's configuration: %w", err)
	}
	return nil
}

// StartDaemon starts containerd and waits until it serves.
func (h *Host) StartDaemon(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.daemon != nil {
		return fmt.Errorf("start containerd of %s: it runs", h.Name)
	}
	log, err := os.OpenFile(h.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open containerd's log: %w", err)
	}
	defer log.Close()
	// Not bound to ctx: the daemon outlives the call.
	d := &daemon{done: make(chan struct{})}
	d.command = h.Command(context.WithoutCancel(ctx), "containerd", "--config", filepath.Join(h.Dir, "config.toml"))
	d.command.Env = slices.DeleteFunc(d.command.Env, func(v string) bool { return strings.HasPrefix(v, "HOME=") }) // as systemd has it
	d.command.Stdout, d.command.Stderr = log, log
	d.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.command.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	go func() {
		_ = d.command.Wait() // how it ended is in its log
		close(d.done)
	}()
	h.daemon = d
	return h.serving(ctx, d)
}

// serving waits for an answer of containerd.
func (h *Host) serving(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		select {
		case <-d.done:
			return fmt.Errorf("start containerd: it ended, see %s:\n%s", h.Log(), tail(h.Log(), 2000))
		case <-ctx.Done():
			return fmt.Errorf("start containerd: %w, see %s:\n%s", ctx.Err(), h.Log(), tail(h.Log(), 2000))
		case <-time.After(20 * time.Millisecond):
		}
		if conn, err := net.Dial("unix", h.Socket()); err == nil {
			_ = conn.Close()
			break
		}
	}
	c, err := containerd.New(h.Socket(), containerd.WithTimeout(30*time.Second))
	if err != nil {
		return fmt.Errorf("connect to containerd of %s: %w", h.Name, err)
	}
	_, err = c.Version(ctx)
	return errors.Join(err, c.Close())
}

// StopDaemon ends containerd with SIGTERM (or kills it); shims and containers live on.
func (h *Host) StopDaemon(sig syscall.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.daemon == nil {
		return nil
	}
	if err := h.daemon.command.Process.Signal(sig); err != nil {
		return fmt.Errorf("stop containerd: %w", err)
	}
	select {
	case <-h.daemon.done:
	case <-time.After(time.Minute):
		return fmt.Errorf("stop containerd of %s: it did not end in a minute", h.Name)
	}
	h.daemon = nil
	return nil
}

// tail is the end of a file, for messages.
func tail(path string, n int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-n):])
}
