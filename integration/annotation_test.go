package integration

import (
	"errors"
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
	"github.com/containerd/errdefs"
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
	text := fmt.Sprintf("[restore.policy]\nrepositories = %s\nplain-http = %s\n%s", list(repositories), list(plain), more)
	if err := os.WriteFile(filepath.Join(h.Dir, "cryo.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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

// TestAnnotation restores on a host that has neither the snapshot nor what its container had changed, with mounts of other sources: by plain ctr run.
func TestAnnotation(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	from := filepath.Join(a.Dir, "volumes", id)
	settings(t, from, "here")
	mounts := func(dir string) []string {
		return []string{"--mount", "type=bind,src=" + dir + "/data,dst=/data,options=rbind:rw", "--mount", "type=bind,src=" + dir + "/settings,dst=/etc/settings,options=rbind:ro"}
	}
	path, before := pushedMarked(t, mounts(from), "volumes", "/data")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "annotation", shared.registry.Address)
	to := filepath.Join(h.Dir, "volumes", id)
	settings(t, to, "there")
	must(t, h.Run(t.Context(), "cp", "-a", from+"/data", to))
	must(t, runFrom(t, h, id, ref, mounts(to), "workload", "volumes", "/data"))
	goneOn(t, before, await(t, h, id))
	eventually(t, "the snapshot's name in containerd", 30*time.Second, func() bool {
		info, err := client(t, h).ContainerService().Get(inDefault(t), id)
		return err == nil && info.Extensions["io.cryo.snapshot"] != nil
	})
	if !marked(t, h, id) {
		t.Error("the root file system lacks what the snapshot's container had changed")
	}
	if r := must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "x", id, "cat", "/etc/settings")); r.Stdout != "there\n" {
		t.Errorf("the file mounted from the host is %q", r.Stdout)
	}
	eventually(t, "the snapshot is in the store", time.Minute, func() bool { return h.Cryo(t.Context(), "inspect", "--pull", "never", ref).Code == 0 })
	eventually(t, "the end of the restore process", time.Minute, func() bool { return len(restorers(t, h)) == 0 })
	must(t, h.Cryo(t.Context(), "rm", ref))
	await(t, h, id)
	// It is a container like others, of which a snapshot can be taken, and restored from the store.
	again := "cryo.test/again:1"
	must(t, h.Cryo(t.Context(), "checkpoint", id, again))
	forget(t, h, again)
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "restore", again, "--name", id, "--mount", "type=bind,src="+to+"/data,dst=/data", "--mount", "type=bind,src="+to+"/settings,dst=/etc/settings"))
	goneOn(t, before, await(t, h, id))
	remove(t.Context(), h, id)
	allowAnnotation(t, h, "", "cryo.test")
	must(t, runFrom(t, h, id, again, mounts(to), "workload", "volumes", "/data"))
	goneOn(t, before, await(t, h, id))
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", again))
}

// TestAnnotationArrives has the container answer while its memory is still in the registry, with no client there any more.
func TestAnnotationArrives(t *testing.T) {
	path, before := pushedMarked(t, nil, "count", "--memory", "48")
	g := newGate(t, shared.registry, path)
	ref, id := g.address+"/"+path, name(t)
	h := annotationHost(t, "arrives", g.address)
	must(t, runFrom(t, h, id, ref, nil, "workload", "count", "--memory", "48"))
	eventually(t, "an answer", time.Minute, func() bool {
		answer, err := h.Ask(t.Context(), id, "hello")
		return err == nil && answer.OK
	})
	if len(restorers(t, h)) != 1 {
		t.Error("there is no restore process")
	}
	if r := h.Cryo(t.Context(), "verify", "--pull", "never", ref); r.Code != codeNotFound {
		t.Errorf("what has not come has a name: %d", r.Code)
	}
	// A client that has not heard the answer asks again: that changes nothing.
	if err := startAgain(t, h, id); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "it has been restored already") {
		t.Errorf("started while it runs: %v", err)
	}
	g.open()
	goneOn(t, before, await(t, h, id))
	eventually(t, "the end of the restore process", time.Minute, func() bool { return len(restorers(t, h)) == 0 })
	must(t, h.Cryo(t.Context(), "verify", ref))
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", ref))
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

// TestAnnotationRestorerKilled has the restore process die while memory is missing: the container is ended, and its shim says why.
func TestAnnotationRestorerKilled(t *testing.T) {
	path, _ := pushedMarked(t, nil, "count", "--memory", "48")
	g := newGate(t, shared.registry, path)
	ref, id := g.address+"/"+path, name(t)
	h := annotationHost(t, "killed", g.address)
	must(t, runFrom(t, h, id, ref, nil, "workload", "count", "--memory", "48"))
	eventually(t, "an answer", time.Minute, func() bool {
		answer, err := h.Ask(t.Context(), id, "hello")
		return err == nil && answer.OK
	})
	pids := restorers(t, h)
	if len(pids) != 1 {
		t.Fatalf("restore processes %v", pids)
	}
	must(t, h.Run(t.Context(), "kill", "-KILL", fmt.Sprint(pids[0])))
	eventually(t, "the end of the container", time.Minute, func() bool {
		_, status, err := h.Task(t.Context(), id)
		return err == nil && status == "STOPPED"
	})
	g.open()
	remove(t.Context(), h, id)
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
		{"not configured", "restore-policy", "restore-policy", as(pushed), mount, []string{}, "", false},
		{"another repository", "restore-policy", "restore-policy", as(pushed), mount, []string{"cryo.test"}, "", false},
		{"a file", "restore-policy", "restore-policy", as("oci:/tmp"), mount, nil, "", false},
		{"the digest of another repository", "the registry has no", "not found", func(t *testing.T, h *lab.Host) string {
			ref := forged(func(*image.Config, *specs.Spec) {})(t, h)
			return shared.registry.Reference("annotation/elsewhere@" + inspect(t, h, ref).Digest.String())
		}, mount, nil, "", false},
		{"unknown", ":2", "not found", as(strings.TrimSuffix(pushed, ":1") + ":2"), mount, nil, "", false},
		{"mute registry", "is not here after 2s", "deadline exceeded", as(mute + "/a/b:1"), mount, []string{mute}, "timeout = 2", false},
		{"unsigned", "signature: ", "permission denied", as(pushed), mount, nil, "[trust]\ndefault = \"signed\"", false},
		{"no mount", "mounts: the snapshot's container had a mount at /data", "mounts", as(pushed), nil, nil, "", false},
		{"another mount", "mounts: this container has a mount at /more", "mounts", as(pushed), with("--mount", "type=bind,src="+data+",dst=/more,options=rbind:ro"), nil, "", false},
		{"read-only mount", "mounts: the snapshot's container had", "mounts", as(pushed), []string{"--mount", "type=bind,src=" + data + ",dst=/data,options=rbind:ro"}, nil, "", false},
		{"the host's network", "namespaces: ", "mounts", as(pushed), with("--net-host"), nil, "", false},
		{"another user", "user: ", "user", as(pushed), with("--user", "1000:1000"), nil, "", false},
		{"read-only root", "root-readonly: ", "root-readonly", as(pushed), with("--read-only"), nil, "", false},
		{"another architecture", "architecture: ", "architecture", forged(func(c *image.Config, _ *specs.Spec) { c.Host.Architecture = "s390x" }), mount, nil, "", false},
		{"another image", "base-image: ", "base-image", forged(func(c *image.Config, _ *specs.Spec) { c.Container.ChainID = digest.FromString("another") }), mount, nil, "", false},
		{"missing source", "bind-mounts: ", "", as(pushed), []string{"--mount", "type=bind,src=/nowhere,dst=/data,options=rbind:rw"}, nil, "", true},
		{"CRIU's failure", "CRIU: ", "aborted", as(pushed), []string{"--mount", "type=bind,src=" + empty + ",dst=/data,options=rbind:rw"}, nil, "", false},
	}
}

// TestAnnotationRefused has containers that cannot be restored, for each reason: ctr hears it, and nothing is left; where they ask for that, they are
// started afresh instead.
func TestAnnotationRefused(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	from := filepath.Join(a.Dir, "volumes", id)
	settings(t, from, "here")
	run := []string{"--mount", "type=bind,src=" + from + "/data,dst=/data,options=rbind:rw"}
	f := frozen{id: id, ref: "cryo.test/" + id + ":1"}
	start(t, a, id, run, "workload", "volumes", "/data")
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "mark", id, "touch", marker))
	away(t, f.ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, f.ref))
	remove(t.Context(), a, id)
	f.digest = inspect(t, a, f.ref).Digest
	forger := newForger(t, f)
	pushed := shared.registry.Reference("annotation/" + f.id + ":1")
	must(t, a.Cryo(t.Context(), "push", f.ref, pushed, "--plain-http"))
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0")) // it takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := annotationHost(t, "refused")
	data := filepath.Join(h.Dir, "volumes", "data")
	if err := os.MkdirAll(filepath.Dir(data), 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, h.Run(t.Context(), "cp", "-a", from+"/data", data))
	heard := eventsOf(t, h)
	for _, c := range causes(t, forger, pushed, data, l.Addr().String()) {
		t.Run(c.name, func(t *testing.T) {
			allow := c.allow
			if allow == nil {
				allow = []string{shared.registry.Address, "cryo.test"}
			}
			allowAnnotation(t, h, c.more, allow...)
			ref, id := c.ref(t, h), name(t)
			forget(t, h, ref)
			r := runFrom(t, h, id, ref, c.flags, "workload", "volumes", "/data")
			if r.Code == 0 || !strings.Contains(r.Stderr, c.says) {
				t.Fatalf("exit status %d: %s", r.Code, r.Stderr)
			}
			if c.allow != nil && len(c.allow) == 0 && !strings.Contains(r.Stderr, "repositories under [restore.policy]") {
				t.Errorf("it does not say what to configure: %s", r.Stderr)
			}
			if left := restorers(t, h); len(left) > 0 {
				t.Errorf("restore processes %v", left)
			}
			h.Ctr(t.Context(), "tasks", "delete", "--force", id) // there is none, unless CRIU has failed
			changed(t, h, id)
			remove(t.Context(), h, id)

			id = name(t)
			r = runFrom(t, h, id, ref, append(slices.Clone(c.flags), "--annotation", fallbackAnnotation+"=start"), "sleep", "1000")
			if c.never {
				if r.Code == 0 || !strings.Contains(r.Stderr, "/nowhere") {
					t.Errorf("a container that cannot be started: exit status %d: %s", r.Code, r.Stderr)
				}
				return
			}
			must(t, r)
			if _, status, err := h.Task(t.Context(), id); status != "RUNNING" {
				t.Errorf("it is %q, %v", status, err)
			}
			if marked(t, h, id) {
				t.Error("the failed restore has left its changes in the root file system")
			}
			if left := restorers(t, h); len(left) > 0 {
				t.Errorf("restore processes %v", left)
			}
			remove(t.Context(), h, id)
			heard.fallback(t, id, c.says, c.class)
			id = name(t)
			cleanup(t, h, id)
			r = h.Ctr(t.Context(), slices.Concat([]string{"run", "--rm", "--runtime", cryoRuntime, "--annotation", restoreAnnotation + "=" + ref, "--annotation", fallbackAnnotation + "=start"}, c.flags,
				[]string{lab.ImageName, id, "sh", "-c", "echo afresh; sleep 0.3; exit 7"})...)
			if r.Code != 7 || r.Stdout != "afresh\n" {
				t.Errorf("a client that waits and reads hears %q, and exit status %d: %s", r.Stdout, r.Code, r.Stderr)
			}
			if text := read(t, h.Log()); !strings.Contains(text, "a container is started afresh") || !strings.Contains(text, id) {
				t.Error("containerd's log does not say why it was started")
			}
		})
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

// TestAnnotationAgain starts a container a second time: its root file system has changes by then, with which the snapshot's processes cannot go on.
func TestAnnotationAgain(t *testing.T) {
	path, before := pushedMarked(t, nil, "count")
	ref, id := shared.registry.Reference(path), name(t)
	h := annotationHost(t, "again", shared.registry.Address)
	must(t, runFrom(t, h, id, ref, nil, "workload", "count"))
	goneOn(t, before, await(t, h, id))
	eventually(t, "the end of the restore process", time.Minute, func() bool { return len(restorers(t, h)) == 0 }) // else the snapshot is not pulled to its end
	must(t, h.Ctr(t.Context(), "tasks", "delete", "--force", id))
	if r := h.Ctr(t.Context(), "tasks", "start", "--detach", id); r.Code == 0 || !strings.Contains(r.Stderr, "rootfs-fresh: ") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", ref))
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

// slowRunc gives flags of ctr run by which runc waits before it creates a container, until goOn is called. It tells whether one waits.
func slowRunc(t *testing.T, h *lab.Host) (flags []string, waits func() bool, goOn func()) {
	t.Helper()
	dir := filepath.Join(h.Dir, "slow-"+name(t))
	hold, waiting, options := filepath.Join(dir, "hold"), filepath.Join(dir, "waiting"), filepath.Join(dir, "options.toml")
	program := filepath.Join(dir, "runc")
	script := fmt.Sprintf("#!/bin/sh\nfor word; do\n\tif [ \"$word\" = create ]; then\n\t\ttouch %s\n\t\twhile [ -e %s ]; do sleep 0.02; done\n\tfi\ndone\nexec runc \"$@\"\n", waiting, hold)
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(program, []byte(script), 0o755), os.WriteFile(hold, nil, 0o600),
		os.WriteFile(options, fmt.Appendf(nil, "BinaryName = %q\n", program), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	waits = func() bool {
		_, err := os.Stat(waiting)
		return err == nil
	}
	return []string{"--runtime-config-path", options}, waits, func() { _ = os.Remove(hold) }
}

// TestAnnotationAfreshEnded: CRIU has failed and a container is being started afresh. Meanwhile its task is deleted or killed, or its shim dies. Nothing is left.
func TestAnnotationAfreshEnded(t *testing.T) {
	a, _ := pair(t)
	from := filepath.Join(a.Dir, "volumes", name(t))
	settings(t, from, "here")
	mount := func(source string) []string {
		return []string{"--mount", "type=bind,src=" + source + ",dst=/data,options=rbind:rw"}
	}
	path, _ := pushedMarked(t, mount(from+"/data"), "volumes", "/data")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "afresh", shared.registry.Address)
	must(t, h.Cryo(t.Context(), "pull", ref, "--plain-http"))
	empty := filepath.Join(h.Dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	for what, end := range map[string]func(id string){
		"deleted":         func(id string) { h.Ctr(t.Context(), "tasks", "delete", id) },
		"deleted by kill": func(id string) { h.Ctr(t.Context(), "tasks", "delete", "--force", id) },
		"killed":          func(id string) { h.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id) },
		"shim killed": func(string) {
			kill(t, find(t, h, func(p process) bool { return strings.HasPrefix(p.command, "containerd-shim") }))
		},
		"ctr killed": nil,
	} {
		t.Run(what, func(t *testing.T) {
			flags, waits, goOn := slowRunc(t, h)
			unchanged(t, h, func() {
				id := name(t)
				cleanup(t, h, id)
				c := inBackground(t, h, slices.Concat([]string{"ctr", "run", "--detach", "--runtime", cryoRuntime, "--log-uri", "file://" + logFile(h, id), "--annotation", restoreAnnotation + "=" + ref,
					"--annotation", fallbackAnnotation + "=start"}, flags, mount(empty), []string{lab.ImageName, id, "sleep", "1000"})...)
				eventually(t, "the start afresh", 2*time.Minute, waits)
				if end == nil {
					c.kill()
					goOn()
					eventually(t, "its start", 30*time.Second, func() bool {
						_, status, err := h.Task(t.Context(), id)
						return err == nil && status == "RUNNING"
					})
					remove(t.Context(), h, id)
					return
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					end(id)
				}()
				time.Sleep(300 * time.Millisecond) // it has been asked for
				goOn()
				<-ended
				if r := c.wait(t); r.Code == 0 {
					t.Errorf("the client hears that it runs: %s", r.Stdout)
				}
				remove(t.Context(), h, id)
			})
			if left := restorers(t, h); len(left) > 0 {
				t.Errorf("restore processes %v", left)
			}
		})
	}
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
