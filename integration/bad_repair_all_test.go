package integration

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestBadRepair damages memory in the local store, which another name holds too: pull fetches it again where a restore or verify has found the damage, and with
// --repair in any case.
func TestBadRepair(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "16")
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	layout := "oci:" + filepath.Join(t.TempDir(), "layout") + ":1"
	must(t, a.Cryo(t.Context(), "push", ref, layout))
	other := ref + "-other"
	must(t, a.Cryo(t.Context(), "tag", ref, other))
	forget(t, a, other)
	var segment ocispec.Descriptor
	for digest, size := range inspect(t, a, ref).segments() {
		if size > segment.Size {
			segment = ocispec.Descriptor{Digest: digest, Size: size}
		}
	}
	pull := func(t *testing.T, moves bool, args ...string) {
		t.Helper()
		var pulled struct{ BytesMoved int64 }
		out := must(t, a.Cryo(t.Context(), append([]string{"pull", "--json"}, args...)...)).Stdout
		if err := json.Unmarshal([]byte(out), &pulled); err != nil {
			t.Fatal(err)
		}
		if moves != (pulled.BytesMoved >= segment.Size) {
			t.Errorf("%d bytes were fetched, and the damaged blob has %d", pulled.BytesMoved, segment.Size)
		}
	}
	whole := func(t *testing.T) {
		t.Helper()
		for _, r := range []string{ref, other} {
			must(t, a.Cryo(t.Context(), "verify", r))
		}
		pull(t, false, ref, "--plain-http")
	}
	t.Run("found by a restore", func(t *testing.T) {
		damaged(t, storedAt(a, segment), damages[2].do, func() {
			id := name(t)
			cleanup(t, a, id)
			restored := a.Cryo(t.Context(), "restore", ref, "--name", id)
			eventually(t, "the damage is found", 30*time.Second, func() bool {
				_, status, err := a.Task(t.Context(), id)
				return restored.Code != 0 || err != nil || status == "STOPPED" // it may be found before the container runs
			})
			t.Logf("restore: %d %s", restored.Code, restored.Stderr)
			remove(t.Context(), a, id)
			refused(t, a, codeDamaged, "", "restore", ref, "--name", id)
			pull(t, true, ref, "--plain-http")
			whole(t)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
			counts(t, a, id)
		})
	})
	t.Run("found by verify", func(t *testing.T) {
		damaged(t, storedAt(a, segment), damages[0].do, func() {
			refused(t, a, codeDamaged, "", "verify", other)
			pull(t, true, ref, "--plain-http")
			whole(t)
		})
	})
	t.Run("not found yet", func(t *testing.T) {
		damaged(t, storedAt(a, segment), damages[1].do, func() {
			pull(t, false, ref, "--plain-http")
			pull(t, true, ref, "--plain-http", "--repair")
			whole(t)
		})
	})
	t.Run("from a file", func(t *testing.T) {
		damaged(t, storedAt(a, segment), damages[1].do, func() {
			must(t, a.Cryo(t.Context(), "pull", layout, "--repair"))
			whole(t)
		})
	})
	t.Run("small parts", func(t *testing.T) {
		for _, p := range parts(t, a, ref)[:3] {
			damaged(t, storedAt(a, p.desc), damages[2].do, func() {
				must(t, a.Cryo(t.Context(), "pull", ref, "--plain-http", "--repair"))
				must(t, a.Cryo(t.Context(), "verify", other))
			})
		}
	})
}
