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
	"github.com/containerd/errdefs"
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

// TestCheckpointTo sends two snapshots of a container, and restores the first by what the client got: the host itself has kept nothing.
func TestCheckpointTo(t *testing.T) {
	h := newHost(t, "checkpointto", lab.HostOptions{})
	allowSending(t, h, "", shared.registry.Address)
	id := name(t)
	repository := shared.registry.Reference("send/" + id)
	start(t, h, id, []string{"--annotation", sendAnnotation + "=" + repository}, "workload", "count", "--memory", "16")
	before := await(t, h, id)
	first := sentBy(t, h, id)
	second := sentBy(t, h, id)
	if first.Reference == second.Reference || !strings.HasPrefix(first.Reference, repository+":"+id) {
		t.Errorf("the snapshots are called %s and %s", first.Reference, second.Reference)
	}
	if _, status, err := h.Task(t.Context(), id); status != "RUNNING" {
		t.Errorf("after the checkpoint the container is %q (%v)", status, err)
	}
	counts(t, h, id)
	keptNothing(t, h)
	remove(t.Context(), h, id)
	ref := repository + "@" + first.Digest
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http"))
	goneOn(t, before, await(t, h, id))
	forget(t, h, second.Reference)
	must(t, h.Cryo(t.Context(), "pull", second.Reference, "--plain-http"))
	if got := inspect(t, h, second.Reference).Digest; got.String() != second.Digest {
		t.Errorf("the client got %s, the registry has %s", second.Digest, got)
	}
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

// TestCheckpointToRefused has snapshots go nowhere: the client hears why, finds the container as it left it, and nothing is kept.
func TestCheckpointToRefused(t *testing.T) {
	h := newHost(t, "checkpointtorefused", lab.HostOptions{})
	closed, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	away := closed.Addr().String()
	closed.Close()
	refuses := registryOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	for _, test := range []struct {
		name, to string
		allow    []string
		says     string
	}{
		{"not configured", shared.registry.Reference("send/x"), nil, "repositories under [checkpoint]"},
		{"another repository", shared.registry.Reference("send/x:1"), []string{away}, "the configuration does not allow"},
		{"digest", shared.registry.Reference("send/x@sha256:" + strings.Repeat("0", 64)), []string{shared.registry.Address}, "names a digest"},
		{"no reference", shared.registry.Reference("send/X Y"), []string{shared.registry.Address}, sendAnnotation},
		{"away", away + "/send/x", []string{away}, away},
		{"refuses", refuses + "/send/x", []string{refuses}, "push"},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := name(t)
			allowSending(t, h, "", test.allow...)
			start(t, h, id, []string{"--annotation", sendAnnotation + "=" + test.to}, "workload", "count", "--memory", "8")
			must(t, h.Ctr(t.Context(), "tasks", "pause", id))
			err := checkpointPaused(t, h, id)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
			if _, status, err := h.Task(t.Context(), id); status != "PAUSED" {
				t.Errorf("it is %q (%v)", status, err)
			}
			must(t, h.Ctr(t.Context(), "tasks", "resume", id))
			counts(t, h, id)
			keptNothing(t, h)
			remove(t.Context(), h, id)
		})
	}
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

// TestCheckpointToCancelled has the client's patience end while the snapshot is on its way to the registry: nothing is named, and the container runs on, as there is
// nobody who would resume it.
func TestCheckpointToCancelled(t *testing.T) {
	path := "send/" + name(t)
	stuck := make(chan struct{}, 1)
	at := registryOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"+path) && r.Method != http.MethodPost:
			select {
			case stuck <- struct{}{}:
			default:
			}
			<-r.Context().Done()
		case r.Method == http.MethodPost: // the beginning of a blob, by which it is found out whether we may push
			w.Header().Set("Location", r.URL.Path+"upload")
			w.WriteHeader(http.StatusAccepted)
		}
	})
	h := newHost(t, "checkpointtocancelled", lab.HostOptions{})
	allowSending(t, h, "", at)
	id := name(t)
	start(t, h, id, []string{"--annotation", sendAnnotation + "=" + at + "/" + path}, "workload", "count", "--memory", "8")
	ctx, cancel := context.WithTimeout(inDefault(t), 10*time.Second)
	defer cancel()
	if _, _, err := criCheckpoint(ctx, t, h, id); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("got %v", err)
	}
	select {
	case <-stuck:
	default:
		t.Error("nothing was sent")
	}
	eventually(t, "the container runs", time.Minute, func() bool {
		_, status, _ := h.Task(t.Context(), id)
		return status == "RUNNING"
	})
	keptNothing(t, h)
	counts(t, h, id)
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

// TestCheckpointToGPU has the engine keeper save device memory, which it cannot of a paused container, and which no stock client takes.
func TestCheckpointToGPU(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	allowSending(t, a, "", shared.registry.Address)
	t.Cleanup(func() {
		if err := a.Configure(""); err != nil {
			t.Error(err)
		}
	})
	before := startGPU(t, a, id, append(slices.Clone(handing), "--annotation", sendAnnotation+"="+shared.registry.Reference("send/"+id)), "--blocks", "32,32")
	s := sentBy(t, a, id)
	unharmed(t, a, id, before)
	keptNothing(t, a)
	alone(t, a)
	remove(t.Context(), a, id)
	forget(t, b, s.Reference)
	must(t, b.Cryo(t.Context(), "pull", s.Reference, "--plain-http"))
	handedOver(t, b, s.Reference, 64<<20)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", s.Reference, "--name", id, "--allow", "devices", "--device", "nvidia.com/gpu=1"))
	goneOn(t, before, unharmed(t, b, id, before))
}
