package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/lab"
)

// TestStoreIndex: a store whose index and backup are damaged keeps its snapshots, without their names; one whose index cannot be written is found before a container is
// frozen; a damaged manifest neither stops prune nor costs its segments.
func TestStoreIndex(t *testing.T) {
	a, _ := pair(t)
	ctx, id, root := t.Context(), name(t), t.TempDir()
	startImage(t, a, shared.image, id, nil, "workload", "count", "--memory", "4")
	await(t, a, id)
	cryo := func(args ...string) lab.Result { return a.Cryo(ctx, append(args, "--root", root)...) }
	index := filepath.Join(root, "store", "index.json")
	ls := func() (all []struct{ Reference, Digest string }) {
		if err := json.Unmarshal([]byte(must(t, cryo("ls", "--json")).Stdout), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	must(t, cryo("checkpoint", id, "index/a:1", "--leave-running"))
	whole := ls()
	for _, path := range []string{index, filepath.Join(root, "index.backup.json")} {
		if err := os.Truncate(path, 10); err != nil {
			t.Fatal(err)
		}
	}
	lost := ls()
	if len(lost) != 1 || lost[0].Digest != whole[0].Digest || !strings.HasPrefix(lost[0].Reference, store.LostName+":") {
		t.Fatalf("of %v there is %v", whole, lost)
	}
	if r := cryo("verify", "index/a:1"); r.Code != codeNotFound || !strings.Contains(r.Stderr, "names are lost") {
		t.Errorf("the old name: exit %d\n%s", r.Code, r.Stderr)
	}
	must(t, cryo("tag", lost[0].Reference, "index/a:1"))
	must(t, cryo("rm", lost[0].Reference))
	must(t, cryo("verify", "index/a:1"))

	kept, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(index, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := cryo("checkpoint", id, "index/b:1", "--leave-running"); r.Code == 0 || strings.Contains(r.Stderr, "tag ") || !strings.Contains(r.Stderr, "index") {
		t.Errorf("an index that cannot be read: exit %d\n%s", r.Code, r.Stderr)
	}
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, kept, 0o600); err != nil {
		t.Fatal(err)
	}

	must(t, cryo("checkpoint", id, "index/b:1", "--leave-running"))
	manifest := filepath.Join(root, "store/blobs/sha256", strings.TrimPrefix(whole[0].Digest, "sha256:"))
	content, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"df"}, {"prune", "--dry-run"}, {"prune"}, {"rm", "index/b:1"}, {"prune"}} {
		if r := must(t, cryo(args...)); !strings.Contains(r.Stderr, "the manifest of index/a:1 cannot be read") {
			t.Errorf("%s says\n%s", args[0], r.Stderr)
		}
	}
	if err := os.WriteFile(manifest, content, 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, cryo("verify", "index/a:1"))
	must(t, cryo("rm", "index/a:1"))
	await(t, a, id)
}
