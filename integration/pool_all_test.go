package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// poolFor takes a snapshot of a workload, and has so many of its containers stand still. It returns what there was on the host before these.
func poolFor(t *testing.T, h *lab.Host, count string, workload ...string) (ref string, before []string) {
	t.Helper()
	ref = snapshotOf(t, h, workload...)
	before = trace(t, h)
	pause(t, h, ref, count)
	return ref, before
}

// released ends a pool, and fails the test if anything of it is left.
func released(t *testing.T, h *lab.Host, ref string, before []string, except ...string) {
	t.Helper()
	noRefill(t, h)
	must(t, h.Cryo(t.Context(), "prewarm", "rm", ref))
	wantTrace(t, h, before, except...)
}

// refills returns the processes of a host that fill a pool again.
func refills(h *lab.Host) (pids []int) {
	for _, pid := range h.Processes() {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(line), "\x00--refill\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// noRefill waits until no process fills a pool again.
func noRefill(t *testing.T, h *lab.Host) {
	t.Helper()
	eventually(t, "nothing fills a pool", time.Minute, func() bool { return len(refills(h)) == 0 })
}

// TestPoolAtOnce takes containers at once, more than there are. Each is taken once, and those that find none are restored.
func TestPoolAtOnce(t *testing.T) {
	h, _ := pair(t)
	ref, before := poolFor(t, h, "3", "count", "--memory", "8")
	results := make([]handedOut, 5)
	var takes sync.WaitGroup
	for i := range results {
		takes.Go(func() { results[i] = take(t, h, ref) })
	}
	takes.Wait()
	seen, fromPool := map[string]bool{}, 0
	for _, c := range results {
		if seen[c.Container] {
			t.Errorf("%s was taken twice", c.Container)
		}
		seen[c.Container] = true
		if c.Pool != nil && c.Pool.Taken {
			fromPool++
		} else if c.Pool == nil || c.Pool.Reason == "" {
			t.Errorf("%s was restored, and nothing says why: %+v", c.Container, c.Pool)
		}
		await(t, h, c.Container)
	}
	if fromPool < 3 {
		t.Errorf("%d containers were taken of 3", fromPool)
	}
	standing(t, h, filled(t, h, ref, 3))
	for id := range seen {
		remove(t.Context(), h, id)
	}
	released(t, h, ref, before)
}

// TestPoolCalls: a member that stands still is not used before it is taken, and ends when a client says so.
func TestPoolCalls(t *testing.T) {
	h, _ := pair(t)
	ref, before := poolFor(t, h, "1", "count", "--memory", "8")
	id := standing(t, h, filled(t, h, ref, 1))[0]
	for _, args := range [][]string{{"tasks", "resume", id}, {"tasks", "pause", id}, {"tasks", "exec", "--exec-id", "x", id, "true"}, {"tasks", "checkpoint", id}} {
		if r := h.Ctr(t.Context(), args...); r.Code == 0 || !strings.Contains(r.Stderr, "is a member of a pool and stands still") {
			t.Errorf("%s: exit code %d: %s", args, r.Code, r.Stderr)
		}
	}
	if r := h.Cryo(t.Context(), "checkpoint", id, "pool/never:1"); r.Code == 0 {
		t.Error("a member that stands still was saved")
	}
	standing(t, h, filled(t, h, ref, 1))
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", "0", ref))
	if p := poolOf(t, h, ref); p != nil {
		t.Errorf("there is a pool: %+v", p)
	}
	c := take(t, h, ref)
	if c.Pool != nil || !strings.HasPrefix(id, c.Container+"-") {
		t.Errorf("without a pool %s is restored: %+v", c.Container, c.Pool)
	}
	remove(t.Context(), h, c.Container)
	released(t, h, ref, before)
}

// TestPoolDiffers: what a container of the pool cannot have is restored, under the name that is asked for, and both outputs say why.
func TestPoolDiffers(t *testing.T) {
	h, _ := pair(t)
	ref, before := poolFor(t, h, "1", "count", "--memory", "8")
	id := name(t)
	for flag, args := range map[string][]string{
		"--name":    {"--name", id},
		"--move":    {"--name", id, "--move"},
		"--log-uri": {"--name", id, "--log-uri", "file://" + logFile(h, id)},
	} {
		c := take(t, h, ref, args...)
		if c.Container != id || c.Pool == nil || c.Pool.Taken || !strings.Contains(c.Pool.Reason, flag) {
			t.Errorf("%s: %s was taken: %+v", flag, c.Container, c.Pool)
		}
		await(t, h, id)
		remove(t.Context(), h, id)
	}
	standing(t, h, filled(t, h, ref, 1))
	released(t, h, ref, before)
}

// TestPoolBounds refuses more containers than the budget of memory has room for, before one is made.
func TestPoolBounds(t *testing.T) {
	h, _ := pair(t)
	ref := snapshotOf(t, h, "count", "--memory", "64")
	before := trace(t, h)
	cold(t, h)
	if r := configured(t, h, "[prewarm]\nmemory = 150\n", "prewarm", "--paused", "3", ref); r.Code == 0 || !strings.Contains(r.Stderr, "memory under [prewarm]") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if p := poolOf(t, h, ref); p != nil {
		t.Errorf("there is a pool: %+v", p)
	}
	if r := h.Cryo(t.Context(), "prewarm", "--paused", "101", ref); r.Code != codeUsage {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	must(t, configured(t, h, "[prewarm]\nmemory = 150\n", "prewarm", "--paused", "2", ref))
	if p := filled(t, h, ref, 2); p.Memory < 128<<20 || p.Memory > 150<<20 {
		t.Errorf("the pool has %d bytes", p.Memory)
	}
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", "1", ref))
	standing(t, h, filled(t, h, ref, 1))
	released(t, h, ref, before)
}

// TestPoolDead: members that have ended, by whatever, are not taken, and go when the pool is filled again.
func TestPoolDead(t *testing.T) {
	h, _ := pair(t)
	ref, before := poolFor(t, h, "1", "count", "--memory", "8")
	for what, end := range map[string]func(id string, pid int) error{
		"its process is killed": func(_ string, pid int) error { return unix.Kill(pid, unix.SIGKILL) },
		"its task is killed": func(id string, _ int) error {
			return h.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id).Err()
		},
		"its task is deleted":      func(id string, _ int) error { return h.Ctr(t.Context(), "tasks", "delete", "--force", id).Err() },
		"its container is removed": func(id string, _ int) error { return h.Remove(t.Context(), id) },
		"its shim is killed":       func(id string, _ int) error { return unix.Kill(shimOf(t, h, id), unix.SIGKILL) },
	} {
		m := filled(t, h, ref, 1).Members[0]
		if err := end(m.Container, m.PID); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		eventually(t, what, 10*time.Second, func() bool { return poolOf(t, h, ref).Ready == 0 })
		if text := logged(t, h, m.Container); strings.Contains(text, "count") {
			t.Errorf("%s: it has run: %s", what, text)
		}
		c := take(t, h, ref)
		if c.Container == m.Container || c.Pool == nil || c.Pool.Taken {
			t.Errorf("%s: %s was taken: %+v", what, c.Container, c.Pool)
		}
		await(t, h, c.Container)
		remove(t.Context(), h, c.Container)
		filled(t, h, ref, 1)
		noRefill(t, h)
		if r := h.Ctr(t.Context(), "containers", "info", m.Container); r.Code == 0 {
			t.Errorf("%s: the container is left", what)
		}
	}
	released(t, h, ref, before)
}

// TestPoolKilled kills cryo while it fills, takes and fills again. The pool is full afterwards, and nothing is left of it when it has ended. A container that runs is one that was taken.
func TestPoolKilled(t *testing.T) {
	const rounds = 5
	h, _ := pair(t)
	ref := snapshotOf(t, h, "count", "--memory", "16")
	cold(t, h)
	prewarm(t, h, ref)
	before := trace(t, h)
	began := time.Now()
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", "2", ref))
	fills := time.Since(began)
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", "0", ref))
	for i := range rounds {
		at := time.Duration((float64(i) + rand.Float64()) / rounds * float64(fills))
		broken(t, h, at, syscall.SIGKILL, "prewarm", "--paused", "2", ref)
		must(t, h.Cryo(t.Context(), "prewarm", "--paused", "2", ref))
		standing(t, h, filled(t, h, ref, 2))
		must(t, h.Cryo(t.Context(), "prewarm", "--paused", "0", ref))
		wantTrace(t, h, before)
	}
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", "2", ref))
	takes := must(t, h.Cryo(t.Context(), "restore", ref)).Elapsed
	for i := range rounds {
		filled(t, h, ref, 2)
		noRefill(t, h)
		r := broken(t, h, time.Duration((float64(i)+rand.Float64())/rounds*float64(takes)), syscall.SIGKILL, "restore", ref)
		must(t, h.Cryo(t.Context(), "prewarm", "--paused", "2", ref))
		t.Logf("killed take: exit code %d, prints %q", r.Code, r.Stdout)
	}
	for range 2 {
		filled(t, h, ref, 2)
		noRefill(t, h)
		must(t, h.Cryo(t.Context(), "restore", ref))
		eventually(t, "a process fills the pool", 10*time.Second, func() bool { return len(refills(h)) > 0 })
		time.Sleep(rand.N(fills / 2))
		for _, pid := range refills(h) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		noRefill(t, h)
		must(t, h.Cryo(t.Context(), "prewarm", "--paused", "2", ref))
	}
	inPool := standing(t, h, filled(t, h, ref, 2))
	for _, id := range strings.Fields(must(t, h.Ctr(t.Context(), "tasks", "ls", "--quiet")).Stdout) {
		if !slices.Contains(inPool, id) {
			await(t, h, id)
			remove(t.Context(), h, id)
		}
	}
	noRefill(t, h)
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", "0", ref))
	wantTrace(t, h, before)
}

// TestPoolLeft has what a command leaves that is killed while it takes a container: before the shim has let it go, and after that. The first stands in the pool again, the second is like any other.
func TestPoolLeft(t *testing.T) {
	h, _ := pair(t)
	ref, before := poolFor(t, h, "1", "count", "--memory", "8")
	id := standing(t, h, filled(t, h, ref, 1))[0]
	taking := func() {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(h.CryoRoot(), "pools/*/members", id))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s, %v", files, err)
		}
		text, err := os.ReadFile(files[0])
		if err == nil {
			err = os.WriteFile(files[0], bytes.Replace(text, []byte(`"taken":false`), []byte(`"taken":true`), 1), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if p := poolOf(t, h, ref); p.Ready != 0 || p.Making != 1 {
			t.Fatalf("a container is being taken, and the pool is %+v", p)
		}
	}
	again := func() string {
		t.Helper()
		must(t, h.Cryo(t.Context(), "prewarm", "--paused", "1", ref))
		return standing(t, h, filled(t, h, ref, 1))[0]
	}
	taking()
	if now := again(); now != id {
		t.Errorf("%s is in the pool, and %s was", now, id)
	}
	taking()
	client, err := h.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	take := &tasks.UpdateTaskRequest{ContainerID: id, Annotations: map[string]string{"io.cryo.pool.take": "{}"}}
	if _, err := client.TaskService().Update(ctx, take); err != nil {
		t.Fatal(err)
	}
	cleanup(t, h, id)
	if _, err := client.TaskService().Update(ctx, take); err == nil {
		t.Error("a container was taken twice")
	}
	if now := again(); now == id {
		t.Errorf("%s runs and is in the pool", id)
	}
	await(t, h, id)
	container, err := client.ContainerService().Get(ctx, id)
	if err != nil || container.Labels["io.cryo.pool"] != "" || container.Labels["io.cryo.reference"] == "" {
		t.Errorf("the container has the labels %s, %v", container.Labels, err)
	}
	remove(t.Context(), h, id)
	released(t, h, ref, before)
}

// TestPoolNamed: a container that nerdctl's users know by a name gets that when it is taken.
func TestPoolNamed(t *testing.T) {
	h, _ := pair(t)
	id, ref := name(t), "pool/"+name(t)+":1"
	startImage(t, h, shared.image, id, slices.Concat(control, []string{"--label", "nerdctl/name=" + id}), "sh", "-c", participant)
	prints(t, h, id, "waits")
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	pause(t, h, ref, "1")
	m := standing(t, h, filled(t, h, ref, 1))[0]
	c := take(t, h, ref, "--name", id+"-2")
	if c.Container != m || c.Pool == nil || !c.Pool.Taken {
		t.Errorf("%s was taken, and %s is in the pool: %+v", c.Container, m, c.Pool)
	}
	if _, text := restoredEvent(t, h, c.Container); !strings.Contains(text, fmt.Sprintf(`"container": %q`, id+"-2")) {
		t.Errorf("the program reads %s", text)
	}
	if r := h.Cryo(t.Context(), "logs", id+"-2"); r.Code != 0 || !strings.Contains(r.Stdout, "event restored") {
		t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	filled(t, h, ref, 1)
	if r := h.Cryo(t.Context(), "restore", ref, "--name", id+"-2"); r.Code != codeExists {
		t.Errorf("a name is taken twice: exit code %d: %s", r.Code, r.Stderr)
	}
	noRefill(t, h)
}

// TestPoolGPU refuses a pool of containers with GPUs.
func TestPoolGPU(t *testing.T) {
	_, b := gpuPair(t)
	ref, _ := gpuSnapshot(t, handing, "--blocks", "3")
	coldGPU(t, b)
	refusal(t, b.Cryo(t.Context(), "prewarm", "--paused", "1", ref), codePrecondition, "cryo prewarm --gpu")
	if p := poolOf(t, b, ref); p != nil {
		t.Errorf("there is a pool: %+v", p)
	}
}

// TestPoolClones: members are clones. Each has a generation and random values of its own; clocks begin where the snapshot's stood still, and go on while a member stands.
func TestPoolClones(t *testing.T) {
	const stands = 2 * time.Second
	h, _ := pair(t)
	id := name(t)
	ref := "pool/" + id + ":1"
	startImage(t, h, shared.image, id, nil, "workload", "clones")
	await(t, h, id)
	forget(t, h, ref)
	then := clocks(t, h, id)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--rm"))
	time.Sleep(stands) // which the clocks do not see
	pause(t, h, ref, "2")
	filled(t, h, ref, 2)
	time.Sleep(stands)
	drawn := map[string]bool{}
	for range 2 {
		c := take(t, h, ref)
		if c.Pool == nil || !c.Pool.Taken {
			t.Fatalf("%s was restored: %+v", c.Container, c.Pool)
		}
		now := clocks(t, h, c.Container)
		wall := now.wall - then.wall
		for what, ran := range map[string]time.Duration{"monotonic": now.monotonic - then.monotonic, "boot": now.boot - then.boot} {
			if ran < time.Duration(c.Pool.Held*float64(time.Second)) || ran > wall-stands {
				t.Errorf("%s: in %v of the wall clock the %s clock has gone on by %v; it stood in the pool for %.1f s", c.Container, wall, what, ran, c.Pool.Held)
			}
		}
		d := draws(t, h, c.Container)
		if d.wiped != "zeros" || d.locked != "zeros" || drawn[d.random] {
			t.Errorf("%s has %+v", c.Container, d)
		}
		drawn[d.random] = true
	}
	noRefill(t, h)
}
