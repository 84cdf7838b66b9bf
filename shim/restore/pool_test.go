package restore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cryo-project/cryo/runtime/runc"
)

// TestPoolFiles has a pool with members that are ready, being made, being taken, and have ended. One process at a time has a member.
func TestPoolFiles(t *testing.T) {
	root, address, ref := t.TempDir(), "/run/containerd/containerd.sock", "registry.example.com/cache:1"
	p := &Pool{dir: poolDir(root, address, "default", ref), Reference: ref, Count: 3, Address: address, Namespace: "default"}
	if err := p.write(); err != nil {
		t.Fatal(err)
	}
	if other, err := findPool(root, address, "other", ref); other != nil || err != nil {
		t.Errorf("another namespace has %+v, %v", other, err)
	}
	if found, err := findPool(root, address, "default", ref); err != nil || found == nil || *found != *p {
		t.Fatalf("%+v, %v", found, err)
	}
	started, err := runc.Started(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Member{
		{ID: "ready", PID: os.Getpid(), Started: started, Memory: 1},
		{ID: "taken", PID: os.Getpid(), Started: started, Memory: 2, Taken: true},
		{ID: "made", Memory: 4},
		{ID: "ended", PID: os.Getpid(), Started: started + 1, Memory: 8}, // its number is another's
	} {
		m.Created = time.Now().UTC()
		s, err := p.newSeat(m)
		if err != nil {
			t.Fatal(err)
		}
		s.leave()
	}
	if err := os.WriteFile(filepath.Join(p.membersDir(), "torn"), []byte(`{"id":"to`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := p.State()
	if err != nil || s.Wanted != 3 || s.Ready != 1 || s.Making != 3 || s.Memory != 7 || s.Members[0].Container != "ready" {
		t.Errorf("the pool is %+v, %v", s, err)
	}
	first, err := p.sit("ready")
	if err != nil || first == nil {
		t.Fatalf("%+v, %v", first, err)
	}
	if second, err := p.sit("ready"); second != nil || err != nil {
		t.Errorf("two have a member: %+v, %v", second, err)
	}
	var m making
	if r, why, busy, err := m.takeFree(t.Context(), p, ""); r != nil || why == "" || !busy || err != nil { // who has it may only look at it
		t.Errorf("of a member that is locked: %+v, %q, %t, %v", r, why, busy, err)
	}
	first.Taken = true
	if err := first.write(); err != nil {
		t.Fatal(err)
	}
	first.leave()
	again, err := p.sit("ready")
	if err != nil || again == nil || !again.Taken {
		t.Fatalf("%+v, %v", again, err)
	}
	if r, why, busy, err := m.takeFree(t.Context(), p, ""); r != nil || why == "" || busy || err != nil {
		t.Errorf("of a member that is taken: %+v, %q, %t, %v", r, why, busy, err)
	}
	if err := again.remove(); err != nil {
		t.Fatal(err)
	}
	if gone, err := p.sit("ready"); gone != nil || err != nil {
		t.Errorf("a member that was removed is %+v, %v", gone, err)
	}
}
