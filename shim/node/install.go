package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
)

// Where things are on the machine.
const (
	InstallDir = "/opt/cryo"                                   // as in the image: bin, lib, criu, and share
	template   = InstallDir + "/share/containerd.toml"         // contrib/containerd/cryo.toml
	shim       = InstallDir + "/bin/" + daemon.ShimName        //
	dropIn     = "/etc/containerd/conf.d/cryo.toml"            //
	main       = "/etc/containerd/config.toml"                 //
	imports    = "imports = ['/etc/containerd/conf.d/*.toml']" // that the main file must have
	socket     = "/run/containerd/containerd.sock"             // containerd makes it when it starts
)

// InstallOptions are the choices of an installation.
type InstallOptions struct {
	// Host is where the machine's root directory is. From is the directory that is copied to [InstallDir].
	Host, From string
	// Configuration is a file that becomes the machine's /etc/cryo/config.toml; empty: that stays as it is.
	Configuration string
	// Restart has containerd restarted where it does not know of cryo yet.
	Restart bool
	// Run runs a program of the machine's, in its root directory; nil: it is run.
	Run func(ctx context.Context, program string, args ...string) (stdout []byte, err error)
}

// InstallResult is what was done.
type InstallResult struct {
	Changed   []string `json:"changed"` // files of the machine
	Restarted bool     `json:"restarted"`
}

// installation is one that is under way.
type installation struct {
	InstallOptions
	root   *os.Root // of the machine: a symlink that leads out of it is an error
	result *InstallResult
}

// Install installs. What was done already is not done again. An error is FailedPrecondition where containerd does not read the file, which is undone then, or where it must be
// restarted first.
func Install(ctx context.Context, o InstallOptions) (*InstallResult, error) {
	root, err := os.OpenRoot(o.Host)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	i := &installation{InstallOptions: o, root: root, result: &InstallResult{Changed: []string{}}}
	if i.Run == nil {
		i.Run = i.run
	}
	if err := i.copyAll(ctx); err != nil {
		return nil, fmt.Errorf("install cryo: %w", err)
	}
	if err := i.configure(ctx); err != nil {
		return nil, err
	}
	return i.result, i.restart(ctx)
}

// configure writes the file for containerd, and asks containerd what it makes of it.
func (i *installation) configure(ctx context.Context) error {
	data, err := os.ReadFile(filepath.Join(i.From, strings.TrimPrefix(template, InstallDir)))
	if err != nil {
		return fmt.Errorf("install cryo: %w", err)
	}
	if i.Configuration != "" {
		own, err := os.ReadFile(i.Configuration)
		if err == nil {
			_, err = config.Load(i.Configuration) // a shim that cannot read it starts no container
		}
		if err == nil {
			err = i.write(config.Path, own, 0o644)
		}
		if err != nil {
			return fmt.Errorf("install cryo: %w", err)
		}
	}
	before := len(i.result.Changed)
	if err := i.write(dropIn, runtimePath.ReplaceAll(data, []byte("${1}'"+shim+"'")), 0o644); err != nil {
		return fmt.Errorf("install cryo: %w", err)
	}
	if _, err := i.root.Lstat(inside(main)); errors.Is(err, fs.ErrNotExist) {
		if err := i.write(main, []byte("version = 3\n"+imports+"\n"), 0o644); err != nil {
			return fmt.Errorf("install cryo: %w", err)
		}
	}
	if err := i.check(ctx); err != nil {
		for _, name := range append(i.result.Changed[before:], dropIn) { // also that of an installation that was killed here
			if gone := i.root.Remove(inside(name)); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
		return err
	}
	return nil
}

// runtimePath is the line that names the shim.
var runtimePath = regexp.MustCompile(`(?m)^(\s*runtime_path = )'[^']*'`)

// check asks containerd for its configuration as it would be.
func (i *installation) check(ctx context.Context) error {
	refuse := func(hint, text string, args ...any) error {
		return failure.New(errdefs.ErrFailedPrecondition, hint, "install cryo: containerd does not take "+dropIn+": "+text, args...)
	}
	dump, err := i.Run(ctx, "containerd", "config", "dump")
	if err != nil {
		return refuse("see that "+main+" is containerd's configuration, of version 3 or later", "%v", err)
	}
	var c struct {
		Plugins map[string]struct {
			Containerd struct {
				Runtimes map[string]struct {
					Path string `toml:"runtime_path"`
				} `toml:"runtimes"`
			} `toml:"containerd"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(dump, &c); err != nil {
		return refuse("run containerd config dump", "%v", err)
	}
	switch got := c.Plugins["io.containerd.cri.v1.runtime"].Containerd.Runtimes["cryo"].Path; got {
	case shim:
		return nil
	case "":
		return refuse("add this line at the top of "+main+": "+imports, "it does not read that file")
	default:
		return refuse("take the runtime cryo out of "+main+" and what else that imports", "its runtime cryo has the program %s", got)
	}
}

// restart restarts containerd if it has started before the file was written.
func (i *installation) restart(ctx context.Context) error {
	written, err := i.root.Stat(inside(dropIn))
	if err != nil {
		return fmt.Errorf("install cryo: %w", err)
	}
	knows := func() bool {
		s, err := i.root.Stat(inside(socket))
		return err == nil && !s.ModTime().Before(written.ModTime())
	}
	if knows() {
		return nil
	}
	if !i.Restart {
		return failure.New(errdefs.ErrFailedPrecondition, "on this machine: systemctl restart containerd (running containers live on); or have it restarted by --restart, or CRYO_RESTART_CONTAINERD=true",
			"containerd does not know of cryo until it is restarted")
	}
	if _, err := i.Run(ctx, "systemctl", "restart", "containerd"); err != nil {
		return fmt.Errorf("restart containerd: %w", err)
	}
	for end := time.Now().Add(restartTime); !knows(); time.Sleep(100 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("restart containerd: it is not back: %w", errdefs.ErrUnavailable)
		}
	}
	i.result.Restarted = true
	return nil
}

// restartTime is how long containerd may take to start.
const restartTime = time.Minute

// places are where the machine's programs are.
var places = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// run runs a program in the machine's root directory.
func (i *installation) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	for _, dir := range places {
		if _, err := i.root.Stat(inside(path.Join(dir, program))); err != nil {
			continue
		}
		c := exec.CommandContext(ctx, path.Join(dir, program), args...)
		c.Dir = "/"
		c.Env = []string{"PATH=" + strings.Join(places, ":"), "SYSTEMD_IGNORE_CHROOT=1"}
		c.SysProcAttr = &syscall.SysProcAttr{Chroot: i.Host}
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		if err := c.Run(); err != nil {
			return nil, fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
		}
		return stdout.Bytes(), nil
	}
	return nil, fmt.Errorf("%s is not in %s of the machine: %w", program, strings.Join(places, ":"), errdefs.ErrNotFound)
}

// inside is a path of the machine's for its [os.Root].
func inside(name string) string { return strings.TrimPrefix(name, "/") }
