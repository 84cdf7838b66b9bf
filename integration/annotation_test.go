package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestAnnotation have containers restored by stock ctr, which says by an annotation from what.

const (
	restoreAnnotation  = "io.cryo.restore"
	fallbackAnnotation = "io.cryo.restore.fallback"
)

// annotationHost is a host that has the base image and no snapshot, and allows these repositories for the annotation.
func annotationHost(t *testing.T, name string, repositories ...string) *lab.Host {
	t.Helper()
	h := newHost(t, name, lab.HostOptions{})
	allowAnnotation(t, h, "", repositories...)
	return h
}

// allowAnnotation writes the host's configuration, to which more is added.
func allowAnnotation(t *testing.T, h *lab.Host, more string, repositories ...string) {
	t.Helper()
	var plain []string
	for _, r := range repositories {
		if strings.Contains(r, ":") {
			plain = append(plain, r)
		}
	}
	text := fmt.Sprintf("[restore.policy]\nrepositories = %s\nplain-http = %s\n%s\n", list(repositories), list(plain), more)
	if !strings.Contains(more, "[trust") {
		text += unsigned(repositories...)
	}
	if err := os.WriteFile(filepath.Join(h.Dir, "cryo.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// unsigned are the lines of a configuration by which snapshots of these repositories need no signature.
func unsigned(repositories ...string) string {
	text := "[trust.repositories]\n"
	for _, r := range repositories {
		text += fmt.Sprintf("%q = 'unsigned'\n", r)
	}
	return text
}

// list is an array of TOML.
func list(all []string) string {
	var quoted []string
	for _, s := range all {
		quoted = append(quoted, fmt.Sprintf("%q", s))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// runFrom has ctr run a container that is restored from ref.
func runFrom(t *testing.T, h *lab.Host, id, ref string, flags []string, args ...string) lab.Result {
	t.Helper()
	cleanup(t, h, id)
	all := slices.Concat([]string{"run", "--detach", "--runtime", cryoRuntime, "--log-uri", "file://" + logFile(h, id), "--annotation", restoreAnnotation + "=" + ref}, flags, []string{lab.ImageName, id}, args)
	return h.Ctr(t.Context(), all...)
}

// restorers are the restore processes on a host.
func restorers(t *testing.T, h *lab.Host) (pids []int) {
	t.Helper()
	for _, p := range processes(t, h) {
		if p.command == "cryo-restore" && !slices.Contains(pids, p.pid) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// marker is a file that the container of [pushedMarked] has made in its root file system.
const marker = "/from-the-snapshot"

// pushedMarked pushes a snapshot of a container that has made the marker, and removes it from host a. It gives the path in the registry.
func pushedMarked(t *testing.T, flags []string, workload ...string) (path string, before lab.Answer) {
	t.Helper()
	a, _ := pair(t)
	id := name(t)
	path = "annotation/" + id + ":1"
	ref := shared.registry.Reference(path)
	start(t, a, id, flags, append([]string{"workload"}, workload...)...)
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "mark", id, "touch", marker))
	before = await(t, a, id)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http", "--segment-size", "4MiB"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))
	return path, before
}

// marked tells whether a container has the marker.
func marked(t *testing.T, h *lab.Host, id string) bool {
	t.Helper()
	return strings.Contains(must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "look-"+strings.ToLower(id[len(id)-4:]), id, "ls", "/")).Stdout, marker[1:])
}

// startAgain asks for the start of a task that runs.
func startAgain(t *testing.T, h *lab.Host, id string) error {
	t.Helper()
	client, err := h.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.TaskService().Start(t.Context(), &tasks.StartRequest{ContainerID: id})
	return errgrpc.ToNative(err)
}

// cause is why a container cannot be restored.
type cause struct {
	name  string
	says  string // part of the message, which has the rule's name
	class string // of the event: the rule, or the kind of the error
	ref   func(t *testing.T, h *lab.Host) string
	flags []string // of ctr run
	allow []string // repositories; nil: those that all others need
	more  string   // configuration
	never bool     // it cannot be started either
	late  bool     // it is found when the container has a task, which is not started then
}

// causes are those of a snapshot with a mount at /data. other is a registry that never answers.
func causes(t *testing.T, forger *forger, pushed, data, mute string) []cause {
	as := func(ref string) func(*testing.T, *lab.Host) string {
		return func(*testing.T, *lab.Host) string { return ref }
	}
	forged := func(change func(*image.Config, *specs.Spec)) func(*testing.T, *lab.Host) string {
		return func(t *testing.T, h *lab.Host) string {
			ref := "cryo.test/forged:1"
			forger.forge(t, h, ref, change)
			return ref
		}
	}
	mount := []string{"--mount", "type=bind,src=" + data + ",dst=/data,options=rbind:rw"}
	with := func(more ...string) []string { return append(slices.Clone(mount), more...) }
	empty := filepath.Join(filepath.Dir(data), "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	return []cause{
		{"not configured", "restore-policy", "restore-policy", as(pushed), mount, []string{}, "", false, false},
		{"another repository", "restore-policy", "restore-policy", as(pushed), mount, []string{"cryo.test"}, "", false, false},
		{"a file", "restore-policy", "restore-policy", as("oci:/tmp"), mount, nil, "", false, false},
		{"the digest of another repository", "the registry has no", "not found", func(t *testing.T, h *lab.Host) string {
			ref := forged(func(*image.Config, *specs.Spec) {})(t, h)
			return shared.registry.Reference("annotation/elsewhere@" + inspect(t, h, ref).Digest.String())
		}, mount, nil, "", false, false},
		{"unknown", ":2", "not found", as(strings.TrimSuffix(pushed, ":1") + ":2"), mount, nil, "", false, false},
		{"mute registry", "is not here after 2s", "deadline exceeded", as(mute + "/a/b:1"), mount, []string{mute}, "timeout = 2", false, false},
		{"unsigned, by default", "signature: ", "signature", as(pushed), mount, nil, "[trust]", false, false},
		{"unsigned, allowed for commands", "signature: ", "signature", as(pushed), mount, nil, "[trust]\ndefault = \"unsigned\"", false, false},
		{"unsigned", "signature: ", "signature", as(pushed), mount, nil, "[trust]\ndefault = \"signed\"", false, false},
		{"no mount", "mounts: the snapshot's container had a mount at /data", "mounts", as(pushed), nil, nil, "", false, false},
		{"another mount", "mounts: this container has a mount at /more", "mounts", as(pushed), with("--mount", "type=bind,src="+data+",dst=/more,options=rbind:ro"), nil, "", false, false},
		{"read-only mount", "mounts: the snapshot's container had", "mounts", as(pushed), []string{"--mount", "type=bind,src=" + data + ",dst=/data,options=rbind:ro"}, nil, "", false, false},
		{"the host's network", "namespaces: ", "mounts", as(pushed), with("--net-host"), nil, "", false, false},
		{"another user", "user: ", "user", as(pushed), with("--user", "1000:1000"), nil, "", false, false},
		{"read-only root", "root-readonly: ", "root-readonly", as(pushed), with("--read-only"), nil, "", false, false},
		{"another architecture", "architecture: ", "architecture", forged(func(c *image.Config, _ *specs.Spec) { c.Host.Architecture = "s390x" }), mount, nil, "", false, false},
		{"another image", "base-image: ", "base-image", forged(func(c *image.Config, _ *specs.Spec) { c.Container.ChainID = digest.FromString("another") }), mount, nil, "", false, false},
		{"missing source", "bind-mounts: ", "", as(pushed), []string{"--mount", "type=bind,src=/nowhere,dst=/data,options=rbind:rw"}, nil, "", true, false},
		{"CRIU's failure", "CRIU: ", "aborted", as(pushed), []string{"--mount", "type=bind,src=" + empty + ",dst=/data,options=rbind:rw"}, nil, "", false, true},
	}
}

// heard are the events of a host.
type heard struct {
	mu      sync.Mutex
	topics  map[string][]string // by container; guarded by mu
	reasons map[string]string   // by container; guarded by mu
	classes map[string]string   // of the reasons, by container; guarded by mu
	// restored are the events about containers that were restored, by container; guarded by mu.
	restored map[string]map[string]any
}

// eventsOf listens until the test ends.
func eventsOf(t *testing.T, h *lab.Host) *heard {
	t.Helper()
	e := &heard{topics: map[string][]string{}, reasons: map[string]string{}, classes: map[string]string{}, restored: map[string]map[string]any{}}
	messages, _ := client(t, h).EventService().Subscribe(inDefault(t), `topic~="^/tasks/(create|start|exit|delete)"`, `topic~="^/cryo/restore/"`)
	go func() {
		for m := range messages {
			v, err := typeurl.UnmarshalAny(m.Event)
			if err != nil {
				continue
			}
			e.mu.Lock()
			switch v := v.(type) {
			case *eventtypes.TaskCreate:
				e.topics[v.ContainerID] = append(e.topics[v.ContainerID], m.Topic)
			case *eventtypes.TaskStart:
				e.topics[v.ContainerID] = append(e.topics[v.ContainerID], m.Topic)
			case *eventtypes.TaskExit:
				if v.ID == v.ContainerID { // else it is an exec's
					e.topics[v.ContainerID] = append(e.topics[v.ContainerID], m.Topic)
				}
			case *eventtypes.TaskDelete:
				e.topics[v.ContainerID] = append(e.topics[v.ContainerID], m.Topic)
			case *structpb.Struct:
				id := v.Fields["container_id"].GetStringValue()
				if m.Topic == "/cryo/restore/restored" {
					e.restored[id] = v.AsMap()
				} else {
					e.reasons[id], e.classes[id] = v.Fields["reason"].GetStringValue(), v.Fields["class"].GetStringValue()
				}
			}
			e.mu.Unlock()
		}
	}()
	return e
}

// fallback checks the events of a container that was started instead of restored and has been removed: they give the reason and its class, and are those of one task.
func (e *heard) fallback(t *testing.T, id, says, class string) {
	t.Helper()
	want := []string{"/tasks/create", "/tasks/start", "/tasks/delete"}
	var topics []string
	var reason, classed string
	eventually(t, "the events", 30*time.Second, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		topics, reason, classed = slices.Clone(e.topics[id]), e.reasons[id], e.classes[id]
		return slices.Contains(topics, "/tasks/delete") && reason != ""
	})
	told := slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return topic == "/tasks/exit" })
	if !slices.Equal(told, want) || len(topics) > len(want)+1 || !strings.Contains(reason, says) || classed != class { // the shim may end before it has told the end of a task that was deleted
		t.Errorf("events %v, and the reason %q of class %q, want %q", topics, reason, classed, class)
	}
}

// warm sees that clients have heard of a restore from a snapshot with this name and digest.
func (e *heard) warm(t *testing.T, id, name, digest string) {
	t.Helper()
	var got map[string]any
	eventually(t, "the event", 30*time.Second, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		got = e.restored[id]
		return got != nil
	})
	if seconds, _ := got["seconds"].(float64); got["snapshot"] != name || got["digest"] != digest || seconds <= 0 || seconds > 600 {
		t.Errorf("the event of a restore from %s (%s) is %v", name, digest, got)
	}
}

// nothing sees that clients have heard of neither a restore nor a start instead of one.
func (e *heard) nothing(t *testing.T, id string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if reason, restored := e.reasons[id], e.restored[id]; reason != "" || restored != nil {
		t.Errorf("there are events of %s: %q, %v", id, reason, restored)
	}
}

// TestAnnotationShimKilled has the shim die while the snapshot is being prepared: nothing is left.
func TestAnnotationShimKilled(t *testing.T) {
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0")) // it takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := annotationHost(t, "shimkilled", l.Addr().String())
	id := name(t)
	cleanup(t, h, id)
	c := under(t, h.Command(t.Context(), "ctr", "run", "--detach", "--runtime", cryoRuntime, "--annotation", restoreAnnotation+"="+l.Addr().String()+"/a/b:1", lab.ImageName, id, "workload", "count"))
	eventually(t, "a restore process", time.Minute, func() bool { return len(restorers(t, h)) == 1 })
	parent := 0
	for _, p := range processes(t, h) {
		if strings.HasPrefix(p.command, "containerd-shim") {
			parent = p.pid
		}
	}
	if parent == 0 {
		t.Fatal("there is no shim")
	}
	must(t, h.Run(t.Context(), "kill", "-KILL", fmt.Sprint(parent)))
	if r := <-c.ended; r.Code == 0 {
		t.Errorf("ctr says that all is well: %s", r.Stdout)
	}
	eventually(t, "the end of the restore process", time.Minute, func() bool { return len(restorers(t, h)) == 0 })
	changed(t, h, id)
}

// changed fails the test if the root file system of a container that is not running has changes.
func changed(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	mounts, err := client(t, h).SnapshotService("overlayfs").Mounts(inDefault(t), id)
	if err != nil {
		return // it has gone with its container
	}
	for _, o := range mounts[0].Options {
		if upper, ok := strings.CutPrefix(o, "upperdir="); ok {
			entries, err := os.ReadDir(upper)
			if err != nil || len(entries) > 0 {
				t.Errorf("its root file system has changes: %v, %v", entries, err)
			}
		}
	}
}
