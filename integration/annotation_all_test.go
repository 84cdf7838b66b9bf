package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/integration/lab"
)

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

// TestAnnotationLinkedMount restores a container with a read-only mount at a path that leads through a symbolic link of its image, as the service account of a pod is at /var/run/secrets, and Debian has /run for /var/run.
// Its snapshot is restored again on another host.
func TestAnnotationLinkedMount(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	data := filepath.Join(a.Dir, "linked")
	if err := errors.Join(os.MkdirAll(data, 0o755), os.WriteFile(filepath.Join(data, "token"), []byte("a token"), 0o644)); err != nil {
		t.Fatal(err)
	}
	mounts := []string{"--mount", "type=bind,src=" + data + ",dst=/varrun/secrets/token,options=rbind:ro"}
	path, before := pushedMarked(t, mounts, "count")
	ref := shared.registry.Reference(path)
	b := annotationHost(t, "linked", shared.registry.Address)
	for range 2 {
		must(t, runFrom(t, b, id, ref, mounts, "workload", "count"))
		goneOn(t, before, await(t, b, id))
		if token := must(t, b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "read", id, "cat", "/run/secrets/token/token")).Stdout; token != "a token" {
			t.Errorf("it reads %q", token)
		}
		if r := b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "write", id, "touch", "/varrun/secrets/token/new"); r.Code == 0 || !strings.Contains(r.Stderr+r.Stdout, "Read-only file system") {
			t.Errorf("it can write where it may not: %+v", r)
		}
		must(t, b.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
		remove(t.Context(), b, id)
		must(t, b.Cryo(t.Context(), "rm", ref))
	}
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

// TestAnnotationRefused has containers that cannot be restored, for each reason: ctr hears it, and nothing is left; where they ask for that, they are
// started afresh instead, unless the reason is found when they have a task.
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
			if c.late {
				if r.Code == 0 || !strings.Contains(r.Stderr, c.says) {
					t.Errorf("exit status %d: %s", r.Code, r.Stderr)
				}
				h.Ctr(t.Context(), "tasks", "delete", "--force", id)
				changed(t, h, id)
				heard.nothing(t, id)
				remove(t.Context(), h, id)
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
