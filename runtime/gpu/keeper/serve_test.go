package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// status reads a figure of a process, in bytes.
func status(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, name+": %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatalf("no %s in %s", name, text)
	return 0
}

// serving is a keeper in this process.
func serving(t *testing.T, f *fakeDriver) (c *channel.Channel, ended <-chan error) {
	t.Helper()
	own, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(other.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	theirs, err := channel.Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), theirs, func() (Driver, error) { return f, nil }) }()
	return own, done
}

func asked(t *testing.T, c *channel.Channel, r any, files ...*os.File) (answer, error) {
	t.Helper()
	if err := c.Send(r, descriptors(files)...); err != nil {
		return answer{}, err
	}
	var a answer
	for !a.Done {
		got, err := c.Receive(&a)
		if err != nil {
			return a, err
		}
		channel.Close(got)
	}
	return a, nil
}

// TestStreams: all streams of all devices copy side by side.
func TestStreams(t *testing.T) {
	var mu sync.Mutex
	n, all := 0, make(chan struct{})
	meet := func() {
		mu.Lock()
		if n++; n == Streams*len(uuids) {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-time.After(30 * time.Second):
			t.Error("not all streams work")
		}
	}
	f := newFake("", &fakeDevice{uuid: uuids[0], total: 1 << 30, meet: meet}, &fakeDevice{uuid: uuids[1], total: 1 << 30, meet: meet})
	c, ended := serving(t, f)
	g := give(t, slicesOf(2, Streams*len(uuids))...)
	for i := range g.pieces {
		g.pieces[i].Address = uint64(i) * ring.Window // each is a window of its own
	}
	if a, err := asked(t, c, request{Do: verbOpen, Version: Version, Ring: &ring.Geometry{Slots: Streams * len(uuids), SlotBytes: small.SlotBytes}}); err != nil || a.Error != nil {
		t.Fatalf("%+v, %v", a, err)
	}
	if a, err := asked(t, c, request{Do: verbHold, Pieces: g.pieces}, g.files...); err != nil || a.Error != nil {
		t.Fatalf("%+v, %v", a, err)
	}
	got, err := drain(t, g.pieces, func(peer *os.File) error {
		a, err := asked(t, c, request{Do: verbSend}, peer)
		peer.Close()
		if err == nil && a.Error != nil {
			err = a.Error.err()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sent", got, g.contents)
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if f.pinned != 1 {
		t.Errorf("%d rings are pinned", f.pinned)
	}
}

// TestServeRefuses: what no client sends ends the keeper, or is refused.
func TestServeRefuses(t *testing.T) {
	open := request{Do: verbOpen, Version: Version, Ring: &small}
	for name, test := range map[string]struct {
		before []request
		ask    any
		say    string // in an answer; "": the keeper ends
	}{
		"let go before open": {nil, request{Do: verbLetGo}, "open is the first"},
		"open twice":         {[]request{open}, open, "open is the first"},
		"another version":    {nil, request{Do: verbOpen, Version: 7, Ring: &small}, "version 7"},
		"no such device":     {nil, request{Do: verbOpen, Version: Version, Ring: &small, Devices: []string{"GPU-00000009-0000-4000-8000-00000000000a"}}, "not found"},
		"no ring":            {nil, request{Do: verbOpen, Version: Version}, ""},
		"nothing to do":      {nil, request{}, ""},
		"no descriptor":      {[]request{open}, request{Do: verbSend}, ""},
		"an unknown field":   {nil, map[string]any{"do": "open", "more": 1}, ""},
		"nothing to copy":    {[]request{open}, request{Do: verbCopy}, ""},
	} {
		c, ended := serving(t, newFake("", &fakeDevice{uuid: uuids[0], total: 1 << 30}))
		for _, r := range test.before {
			if a, err := asked(t, c, r); err != nil || a.Error != nil {
				t.Fatalf("%s: %+v, %v", name, a, err)
			}
		}
		a, err := asked(t, c, test.ask)
		switch {
		case test.say == "" && err == nil:
			t.Errorf("%s: %+v", name, a)
		case test.say == "":
			if err := <-ended; err == nil {
				t.Errorf("%s: it ends without an error", name)
			}
		case err != nil || a.Error == nil || !strings.Contains(a.Error.err().Error(), test.say):
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		c.Close()
	}
}

// TestServeEndsByContext is what SIGTERM does.
func TestServeEndsByContext(t *testing.T) {
	own, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	defer other.Close()
	fd, err := unix.FcntlInt(other.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := channel.Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := Serve(ctx, theirs, func() (Driver, error) { return newFake(""), nil }); err != nil {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"do":"open","version":1,"ring":{"Slots":4,"SlotBytes":4096},"devices":["GPU-00000001-0000-4000-8000-00000000000a"]}`,
		`{"do":"hold","pieces":[{"device":"GPU-00000001-0000-4000-8000-00000000000a","size":2097152}]}`,
		`{"do":"make","pieces":[{"device":"GPU-1","size":2097152}]}`, `{"do":"room","spare":-1}`, `{"do":"send"}`, `{"do":"let go"}`, `{"do":"room"} {}`, `[]`, ``,
	} {
		f.Add([]byte(seed), 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, files int) {
		r, err := decodeRequest(data, files)
		if err != nil {
			return
		}
		for _, p := range r.Pieces {
			if check(p) != nil {
				t.Errorf("let through %q", data)
			}
		}
		if r.Do == verbHold && files != len(r.Pieces) || r.Spare < 0 || len(r.Pieces) > batch {
			t.Errorf("let through %q with %d", data, files)
		}
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodeRequest(line, files); err != nil || !reflect.DeepEqual(again, r) && !bytes.Contains(data, []byte("[]")) {
			t.Errorf("%q became %+v, %v", line, again, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"done":true}`, `{"done":true,"room":true}`, `{"done":true,"error":{"call":{"call":"cuMemMap","code":1,"name":"n"},"doing":"map: "}}`,
		`{"done":true,"error":{"reason":"r","kind":"invalid","hint":"h"}}`, `{"done":true,"error":{"driver":{"fault":"old","message":"m"}}}`, `{}`, ``,
	} {
		f.Add([]byte(seed), 0)
	}
	r := request{Do: verbMake, Pieces: []spec.GPUPiece{{Device: uuids[0], Size: 2 * mib}}}
	f.Fuzz(func(t *testing.T, data []byte, files int) {
		a, err := decodeAnswer(data, r, files)
		if err != nil {
			return
		}
		if (files == 1) != (a.Done && a.Error == nil) {
			t.Errorf("let through %q with %d", data, files)
		}
		if a.Error != nil {
			if err := a.Error.err(); err == nil || err.Error() == "never" {
				t.Errorf("%q is %v", data, err)
			}
		}
	})
}

// TestClears: what is made is zero when its descriptors come, and each device is waited for once.
func TestClears(t *testing.T) {
	a, b := &fakeDevice{uuid: uuids[0], total: 1 << 30}, &fakeDevice{uuid: uuids[1], total: 1 << 30}
	f := newFake("", a, b)
	c, ended := serving(t, f)
	g := give(t, 2, 4, 2, 4, 2)
	if a, err := asked(t, c, request{Do: verbOpen, Version: Version, Devices: uuids, Ring: &small}); err != nil || a.Error != nil {
		t.Fatalf("%+v, %v", a, err)
	}
	if a, err := asked(t, c, request{Do: verbHold, Pieces: g.pieces}, g.files...); err != nil || a.Error != nil {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := c.Send(request{Do: verbMake, Pieces: g.pieces}); err != nil {
		t.Fatal(err)
	}
	var answer answer
	fds, err := c.Receive(&answer)
	if err != nil || answer.Error != nil || len(fds) != len(g.pieces) {
		t.Fatalf("%+v, %d descriptors, %v", answer, len(fds), err)
	}
	for i, f := range filesOf(fds) {
		content := make([]byte, g.pieces[i].Size)
		if _, err := f.ReadAt(content, 0); err != nil || !bytes.Equal(content, make([]byte, len(content))) {
			t.Errorf("piece %d has what somebody else has left, or cannot be read: %v", i, err)
		}
		f.Close()
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if want := [][]int{{3}, {2}}; !reflect.DeepEqual([][]int{a.cleared, b.cleared}, want) {
		t.Errorf("cleared %v and %v, want %v", a.cleared, b.cleared, want)
	}
	same(t, "held before", contents(t, g), g.contents)
	if f.pinned != 1 || f.sparse > 0 {
		t.Errorf("%d rings are pinned, %d of the pages have got memory only then", f.pinned, f.sparse)
	}
}

// contents are those of memory that was given.
func contents(t *testing.T, g given) (all [][]byte) {
	t.Helper()
	for i, f := range g.files {
		b := make([]byte, g.pieces[i].Size)
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}
