package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/cryo-project/cryo/integration/lab"
)

// another starts a second containerd on a host, with directories of its own and all else shared: the namespace, and runc's directory. It gives the flags
// by which clients reach it.
func another(t *testing.T, h *lab.Host) (address string) {
	t.Helper()
	dir := filepath.Join(h.Dir, "another")
	address = "/run/another/containerd.sock"
	config := fmt.Sprintf(`version = 3
root = "%[1]s/root"
state = "/run/another"
imports = []
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri",
  "io.containerd.podsandbox.controller.v1.podsandbox"]
[grpc]
  address = %[2]q
[ttrpc]
  address = "/run/another/containerd.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
`, dir, address)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	daemon := h.Command(cleanupContext(t), "containerd", "--config", path)
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait() // it was ended by a signal
		_ = log.Close()
	})
	eventually(t, "second containerd", time.Minute, func() bool {
		return h.Ctr(t.Context(), "--address", address, "version").Code == 0
	})
	return address
}

// createdFrom creates a task of a container from CRIU's images in a directory, and does not start it.
func createdFrom(t *testing.T, h *lab.Host, address, id, images string) containerd.Task {
	t.Helper()
	c, err := containerd.New(filepath.Join(h.Dir, address), containerd.WithDefaultNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	container, err := c.LoadContainer(inDefault(t), id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.NewTask(inDefault(t), cio.NullIO, func(_ context.Context, _ *containerd.Client, info *containerd.TaskInfo) error {
		info.Options = &options.Options{CriuImagePath: images}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// TestBadForeign has two containerds on one machine, which share runc's directory, with a container of one name: the second one touches nothing of the first
// one's, be that running or stopped, says whose it is, and keeps nothing.
func TestBadForeign(t *testing.T) {
	h := newHost(t, "foreign", lab.HostOptions{})
	id, ref := name(t), "bad/foreign:1"
	start(t, h, id, nil, "workload", "count", "--memory", "8")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	forget(t, h, ref)
	address := another(t, h)
	second := func(args ...string) lab.Result {
		return h.Ctr(t.Context(), append([]string{"--address", address}, args...)...)
	}
	must(t, second("images", "import", shared.lab.Image().Path))
	known := func() string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(h.Dir, "run/containerd/runc/default", id, "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	refusedThere := func(t *testing.T, r lab.Result, code int) {
		t.Helper()
		if r.Code != code {
			t.Errorf("%s: exit code %d, want %d", r.Command, r.Code, code)
		}
		for _, words := range []string{"/run/containerd/io.containerd.runtime.v2.task/default/" + id, "--name"} {
			if !strings.Contains(r.Stderr, words) {
				t.Errorf("%s does not say %q:\n%s", r.Command, words, r.Stderr)
			}
		}
		if r.Elapsed > 8*time.Second {
			t.Errorf("%s took %s", r.Command, r.Elapsed)
		}
	}
	refusals := func(t *testing.T) {
		before := known()
		refusedThere(t, h.Cryo(t.Context(), "restore", ref, "--address", address, "--pull", "never"), codeExists)
		refusedThere(t, second("run", "--detach", "--null-io", "--runtime", cryoRuntime, lab.ImageName, id, "workload", "count"), 1)
		second("containers", "delete", id)
		if left := must(t, second("containers", "ls", "-q")).Stdout + must(t, second("tasks", "ls", "-q")).Stdout; left != "" {
			t.Errorf("the second containerd has %q", left)
		}
		if known() != before {
			t.Error("runc's state of the first one has changed")
		}
	}
	t.Run("running", func(t *testing.T) {
		refusals(t)
		counts(t, h, id)
	})
	t.Run("comes in between", func(t *testing.T) {
		// The task is created from the snapshot when the name is free, and started, killed and deleted when it is another's.
		remove(t.Context(), h, id)
		images := filepath.Join(h.Dir, "another/images")
		if err := os.MkdirAll(images, 0o700); err != nil {
			t.Fatal(err)
		}
		start(t, h, id, nil, "workload", "count", "--memory", "8")
		must(t, h.Ctr(t.Context(), "tasks", "checkpoint", "--image-path", images, id))
		remove(t.Context(), h, id)
		must(t, second("containers", "create", "--runtime", cryoRuntime, lab.ImageName, id, "workload", "count", "--memory", "8"))
		task := createdFrom(t, h, address, id, images)
		start(t, h, id, nil, "workload", "count", "--memory", "8")
		before := known()
		if err := task.Start(inDefault(t)); err == nil || !strings.Contains(err.Error(), "another containerd") {
			t.Errorf("start: %v", err)
		}
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			if err := task.Kill(inDefault(t), signal); err == nil || !strings.Contains(err.Error(), "another containerd") {
				t.Errorf("kill: %v", err)
			}
		}
		if _, err := task.Delete(inDefault(t)); err != nil {
			t.Errorf("delete: %v", err)
		}
		must(t, second("containers", "delete", id))
		counts(t, h, id)
		if known() != before {
			t.Error("runc's state of the first one has changed")
		}
	})
	t.Run("shim dies", func(t *testing.T) {
		remove(t.Context(), h, id)
		must(t, second("containers", "create", "--runtime", cryoRuntime, lab.ImageName, id, "workload", "count", "--memory", "8"))
		createdFrom(t, h, address, id, filepath.Join(h.Dir, "another/images"))
		shim := find(t, h, runsShim(id))
		start(t, h, id, nil, "workload", "count", "--memory", "8")
		before := known()
		kill(t, shim)
		eventually(t, "clean up", 30*time.Second, func() bool {
			return !there(filepath.Join(h.Dir, "run/another/io.containerd.runtime.v2.task/default", id))
		})
		second("containers", "delete", id)
		counts(t, h, id)
		if known() != before {
			t.Error("runc's state of the first one has changed")
		}
	})
	t.Run("stopped", func(t *testing.T) {
		start(t, h, id, nil, "workload", "count", "--memory", "8")
		must(t, h.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", id))
		eventually(t, "end of the container", 30*time.Second, func() bool {
			_, status, err := h.Task(t.Context(), id)
			return err == nil && status == "STOPPED"
		})
		refusals(t)
		if _, status, err := h.Task(t.Context(), id); err != nil || status != "STOPPED" {
			t.Errorf("the first one's task is %s, %v", status, err)
		}
		remove(t.Context(), h, id)
	})
	t.Run("gone", func(t *testing.T) {
		must(t, h.Cryo(t.Context(), "restore", ref, "--address", address, "--pull", "never"))
		if _, err := os.Stat(filepath.Join(h.Dir, "run/containerd/runc/default", id)); err != nil {
			t.Error(err)
		}
		must(t, second("tasks", "delete", "--force", id))
		must(t, second("containers", "delete", id))
	})
}
