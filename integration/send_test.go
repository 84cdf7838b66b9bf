package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestCheckpointTo have a stock client, which asks as CRI does for the kubelet, take checkpoints of containers whose annotation
// says where the snapshot goes.

const sendAnnotation = "io.cryo.checkpoint-to"

// sent is what the client gets.
type sent struct{ Reference, Digest string }

// allowSending writes the host's configuration, to which more is added.
func allowSending(t *testing.T, h *lab.Host, more string, repositories ...string) {
	t.Helper()
	if err := h.Configure(fmt.Sprintf("[checkpoint]\nrepositories = %s\nplain-http = %s\n%s", list(repositories), list(repositories), more)); err != nil {
		t.Fatal(err)
	}
}

// criCheckpoint does what containerd's CRI plugin does with a container of which the kubelet wants a checkpoint. It gives the directories that become
// the archive's checkpoint/ and its root. Source: containerd 2.4.2, internal/cri/server/container_checkpoint_linux.go.
func criCheckpoint(ctx context.Context, t *testing.T, h *lab.Host, id string) (checkpoint, root string, _ error) {
	t.Helper()
	checkpoint, root = t.TempDir(), t.TempDir()
	c := client(t, h)
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	image, err := task.Checkpoint(ctx, func(i *containerd.CheckpointTaskInfo) error {
		i.Options = &options.CheckpointOptions{WorkPath: root}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	unpackCheckpoint(t, c, image, checkpoint)
	if err := c.ImageService().Delete(ctx, image.Name(), images.SynchronousDelete()); err != nil {
		t.Error(err)
	}
	return checkpoint, root, nil
}

// sentBy takes a checkpoint, and reads where the snapshot is: that is all that there is in place of CRIU's images.
func sentBy(t *testing.T, h *lab.Host, id string) (s sent) {
	t.Helper()
	checkpoint, root, err := criCheckpoint(inDefault(t), t, h, id)
	if err != nil {
		t.Fatal(err)
	}
	const file = "cryo-snapshot.json"
	if names := names(t, checkpoint); !slices.Equal(names, []string{file}) {
		t.Errorf("in place of CRIU's images there are %v", names)
	}
	if names := names(t, root); !slices.Contains(names, "dump.log") || !slices.Contains(names, "stats-dump") {
		t.Errorf("of CRIU's log and statistics there are %v", names)
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(checkpoint, file))), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// names are those of the files in a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// keptNothing fails the test if a host's store has a snapshot, or if a checkpoint process is there.
func keptNothing(t *testing.T, h *lab.Host) {
	t.Helper()
	if all := must(t, h.Cryo(t.Context(), "ls", "-q")).Stdout; all != "" {
		t.Errorf("the local store has %s", all)
	}
	eventually(t, "no checkpoint process", time.Minute, func() bool { return len(senders(t, h)) == 0 })
}

// senders are the checkpoint processes on a host.
func senders(t *testing.T, h *lab.Host) (pids []int) {
	t.Helper()
	for _, p := range processes(t, h) {
		if p.command == "cryo-checkpoint" && !slices.Contains(pids, p.pid) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// TestCheckpointToTag names the tag, and asks for the end of the container, which has no use for a registry: its images come as without the annotation.
func TestCheckpointToTag(t *testing.T) {
	h := newHost(t, "checkpointtotag", lab.HostOptions{})
	allowSending(t, h, "", shared.registry.Address)
	id := name(t)
	ref := shared.registry.Reference("send/" + id + ":kept")
	start(t, h, id, []string{"--annotation", sendAnnotation + "=" + ref}, "workload", "count", "--memory", "8")
	before := await(t, h, id)
	if s := sentBy(t, h, id); s.Reference != ref {
		t.Errorf("the snapshot is called %s", s.Reference)
	}
	dir := filepath.Join(t.TempDir(), "images")
	must(t, h.Ctr(t.Context(), "tasks", "checkpoint", "--exit", "--image-path", dir, id))
	eventually(t, "the container ends", 30*time.Second, func() bool {
		_, status, _ := h.Task(t.Context(), id)
		return status == "STOPPED"
	})
	restoreTask(t, h, id, containerd.WithRestoreImagePath(dir))
	wentOn(t, before, await(t, h, id))
	keptNothing(t, h)
}

// registryOf is the address of a server that ends with the test.
func registryOf(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	go func() { _ = s.Serve(l) }() // it ends with the test
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// checkpointPaused asks for a checkpoint of a container that its client has paused.
func checkpointPaused(t *testing.T, h *lab.Host, id string) error {
	t.Helper()
	asked, err := typeurl.MarshalAnyToProto(&options.CheckpointOptions{WorkPath: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client(t, h).TaskService().Checkpoint(inDefault(t), &tasks.CheckpointTaskRequest{ContainerID: id, Options: asked})
	return errgrpc.ToNative(err)
}

// TestCheckpointToKilled has the checkpoint process die: the client hears of it, and the container runs on.
func TestCheckpointToKilled(t *testing.T) {
	at := registryOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	h := newHost(t, "checkpointtokilled", lab.HostOptions{})
	allowSending(t, h, "", at)
	id := name(t)
	start(t, h, id, []string{"--annotation", sendAnnotation + "=" + at + "/a"}, "workload", "count", "--memory", "8")
	ended := make(chan error, 1)
	go func() {
		_, _, err := criCheckpoint(inDefault(t), t, h, id)
		ended <- err
	}()
	eventually(t, "a checkpoint process", time.Minute, func() bool { return len(senders(t, h)) == 1 })
	counts(t, h, id) // nobody stands still for a registry
	if _, _, err := criCheckpoint(inDefault(t), t, h, id); err == nil || !strings.Contains(err.Error(), "another checkpoint") {
		t.Errorf("a second one: %v", err)
	}
	must(t, h.Run(t.Context(), "kill", "-KILL", fmt.Sprint(senders(t, h)[0])))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the checkpoint process has died") {
		t.Errorf("got %v", err)
	}
	if _, status, err := h.Task(t.Context(), id); status != "RUNNING" {
		t.Errorf("it is %q (%v)", status, err)
	}
	counts(t, h, id)
	keptNothing(t, h)
}

// TestCheckpointKilledLate has the checkpoint process die while it sends the snapshot of a container that it has ended: the command says that there is a snapshot, and not that
// the container is lost.
func TestCheckpointKilledLate(t *testing.T) {
	at := registryOf(t, func(w http.ResponseWriter, r *http.Request) { // it lets us push, and takes no blob
		switch r.Method {
		case http.MethodGet, http.MethodDelete:
			w.WriteHeader(http.StatusOK)
		case http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case http.MethodPost:
			w.Header().Set("Location", r.URL.Path+"1")
			w.WriteHeader(http.StatusAccepted)
		default:
			<-r.Context().Done()
		}
	})
	h := newHost(t, "checkpointkilledlate", lab.HostOptions{})
	id := name(t)
	ref := at + "/" + id + ":1"
	start(t, h, id, nil, "workload", "count", "--memory", "8")
	ended := make(chan lab.Result, 1)
	go func() { ended <- h.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http") }()
	eventually(t, "the end of the container", time.Minute, func() bool {
		_, status, _ := h.Task(t.Context(), id)
		return status == "STOPPED"
	})
	must(t, h.Run(t.Context(), "kill", "-KILL", fmt.Sprint(senders(t, h)[0])))
	r := <-ended
	if r.Code != codeAborted || !strings.Contains(r.Stderr, "of which it has kept a snapshot") || !strings.Contains(r.Stderr, "hint: find it with cryo ls") || strings.Contains(r.Stderr, "lost") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	must(t, h.Cryo(t.Context(), "verify", "--pull", "never", ref))
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "restore", "--pull", "never", ref, "--name", id))
	await(t, h, id)
}
