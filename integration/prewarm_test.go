package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/integration/lab"
)

// warmed is what cryo says of a prewarmed snapshot.
type warmed struct {
	Reference string
	Digest    digest.Digest
	Size      int64
	Fetched   bool
	Already   bool
	Removed   []warmed
}

// prewarm prewarms a snapshot.
func prewarm(t *testing.T, h *lab.Host, ref string, flags ...string) (w warmed) {
	t.Helper()
	return prewarmIn(t, h, "", ref, flags...)
}

// prewarmIn prewarms by more configuration than the host has.
func prewarmIn(t *testing.T, h *lab.Host, more, ref string, flags ...string) (w warmed) {
	t.Helper()
	out := must(t, configured(t, h, more, append([]string{"prewarm", ref, "--json"}, flags...)...)).Stdout
	if err := json.Unmarshal([]byte(out), &w); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return w
}

// warm lists what is prewarmed on a host.
func warm(t *testing.T, h *lab.Host) (all []warmed) {
	t.Helper()
	out := must(t, h.Cryo(t.Context(), "prewarm", "ls", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

// wantWarm wants these snapshots to be prewarmed, in the order of their last use, and no record of others.
func wantWarm(t *testing.T, h *lab.Host, refs ...string) {
	t.Helper()
	var got []string
	for _, w := range warm(t, h) {
		got = append(got, w.Reference)
	}
	if fmt.Sprint(got) != fmt.Sprint(refs) {
		t.Errorf("%s are prewarmed, want %s", got, refs)
	}
	if records, err := os.ReadDir(filepath.Join(h.CryoRoot(), "prewarmed")); err != nil || len(records) != len(refs) {
		t.Errorf("there are records %v, %v", records, err)
	}
}

// cold ends what the test has prewarmed.
func cold(t *testing.T, h *lab.Host) {
	t.Helper()
	t.Cleanup(func() { h.Cryo(cleanupContext(t), "prewarm", "rm", "--all") })
}

// restoreOnce restores a snapshot under a name of its own.
func restoreOnce(t *testing.T, h *lab.Host, ref string, flags ...string) (id string) {
	t.Helper()
	id = name(t)
	cleanup(t, h, id)
	if err := h.Cryo(t.Context(), append([]string{"restore", ref, "--name", id}, flags...)...).Err(); err != nil {
		t.Error(err)
	}
	return id
}

// wantCached wants a snapshot's memory to be in the page cache.
func wantCached(t *testing.T, h *lab.Host, ref string) {
	t.Helper()
	for dg := range inspect(t, h, ref).segments() {
		f, err := os.Open(storedAt(h, ocispec.Descriptor{Digest: dg}))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if cached, total, err := format.CachedPages(f, 0, info.Size()); err != nil || cached < total {
			t.Errorf("%d of %d pages are in the page cache, %v", cached, total, err)
		}
	}
}

// diskBudget is configuration of so many bytes, in whole MiB.
func diskBudget(bytes int64) string { return fmt.Sprintf("[prewarm]\ndisk = %d\n", bytes>>20) }
