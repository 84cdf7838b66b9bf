package integration

import (
	"cmp"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/integration/lab"
)

// taken is what "cryo checkpoint --json" says of parents.
type taken struct {
	Digest digest.Digest `json:"digest"`
	Parent digest.Digest `json:"parent"`
	Shared int64         `json:"shared"`
}

// TestIncrement takes snapshots of a container of which 1 % of the memory changes in between: what is stored and sent is what has
// changed, for a container that ran on and for one that was restored, and each snapshot is complete by itself.
func TestIncrement(t *testing.T) {
	a, b := pair(t)
	const memory = 256 << 20
	id := name(t)
	l := newLine(t, shared.registry)
	ref := func(tag string) string {
		ref := l.Address + "/increment/" + id + ":" + tag
		away(t, ref)
		return ref
	}
	startImage(t, a, shared.image, id, nil, "workload", "region", "--memory", "256")
	await(t, a, id)
	// shot takes a snapshot, and gives what it has added to the store and sent to the registry.
	shot := func(h *lab.Host, tag string, flags ...string) (r taken, stored, sent int64) {
		t.Helper()
		stored, sent = treeSize(t, h.CryoRoot()), l.Sent.Load()
		args := slices.Concat([]string{"checkpoint", id, ref(tag), "--leave-running", "--push", "--plain-http", "--json"}, flags)
		if err := json.Unmarshal([]byte(must(t, h.Cryo(t.Context(), args...)).Stdout), &r); err != nil {
			t.Fatal(err)
		}
		stored, sent = treeSize(t, h.CryoRoot())-stored, l.Sent.Load()-sent
		t.Logf("%s on %s: %d bytes stored, %d sent, %d shared", tag, h.Name, stored, sent, r.Shared)
		return r, stored, sent
	}
	change := func(h *lab.Host, runs string) {
		t.Helper()
		if answer, err := h.Ask(t.Context(), id, "runs", "10", runs); err != nil || !answer.OK {
			t.Fatal(err, answer.Error)
		}
	}
	within := func(what string, stored, sent, perCent int64) {
		t.Helper()
		if most := memory * perCent / 100; max(stored, sent) > most || stored < memory/100 {
			t.Errorf("%s: %d bytes were stored and %d sent, at most %d of %d are wanted", what, stored, sent, most, memory)
		}
	}

	first, _, _ := shot(a, "first")
	if first.Parent != "" || first.Shared != 0 {
		t.Errorf("the first snapshot has a parent: %+v", first)
	}
	change(a, "1")
	second, stored, sent := shot(a, "run")
	within("one run", stored, sent, 2)
	change(a, "40") // of 64 KiB
	before := await(t, a, id)
	third, stored, sent := shot(a, "scattered")
	within("scattered runs", stored, sent, 20)
	if second.Parent != first.Digest || third.Parent != second.Digest || second.Shared < memory*9/10 {
		t.Errorf("after %s came %+v and %+v", first.Digest, second, third)
	}
	for _, tag := range []string{"first", "run"} { // nobody needs them
		must(t, a.Cryo(t.Context(), "rm", ref(tag)))
	}
	must(t, a.Cryo(t.Context(), "verify", ref("scattered")))
	remove(t.Context(), a, id)

	// It is pulled, and goes on, where nobody has ever had its parents.
	j := journey{id: id, restore: []string{"--pull", "always"}}
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref("scattered"), "--plain-http", "--wait", "--name", j.id))
	after := await(t, b, id)
	goneOn(t, before, after)
	change(b, "1")
	restored, stored, sent := shot(b, "restored")
	within("one run after a restore", stored, sent, 2)
	if restored.Parent != third.Digest {
		t.Errorf("the container of %s has parent %q", third.Digest, restored.Parent)
	}
	change(b, "655") // pages
	if pages, _, _ := shot(b, "pages"); pages.Parent != restored.Digest {
		t.Errorf("after %s came %+v", restored.Digest, pages)
	}
}

// TestIncrementParent: which snapshot is the parent, if any.
func TestIncrementParent(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "region", "--memory", "8")
	ref := func(tag string) string {
		ref := "example.com/increment/" + id + ":" + tag
		away(t, ref)
		return ref
	}
	shot := func(tag string, flags ...string) (r taken) {
		t.Helper()
		args := slices.Concat([]string{"checkpoint", id, ref(tag), "--leave-running", "--json"}, flags)
		if err := json.Unmarshal([]byte(must(t, a.Cryo(t.Context(), args...)).Stdout), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := shot("1")
	second := shot("2")
	alone := shot("3", "--parent", "none")
	named := shot("4", "--parent", ref("1"))
	if second.Parent != first.Digest || alone.Parent != "" || alone.Shared != 0 || named.Parent != first.Digest || named.Shared < 4<<20 {
		t.Errorf("after %s came %+v, %+v and %+v", first.Digest, second, alone, named)
	}
	for tag, want := range map[string]bool{"3": false, "4": true} {
		out := must(t, a.Cryo(t.Context(), "inspect", ref(tag))).Stdout
		if strings.Contains(out, first.Digest.String()) != want || strings.Contains(out, "shared with it: ") != want {
			t.Errorf("inspect says of snapshot %s:\n%s", tag, out)
		}
	}
	// The last one is gone: there is none before it to fall back on, and nobody is told.
	must(t, a.Cryo(t.Context(), "rm", ref("4")))
	if gone := shot("5"); gone.Parent != "" || gone.Shared != 0 {
		t.Errorf("after a removal came %+v", gone)
	}
	if r := a.Cryo(t.Context(), "checkpoint", id, ref("6"), "--leave-running", "--parent", ref("4")); r.Err() == nil {
		t.Error("a parent that there is not is taken")
	}
	await(t, a, id)

	// What would be shared has rotted: the container, which would end, runs on.
	rotten := shot("6")
	segments := inspect(t, a, ref("6")).segments()
	largest := slices.MaxFunc(slices.Collect(maps.Keys(segments)), func(a, b digest.Digest) int { return cmp.Compare(segments[a], segments[b]) })
	path := filepath.Join(a.CryoRoot(), "store/blobs/sha256", largest.Encoded())
	damaged(t, path, func(c []byte) []byte { return flip(c, len(c)/2) }, func() {
		refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref("7")), codeDamaged, "--parent none")
	})
	if rotten.Shared == 0 {
		t.Errorf("%+v shares nothing", rotten)
	}
	await(t, a, id)

	// The last one ends the container, and everything before it goes.
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref("7")))
	must(t, a.Cryo(t.Context(), "rm", ref("1"), ref("2"), ref("3"), ref("5"), ref("6")))
	must(t, a.Cryo(t.Context(), "verify", ref("7")))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref("7"), "--name", id))
	await(t, a, id)
	if s := inspect(t, a, ref("7")); len(s.segments()) == 0 {
		t.Errorf("%+v", s)
	}
}
