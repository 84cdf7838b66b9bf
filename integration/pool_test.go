package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestPool have containers that are restored ahead and stand still: cryo prewarm --paused.

// pooled is what cryo says of a pool.
type pooled struct {
	Wanted, Ready, Making int
	Memory                int64
	Members               []struct {
		Container string
		PID       int
	}
}

// fromPool is what cryo restore says of the pool.
type fromPool struct {
	Taken         bool
	Reason        string
	Held, Handout float64
}

// handedOut is a container that cryo restore has made or taken.
type handedOut struct {
	Container string
	PID       int
	Digest    digest.Digest
	Pool      *fromPool
}

// pause has so many containers of a snapshot stand still, until the test ends.
func pause(t *testing.T, h *lab.Host, ref string, count string) {
	t.Helper()
	t.Cleanup(func() { h.Cryo(cleanupContext(t), "prewarm", "rm", "--all") })
	must(t, h.Cryo(t.Context(), "prewarm", "--paused", count, ref))
}

// poolOf returns the pool of a snapshot; nil: there is none.
func poolOf(t *testing.T, h *lab.Host, ref string) *pooled {
	t.Helper()
	var all []struct {
		Reference string
		Paused    []pooled
	}
	out := must(t, h.Cryo(t.Context(), "prewarm", "ls", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, w := range all {
		if strings.HasSuffix(w.Reference, ref) && len(w.Paused) == 1 {
			return &w.Paused[0]
		}
	}
	return nil
}

// filled waits until a pool has so many containers that stand ready, and returns it.
func filled(t *testing.T, h *lab.Host, ref string, count int) (p *pooled) {
	t.Helper()
	eventually(t, "the pool is full", time.Minute, func() bool {
		p = poolOf(t, h, ref)
		return p != nil && p.Ready == count && p.Making == 0
	})
	return p
}

// take restores a snapshot that has a pool. The container goes with the test.
func take(t *testing.T, h *lab.Host, ref string, flags ...string) (c handedOut) {
	t.Helper()
	out := must(t, h.Cryo(t.Context(), append([]string{"restore", ref, "--json"}, flags...)...)).Stdout
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cleanup(t, h, c.Container)
	return c
}

// standing fails the test unless the containers of a pool are tasks that stand still, which ctr shows as paused.
func standing(t *testing.T, h *lab.Host, p *pooled) (ids []string) {
	t.Helper()
	for _, m := range p.Members {
		if pid, status, err := h.Task(t.Context(), m.Container); err != nil || status != "PAUSED" || pid != m.PID {
			t.Errorf("%s is %s with process %d, not %d (%v)", m.Container, status, pid, m.PID, err)
		}
		ids = append(ids, m.Container)
	}
	return ids
}

// TestPool fills a pool, takes a container, whose program reads what is new, and has the pool filled again. The pool ends with its snapshot.
func TestPool(t *testing.T) {
	h, _ := pair(t)
	before, ref := trace(t, h), "pool/"+name(t)+":1"
	id := participates(t, h, participant, "--hostname", "first", "--env", "ROLE=first")
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--rm"))
	pause(t, h, ref, "2")
	p := filled(t, h, ref, 2)
	members := standing(t, h, p)
	for _, m := range members {
		if text := logged(t, h, m); text != "" {
			t.Errorf("%s has run before it was taken: %s", m, text)
		}
	}
	c := take(t, h, ref, "--env", "ROLE=second")
	if c.Pool == nil || !c.Pool.Taken || c.Pool.Held <= 0 || c.Pool.Handout <= 0 || !slices.Contains(members, c.Container) {
		t.Errorf("%+v (%+v) was taken of %s", c, c.Pool, members)
	}
	is, text := restoredEvent(t, h, c.Container)
	var more struct {
		Container string
		Held      float64
	}
	if err := json.Unmarshal([]byte(text), &more); err != nil || more.Container != c.Container || more.Held <= 0 || more.Held > is.Pause || is.Hostname.Is != "first" || len(is.Environment) != 1 || *is.Environment["ROLE"] != "second" || is.Digest != c.Digest.String() {
		t.Errorf("the program reads %s (%v)", text, err)
	}
	if r := must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "env", c.Container, "env")); !strings.Contains(r.Stdout, "\nROLE=second\n") {
		t.Errorf("a program that is started in the container has %s", r.Stdout)
	}
	if _, status, err := h.Task(t.Context(), c.Container); err != nil || status != "RUNNING" {
		t.Errorf("the container that was taken is %s, %v", status, err)
	}
	now := standing(t, h, filled(t, h, ref, 2))
	if slices.Contains(now, c.Container) {
		t.Errorf("%s was taken and is in the pool %s", c.Container, now)
	}
	must(t, h.Cryo(t.Context(), "rm", ref))
	if p := poolOf(t, h, ref); p != nil {
		t.Errorf("the snapshot was removed, and has the pool %+v", p)
	}
	if _, status, err := h.Task(t.Context(), c.Container); err != nil || status != "RUNNING" {
		t.Errorf("the container that was taken is %s when its pool has ended, %v", status, err)
	}
	remove(t.Context(), h, c.Container)
	wantTrace(t, h, before)
}
