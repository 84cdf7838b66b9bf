package worker

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// TestNode: a restore process joins a group by cryo node, also where an earlier one has left its socket; it learns its snapshot, and later why its restore is called off.
func TestNode(t *testing.T) {
	root := t.TempDir()
	if _, err := OpenNode(root); err == nil {
		t.Error("no cryo node waits")
	}
	for range 2 {
		l, err := ListenForPods(root)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		r, err := OpenNode(root)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		node, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		left := make(chan error, 1)
		go func() { left <- r.Left() }()
		go func() {
			var n News
			for n.Step == nil {
				if _, err := node.Receive(&n); err != nil {
					return
				}
			}
			_ = node.Send(Permission{Step: n.Step.Step, Ref: "r.example/" + n.Step.Pod.Name})
		}()
		p, err := r.Pass(t.Context(), Reached{Step: Joining, Pod: &Pod{Name: "a"}})
		if err != nil || p.Ref != "r.example/a" {
			t.Errorf("%+v, %v", p, err)
		}
		if err := node.Send(Permission{Failed: failure.New(errdefs.ErrAborted, "hint", "another member has failed")}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-left:
			if !errdefs.IsAborted(err) || failure.Hint(err) != "hint" || err.Error() != "another member has failed" {
				t.Errorf("%v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the process does not learn that it is called off")
		}
	}
}
