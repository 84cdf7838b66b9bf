package integration

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInsideHoles has a file of 30 GiB in the container that is a hole but for some bytes: a checkpoint takes no longer for it, the snapshot is no larger, and it comes back as
// it was, without being written out.
func TestInsideHoles(t *testing.T) {
	const size = 30 << 30
	data := map[int64]string{0: "begin", 5<<20 + 4000: "across two pages", 20 << 30: "middle", size - 3: "end"}
	a, b := pair(t)
	guarded(t, a)
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, nil, "workload", "count")
	before := await(t, a, j.id)
	pid, _, err := a.Task(t.Context(), j.id)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(fmt.Sprintf("/proc/%d/root/sparse", pid))
	if err != nil {
		t.Fatal(err)
	}
	for at, text := range data {
		if _, err := f.WriteAt([]byte(text), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	away(t, j.ref())
	r, c := measured(t, a, "checkpoint", j.id, j.ref(), "--push", "--plain-http")
	must(t, r)
	affordable(t, r, c, 128<<20)
	if size := inspect(t, a, j.ref()).Size; size > 16<<20 {
		t.Errorf("the snapshot has %d bytes", size)
	}
	cleanup(t, b, j.id)
	r, c = measured(t, b, "restore", j.ref(), "--plain-http", "--wait", "--name", j.id)
	must(t, r)
	affordable(t, r, c, 128<<20)
	goneOn(t, before, await(t, b, j.id))
	if pid, _, err = b.Task(t.Context(), j.id); err != nil {
		t.Fatal(err)
	}
	if f, err = os.Open(fmt.Sprintf("/proc/%d/root/sparse", pid)); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size != size || st.Blocks > 64 || time.Since(time.Unix(st.Mtim.Unix())) < time.Millisecond {
		t.Errorf("it has %d bytes in %d blocks (%v)", st.Size, st.Blocks, err)
	}
	for at, text := range data {
		b := make([]byte, min(int64(len(text))+2, size-max(at-1, 0)))
		want := text + "\x00"
		if at > 0 {
			want = "\x00" + want
		} else {
			want += "\x00"
		}
		if _, err := f.ReadAt(b, max(at-1, 0)); err != nil || string(b) != want[:len(b)] {
			t.Errorf("at %d it is %q, not %q (%v)", at, b, want, err)
		}
	}
}
