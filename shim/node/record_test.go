package node

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestRecord(t *testing.T) {
	root := t.TempDir()
	r, err := openRecord(root)
	if err != nil || len(r.Own) > 0 {
		t.Fatal(r, err)
	}
	for _, o := range []owned{{"a", true}, {"b", false}, {"a", false}} { // what is there stays as it is
		if err := r.add(o); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.drop("b"); err != nil {
		t.Fatal(err)
	}
	again, err := openRecord(root)
	if err != nil || len(again.Own) != 1 || again.Own[0] != (owned{"a", true}) || again.has("b") {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestLock(t *testing.T) {
	root := t.TempDir()
	held, err := lock(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(root); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second service: %v", err)
	}
	held.Close()
	again, err := lock(root)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
