package warm

import (
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store/storetest"
)

// TestDevices: device memory is prewarmed with the rest, and read without segments.
func TestDevices(t *testing.T) {
	dir, s := newDir(t), storetest.Open(t)
	d, contents := storetest.PutDevices(t, s, "example.com/llm:1")
	snapshot, err := image.Open(t.Context(), s, d)
	if err != nil {
		t.Fatal(err)
	}
	budget := Size{Memory: 1 << 30, Disk: 1 << 30}
	if _, _, err := dir.Add(t.Context(), s, snapshot, AddOptions{Reference: "example.com/llm:1", Budget: budget}); err != nil {
		t.Fatal(err)
	}
	e, err := dir.Find(t.Context(), d.Digest)
	if err != nil || e == nil {
		t.Fatalf("find it: %v, %v", e, err)
	}
	defer e.Close()
	storetest.SameDevices(t, e, d, contents)
}
