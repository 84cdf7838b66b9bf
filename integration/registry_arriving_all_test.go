package integration

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestArriving restore containers whose memory is still being pulled.

// arrivingRestored is what "cryo restore --json" says, as far as these tests look at it.
type arrivingRestored struct {
	Lazy bool `json:"lazy"`

	Running   float64 `json:"running"`
	PullFirst string  `json:"pullFirst"`
	Pull      struct {
		transferred
		Seconds float64 `json:"seconds"`
	} `json:"pull"`
}

// pushed gives the path in the registry of a snapshot that has several segments and is in no store.
func pushed(t *testing.T, h *lab.Host) (path string) {
	t.Helper()
	id := name(t)
	path = "arriving/" + id + ":1"
	ref := shared.registry.Reference(path)
	start(t, h, id, nil, "workload", "count", "--memory", "48")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http", "--segment-size", "4MiB"))
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", ref))
	return path
}

// begun runs cryo without waiting for it.
func begun(t *testing.T, h *lab.Host, args ...string) (c *underway) {
	t.Helper()
	return under(t, h.Command(t.Context(), "cryo", args...))
}

// under runs a command without waiting for it.
func under(t *testing.T, command *exec.Cmd) (c *underway) {
	t.Helper()
	c = &underway{ended: make(chan lab.Result, 1), signal: func(s syscall.Signal) {
		if err := command.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}}
	go func() { c.ended <- lab.Finish(command) }()
	return c
}

type underway struct {
	signal func(syscall.Signal)
	ended  chan lab.Result
}

// under sees that it has not ended.
func (c *underway) under(t *testing.T) {
	t.Helper()
	select {
	case r := <-c.ended:
		t.Fatalf("it has ended, with %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	default:
	}
}

// hello has the workload answer, while the command is under way.
func (c *underway) hello(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	eventually(t, id, time.Minute, func() bool {
		c.under(t)
		a, err := h.Ask(t.Context(), id, "hello")
		return err == nil && a.OK
	})
}

// nothing sees that neither the container nor a name of the snapshot is left.
func nothing(t *testing.T, h *lab.Host, id, ref string) {
	t.Helper()
	if out := must(t, h.Ctr(t.Context(), "containers", "ls", "--quiet")).Stdout; strings.Contains(out, id) {
		t.Errorf("there is a container:\n%s", out)
	}
	if r := h.Cryo(t.Context(), "verify", "--pull", "never", ref); r.Code != codeNotFound {
		t.Errorf("verify says %d:\n%s", r.Code, r.Stderr)
	}
	eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, h)) == 0 })
}

// TestArriving restores a container that answers before any of its segments has come.
func TestArriving(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	t.Run("answers", func(t *testing.T) {
		g := newGate(t, shared.registry, path)
		ref, id := g.address+"/"+path, name(t)
		cleanup(t, b, id)
		forget(t, b, ref)
		c := begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait", "--json")
		c.hello(t, b, id)
		if g.parts.Load() == 0 {
			t.Error("no part of a segment was asked for")
		}
		eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
		c.under(t)
		if r := b.Cryo(t.Context(), "verify", "--pull", "never", ref); r.Code != codeNotFound {
			t.Errorf("what has not come has a name: %d", r.Code)
		}
		g.open()
		r := said[arrivingRestored](t, <-c.ended)
		if !r.Lazy || r.PullFirst != "" || r.Running <= 0 || r.Pull.Seconds < r.Running {
			t.Errorf("it says %+v", r)
		}
		await(t, b, id)
		must(t, b.Cryo(t.Context(), "verify", ref))
		eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, b)) == 0 })
		must(t, b.Cryo(t.Context(), "rm", ref))
		await(t, b, id)
	})
	t.Run("wanted", func(t *testing.T) { // all of it, by the container, while nothing comes by itself
		g := newGate(t, shared.registry, path)
		ref, id := g.address+"/"+path, name(t)
		cleanup(t, b, id)
		forget(t, b, ref)
		c := begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait")
		c.hello(t, b, id)
		await(t, b, id)
		c.under(t)
		g.open()
		must(t, <-c.ended)
		must(t, b.Cryo(t.Context(), "rm", ref))
	})
	t.Run("many cores", func(t *testing.T) { // what comes goes through the page cache, and may begin before the container runs
		for _, held := range []bool{true, false} {
			g := newGate(t, shared.registry, path)
			if !held {
				g.open()
			}
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			forget(t, b, ref)
			c := under(t, b.Command(t.Context(), "env", "GOMAXPROCS=16", "cryo", "restore", ref, "--name", id, "--plain-http", "--wait", "--json"))
			if held {
				c.hello(t, b, id)
				eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
				g.open()
			}
			if r := said[arrivingRestored](t, <-c.ended); !r.Lazy || r.PullFirst != "" {
				t.Errorf("it says %+v", r)
			}
			await(t, b, id)
			must(t, b.Cryo(t.Context(), "verify", ref))
			must(t, b.Cryo(t.Context(), "rm", ref))
			remove(t.Context(), b, id)
		}
	})
	t.Run("damaged", func(t *testing.T) { // a whole segment is hashed when the container has its memory, and fetched again then
		g := newGate(t, shared.registry, path)
		var m ocispec.Manifest
		if err := json.Unmarshal(manifestOf(t, shared.registry.Reference(path)), &m); err != nil {
			t.Fatal(err)
		}
		g.damaged, g.mends = m.Layers[len(m.Layers)-1].Digest.String(), true
		ref, id := g.address+"/"+path, name(t)
		cleanup(t, b, id)
		forget(t, b, ref)
		c := under(t, b.Command(t.Context(), "env", "GOMAXPROCS=16", "cryo", "restore", ref, "--name", id, "--plain-http", "--wait"))
		c.hello(t, b, id)
		g.open()
		must(t, <-c.ended)
		if n := g.damages.Load(); !g.segments[g.damaged] || n < 2 {
			t.Errorf("%s, one of %d segments, came %d times", g.damaged, len(g.segments), n)
		}
		await(t, b, id)
		must(t, b.Cryo(t.Context(), "verify", ref))
		must(t, b.Cryo(t.Context(), "rm", ref))
	})
	for _, test := range []struct {
		name, why string
		ranges    bool
		flags     []string
	}{
		{"first", "--pull-first", true, []string{"--pull-first"}},
		{"eager", "--eager", true, []string{"--eager"}},
		{"no ranges", "parts of blobs", false, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			g.ranges.Store(test.ranges)
			g.open()
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			forget(t, b, ref)
			args := append([]string{"restore", ref, "--name", id, "--plain-http", "--wait", "--json"}, test.flags...)
			if r := said[arrivingRestored](t, b.Cryo(t.Context(), args...)); !strings.Contains(r.PullFirst, test.why) {
				t.Errorf("it says %+v", r)
			}
			await(t, b, id)
			must(t, b.Cryo(t.Context(), "rm", ref))
		})
	}
	t.Run("two", func(t *testing.T) {
		g := newGate(t, shared.registry, path)
		ref, ids := g.address+"/"+path, []string{name(t), name(t)}
		forget(t, b, ref)
		var commands []*underway
		for _, id := range ids {
			cleanup(t, b, id)
			commands = append(commands, begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait"))
		}
		for i, id := range ids {
			commands[i].hello(t, b, id)
		}
		g.open()
		for i, c := range commands {
			must(t, <-c.ended)
			await(t, b, ids[i])
		}
		must(t, b.Cryo(t.Context(), "rm", ref))
	})
}

// TestArrivingLeft has the command end while memory is on its way, in every way: the container runs on, and gets its memory.
func TestArrivingLeft(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	for _, test := range []struct {
		name string
		wait bool
		code int // of the command; -1: it is killed
		do   func(*underway)
	}{
		{"returned", false, 0, func(*underway) {}},
		{"interrupted", true, codeInterrupted, func(c *underway) { c.signal(syscall.SIGINT) }},
		{"terminated", true, codeInterrupted, func(c *underway) { c.signal(syscall.SIGTERM) }},
		{"killed", true, -1, func(c *underway) { c.signal(syscall.SIGKILL) }},
		{"stopped and killed", true, -1, func(c *underway) {
			c.signal(syscall.SIGSTOP)
			time.Sleep(200 * time.Millisecond) // a restore process that waited for it would wait by now
			c.signal(syscall.SIGKILL)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			forget(t, b, ref)
			args := []string{"restore", ref, "--name", id, "--plain-http"}
			if test.wait {
				args = append(args, "--wait", "--progress", "json") // else it says nothing
			} else {
				args = append(args, "--json")
			}
			command := b.Command(t.Context(), "cryo", args...)
			said, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			defer said.Close()
			command.Stderr = said
			text := func() string {
				data, err := os.ReadFile(said.Name())
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			}
			c := under(t, command)
			eventually(t, id, time.Minute, func() bool {
				a, err := b.Ask(t.Context(), id, "hello")
				return err == nil && a.OK
			})
			if test.wait { // it knows that the container runs
				eventually(t, "what the command says", 30*time.Second, func() bool { return strings.Contains(text(), "runs, and its memory is on its way") })
			}
			test.do(c)
			r := <-c.ended
			r.Stderr = text()
			if test.code >= 0 && r.Code != test.code {
				t.Fatalf("it ends with %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			if test.code == codeInterrupted && !strings.Contains(r.Stderr, "runs on, and its memory still comes") {
				t.Errorf("it says:\n%s", r.Stderr)
			}
			if test.code == 0 && strings.Contains(r.Stdout, `"complete": true`) {
				t.Errorf("it says that all is here:\n%s", r.Stdout)
			}
			if pids := restorers(t, b); len(pids) != 1 {
				t.Errorf("%d restore processes", len(pids))
			}
			if _, status, err := b.Task(t.Context(), id); err != nil || status != "RUNNING" {
				t.Fatalf("the container is %s, %v", status, err)
			}
			g.open()
			await(t, b, id)
			eventually(t, "the end of the pull", 30*time.Second, func() bool { return len(restorers(t, b)) == 0 })
			must(t, b.Cryo(t.Context(), "verify", "--pull", "never", ref))
			must(t, b.Cryo(t.Context(), "rm", ref))
			if left, err := os.ReadDir(filepath.Join(b.CryoRoot(), "work")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			await(t, b, id)
		})
	}
}

// TestArrivingFails has the rest of a container's memory not come.
func TestArrivingFails(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	for _, test := range []struct {
		name          string
		code          int
		words, reason string
		do            func(*gate)
	}{
		{"killed restore process", codeUnavailable, "it ran, and was ended, since its memory did not all come: the restore process has died", "has died", func(*gate) { kill(t, restorers(t, b)[0]) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			forget(t, b, ref)
			c := begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait")
			c.hello(t, b, id)
			eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
			test.do(g)
			refusal(t, <-c.ended, test.code, test.words)
			if reason := ended(t, b, id); !strings.Contains(reason, test.reason) || reason == "" {
				t.Errorf("the reason is %q", reason)
			}
			eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, b)) == 0 })
			// The ended container is there until its user removes it, so that its exit status can be read.
			must(t, b.Ctr(t.Context(), "tasks", "delete", "--force", id))
			must(t, b.Ctr(t.Context(), "containers", "delete", id))
			nothing(t, b, id, ref)
			must(t, b.Cryo(t.Context(), "prune")) // which removes working directories of who was killed
			if left, err := os.ReadDir(filepath.Join(b.CryoRoot(), "work")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
	t.Run("killed container", func(t *testing.T) {
		g := newGate(t, shared.registry, path)
		ref, id := g.address+"/"+path, name(t)
		cleanup(t, b, id)
		forget(t, b, ref)
		c := begun(t, b, "restore", ref, "--name", id, "--plain-http", "--wait")
		c.hello(t, b, id)
		must(t, b.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", id))
		ended(t, b, id)
		g.open()
		must(t, <-c.ended) // its memory is of no use, the snapshot is
		must(t, b.Cryo(t.Context(), "verify", ref))
		must(t, b.Cryo(t.Context(), "rm", ref))
	})
}

// awayFor is for how long the registry is away in TestArrivingAway once that has been noticed.
var awayFor = flag.Duration("away", 5*time.Second, "how long the registry is away in TestArrivingAway")

// TestArrivingAway has the registry go away while memory is on its way: the container runs on, and has all its memory when the registry is back, or when the
// snapshot was brought from a file. It is ended when the registry has been away for as long as the configuration says.
func TestArrivingAway(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	begin := func(t *testing.T, h *lab.Host) (g *gate, c *underway, id string) {
		g = newGate(t, shared.registry, path)
		ref, id := g.address+"/"+path, name(t)
		cleanup(t, h, id)
		forget(t, h, ref)
		c = begun(t, h, "restore", ref, "--name", id, "--plain-http", "--wait")
		c.hello(t, h, id)
		eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
		g.die()
		return g, c, id
	}
	root := ownRoot(t, b)
	file := "oci-archive:" + filepath.Join(root, "away.tar")
	must(t, b.Cryo(t.Context(), "--root", root, "pull", shared.registry.Reference(path), "--plain-http"))
	must(t, b.Cryo(t.Context(), "--root", root, "push", shared.registry.Reference(path), file))
	waiting := func(t *testing.T, h *lab.Host, id string) string {
		e := listed(t, h, id)
		if e == nil || e.Memory == nil {
			t.Fatalf("cryo ps says %+v", e)
		}
		return e.Memory.Waiting
	}
	for how, mend := range map[string]func(*testing.T, *gate){
		"back": func(t *testing.T, g *gate) {
			g.open()
			g.back(t)
		},
		"brought from a file": func(t *testing.T, _ *gate) {
			forget(t, b, strings.Fields(must(t, b.Cryo(t.Context(), "pull", file)).Stdout)[1])
		},
	} {
		t.Run(how, func(t *testing.T) {
			heard := eventsOf(t, b)
			g, c, id := begin(t, b)
			eventually(t, "the news that the registry is away", time.Minute, func() bool { return strings.Contains(waiting(t, b, id), "cannot be reached") })
			eventually(t, "the event", 10*time.Second, func() bool {
				heard.mu.Lock()
				defer heard.mu.Unlock()
				return strings.Contains(heard.reasons[id], "cannot be reached")
			})
			if out := must(t, b.Cryo(t.Context(), "ps")).Stdout; !strings.Contains(out, "waits") {
				t.Errorf("cryo ps says\n%s", out)
			}
			time.Sleep(*awayFor)
			if a, err := b.Ask(t.Context(), id, "hello"); err != nil || !a.OK {
				t.Errorf("what needs no more memory does not run on: %v, %s", err, a.Error)
			}
			c.under(t)
			touched := make(chan lab.Answer, 1) // all of its memory, by the container, which waits
			go func() {
				a, err := b.AwaitAnswer(t.Context(), id)
				if err != nil {
					t.Error(err)
				}
				touched <- a
			}()
			time.Sleep(time.Second)
			mend(t, g)
			must(t, <-c.ended)
			if a := <-touched; !a.OK {
				t.Errorf("its memory is wrong: %s", a.Error)
			}
			await(t, b, id)
			if why := waiting(t, b, id); why != "" {
				t.Errorf("it waits still: %s", why)
			}
			eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, b)) == 0 })
		})
	}
	t.Run("for too long", func(t *testing.T) {
		h := newHost(t, "short", lab.HostOptions{CryoConfig: "[restore]\nregistry-timeout = 2\n"})
		_, c, id := begin(t, h)
		refusal(t, <-c.ended, codeUnavailable, "has brought nothing for 2s")
		if reason := ended(t, h, id); !strings.Contains(reason, "has brought nothing for 2s") {
			t.Errorf("the reason is %q", reason)
		}
		eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, h)) == 0 })
	})
}
