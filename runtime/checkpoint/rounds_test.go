package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/runtime/runc"
)

// rounding is a container that writes down the rounds of a pre-dump.
type rounding struct {
	fake
	t     *testing.T
	pages map[*os.File]bool // those that were open
	round int
}

func (f *rounding) Checkpoint(ctx context.Context, d runc.Dump) error {
	parent := "none"
	if d.Parent != "" {
		if filepath.IsAbs(d.Parent) {
			f.t.Errorf("the parent %s is not relative", d.Parent)
		}
		if _, err := os.Stat(filepath.Join(d.Images, d.Parent)); err != nil {
			f.t.Error(err)
		}
		parent = filepath.Base(d.Parent)
	}
	if !d.PreDump {
		f.did = append(f.did, "parent "+parent)
		return f.fake.Checkpoint(ctx, d)
	}
	f.round++
	f.pages[d.Pages] = true
	if d.Exit || d.Pages == nil {
		f.t.Errorf("a round is %+v", d)
	}
	return f.do(fmt.Sprintf("round %d in %s, parent %s", f.round, filepath.Base(d.Images), parent))
}

func TestRounds(t *testing.T) {
	first, second := "round 1 in round-1, parent none", "round 2 in round-2, parent round-1"
	for _, test := range []struct {
		name   string
		count  int
		frozen bool
		fail   string
		want   []string
		err    bool
	}{
		{name: "none", want: []string{"pause", "parent none", "dump", "held", "thaw"}},
		{name: "one", count: 1, want: []string{first, "pause", "parent round-1", "dump", "held", "thaw"}},
		{name: "two", count: 2, want: []string{first, second, "pause", "parent round-2", "dump", "held", "thaw"}},
		{name: "a round fails", count: 2, fail: first, want: []string{first, "thaw"}, err: true},
		{name: "the second fails", count: 2, fail: second, want: []string{first, second, "thaw"}, err: true},
		{name: "no pages", count: 2, fail: "pages", want: []string{"thaw"}, err: true},
		{name: "pause fails", count: 1, fail: "pause", want: []string{first, "pause", "thaw"}, err: true},
		{name: "dump fails", count: 1, fail: "dump", want: []string{first, "pause", "parent round-1", "dump", "thaw"}, err: true},
		{name: "paused by the client", count: 2, frozen: true, want: []string{"parent none", "dump", "held"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &rounding{fake: fake{fail: test.fail}, t: t, pages: make(map[*os.File]bool)}
			r := Request{ID: "c", Frozen: test.frozen, Alive: func() bool { return true }, Dump: runc.Dump{Images: t.TempDir(), Exit: true}, Hold: holder{f: &f.fake, decision: Resume}}
			r.Rounds = &Rounds{Count: test.count, Dir: t.TempDir(), Pages: func() (*os.File, error) {
				if test.fail == "pages" {
					return nil, errFake
				}
				return os.Open(os.DevNull)
			}}
			_, err := Run(t.Context(), f, r)
			if !slices.Equal(f.did, test.want) {
				t.Errorf("did %q, want %q", f.did, test.want)
			}
			if (err != nil) != test.err || err != nil && !errors.Is(err, errFake) {
				t.Errorf("error %v", err)
			}
			for pages := range f.pages {
				if err := pages.Close(); !errors.Is(err, os.ErrClosed) {
					t.Error("the socket of a round is left open")
				}
			}
		})
	}
}

// TestRoundConnections: each round comes over a connection of its own, of which none is the dump's.
func TestRoundConnections(t *testing.T) {
	client, dir := listen(t)
	client.Options = Options{Pages: true, PreDump: 2}
	go func() {
		shim, _, err := Join(context.Background(), dir)
		if err != nil {
			t.Error(err)
			return
		}
		for i, connect := range []func() (*os.File, error){shim.Pages, shim.Round, shim.Round} {
			f, err := connect()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprintf(f, "%d", i)
			f.Close()
		}
	}()
	go func() { _, _ = client.Frozen(t.Context()) }()
	for i, accept := range []func(context.Context) (io.ReadCloser, error){
		func(ctx context.Context) (io.ReadCloser, error) { return client.Pages(ctx) },
		func(ctx context.Context) (io.ReadCloser, error) { return client.Round(ctx) },
		func(ctx context.Context) (io.ReadCloser, error) { return client.Round(ctx) },
	} {
		conn, err := accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("connection %d gives %q, %v", i, got, err)
		}
		conn.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Round(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
