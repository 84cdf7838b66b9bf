package integration

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/integration/lab"
)

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

// TestCheckpointToGPU has the engine keeper save device memory, which it cannot of a paused container, and which no stock client takes.
func TestCheckpointToGPU(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	allowSending(t, a, "", shared.registry.Address)
	t.Cleanup(func() {
		if err := a.Configure(byDriver); err != nil {
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
