package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestNerdctlNames moves a container with the labels that nerdctl gives: it keeps the name, and what is lost of its network is said before it ends.
func TestNerdctlNames(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	web, ref := "web-"+id[len(id)-6:], "nerdctl/"+id+":1"
	start(t, a, id, []string{"--label", "nerdctl/name=" + web, "--label", `nerdctl/networks=["bridge"]`,
		"--label", `nerdctl/ports=[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"0.0.0.0"}]`}, "workload", "count")
	before := await(t, a, id)
	forget(t, a, ref)
	r := must(t, a.Cryo(t.Context(), "checkpoint", web, ref))
	if !strings.Contains(r.Stderr, "published ports 0.0.0.0:8080:80/tcp") || !strings.Contains(r.Stderr, "--network-ns") {
		t.Errorf("no warning of the network: %s", r.Stderr)
	}
	if r := a.Cryo(t.Context(), "restore", ref); r.Code == 0 || !strings.Contains(r.Stderr, "has a container of this name") { // two of nerdctl's would have it
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	remove(t.Context(), a, id)
	cleanup(t, a, web)
	must(t, a.Cryo(t.Context(), "restore", ref))
	goneOn(t, before, await(t, a, web))
	if info := must(t, a.Ctr(t.Context(), "containers", "info", web)).Stdout; !strings.Contains(info, `"nerdctl/name": "`+web+`"`) {
		t.Errorf("%s", info)
	}
}

// TestNerdctlHostNetwork warns of no network that nerdctl has not made.
func TestNerdctlHostNetwork(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "nerdctl/" + id + ":1"
	start(t, a, id, []string{"--label", "nerdctl/name=" + id, "--label", `nerdctl/networks=["none"]`}, "workload", "count")
	forget(t, a, ref)
	if r := must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running")); strings.Contains(r.Stderr, "nerdctl") {
		t.Errorf("a warning: %s", r.Stderr)
	}
}

// TestNerdctlExit has cryo's shim found by runc's own runtime name, for which alone nerdctl asks a checkpoint to end the container. Source: nerdctl, pkg/cmd/checkpoint, withCheckpointOpts.
func TestNerdctlExit(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(shared.lab.Tool("../containerd-shim-cryo-v1"), filepath.Join(dir, "containerd-shim-runc-v2")); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, name(t), lab.HostOptions{Path: []string{dir}})
	id := name(t)
	start(t, h, id, []string{"--runtime", runcRuntime}, "workload", "count")
	before := await(t, h, id)
	container, err := client(t, h).LoadContainer(inDefault(t), id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(inDefault(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	image, err := task.Checkpoint(inDefault(t), func(i *containerd.CheckpointTaskInfo) error {
		i.Options = &options.CheckpointOptions{Exit: true}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container ends", 30*time.Second, func() bool {
		_, status, _ := h.Task(t.Context(), id)
		return status == "STOPPED"
	})
	restoreTask(t, h, id, containerd.WithTaskCheckpoint(image))
	wentOn(t, before, await(t, h, id))
	must(t, h.Cryo(t.Context(), "checkpoint", id, "exit:1"))
}
