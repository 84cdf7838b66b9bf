package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestCLIRemove removes snapshots that share memory: what another needs stays, and in the end nothing is left.
func TestCLIRemove(t *testing.T) {
	a, _ := pair(t)
	id, root := name(t), filepath.Join(a.Dir, "home/remove")
	t.Cleanup(func() { a.Run(cleanupContext(t), "rm", "-rf", root) })
	start(t, a, id, nil, "workload", "region", "--memory", "32")
	for _, ref := range []string{"cli/first:1", "cli/second:1"} {
		must(t, a.Cryo(t.Context(), "--root", root, "checkpoint", id, ref, "--leave-running", "--segment-size", "4MiB", "--parent", "none"))
		if answer, err := a.Ask(t.Context(), id, "runs", "10", "1"); err != nil || !answer.OK {
			t.Fatal(err, answer.Error)
		}
	}
	const memory = 32 << 20
	both := treeSize(t, filepath.Join(root, "store/blobs"))
	for _, test := range []struct {
		ref       string
		from, to  int64 // bytes freed
		remaining string
	}{
		{"cli/first:1", 1 << 20, memory / 2, "cli/second:1"},
		{"cli/second:1", memory, both, ""},
	} {
		var removed []struct{ Freed int64 }
		out := must(t, a.Cryo(t.Context(), "--root", root, "rm", "--json", test.ref)).Stdout
		if err := json.Unmarshal([]byte(out), &removed); err != nil || len(removed) != 1 {
			t.Fatalf("%v:\n%s", err, out)
		}
		after := treeSize(t, filepath.Join(root, "store/blobs"))
		if freed := removed[0].Freed; freed < test.from || freed > test.to || freed != both-after {
			t.Errorf("rm %s says %d bytes, and freed %d, want %d to %d", test.ref, freed, both-after, test.from, test.to)
		}
		both = after
		if test.remaining != "" {
			must(t, a.Cryo(t.Context(), "--root", root, "verify", test.remaining))
		}
	}
	if both != 0 {
		t.Errorf("%d bytes are left", both)
	}
}

// TestCLIDiskUsage takes a snapshot of a name that another had, and leaves a pull: cryo df shows what there is, cryo prune removes what nobody needs.
func TestCLIDiskUsage(t *testing.T) {
	a, _ := pair(t)
	id, root := name(t), filepath.Join(a.Dir, "home/usage")
	t.Cleanup(func() { a.Run(cleanupContext(t), "rm", "-rf", root) })
	start(t, a, id, nil, "workload", "region", "--memory", "32")
	cryo := func(args ...string) lab.Result {
		return a.Cryo(t.Context(), append([]string{"--root", root}, args...)...)
	}
	type space struct {
		Files int
		Bytes int64
	}
	type usage struct {
		Snapshots                []struct{ Size, Own, Shared int64 }
		Blobs, Unneeded, Partial space
	}
	look := func() usage { return said[usage](t, cryo("df", "--json")) }
	for range 2 {
		must(t, cryo("checkpoint", id, "cli/usage:1", "--leave-running", "--segment-size", "4MiB", "--parent", "none"))
		if answer, err := a.Ask(t.Context(), id, "runs", "500", "1"); err != nil || !answer.OK {
			t.Fatal(err, answer.Error)
		}
		u := look()
		if held := treeSize(t, filepath.Join(root, "store/blobs")); len(u.Snapshots) != 1 || u.Blobs.Bytes != held || u.Unneeded.Files != 0 || u.Snapshots[0].Own != held {
			t.Errorf("%d bytes are held, and there is %+v", held, u)
		}
	}
	must(t, cryo("checkpoint", id, "cli/usage:2", "--leave-running", "--segment-size", "4MiB"))
	u := look()
	if len(u.Snapshots) != 2 || u.Snapshots[0].Shared == 0 || u.Snapshots[0].Shared != u.Snapshots[1].Shared || u.Blobs.Bytes != u.Snapshots[0].Size+u.Snapshots[1].Own {
		t.Errorf("with an increment: %+v", u)
	}
	must(t, a.Run(t.Context(), "sh", "-c", "head -c 1000000 /dev/zero > "+filepath.Join(root, "partial", strings.Repeat("a", 64))))
	type pruned struct{ Unneeded, Partial space }
	for _, flags := range [][]string{{"--dry-run"}, nil} {
		if p := said[pruned](t, cryo(append([]string{"prune", "--json"}, flags...)...)); p.Unneeded.Files != 0 || p.Partial.Files != 1 || p.Partial.Bytes < 1000000 {
			t.Errorf("prune %v: %+v", flags, p)
		}
	}
	if u = look(); u.Partial.Files != 0 {
		t.Errorf("after cryo prune: %+v", u)
	}
	for command, words := range map[string]string{"df": "Interrupted pulls:", "prune": "that no snapshot needs"} {
		if out := must(t, cryo(command)).Stdout; !strings.Contains(out, words) {
			t.Errorf("%s:\n%s", command, out)
		}
	}
}
