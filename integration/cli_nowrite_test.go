package integration

import (
	"strings"
	"testing"
)

// TestCLIFullOutput: a checkpoint and a restore whose result cannot be printed have happened, and say so.
func TestCLIFullOutput(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cli/full:1"
	startImage(t, a, shared.image, id, nil, "workload", "count")
	await(t, a, id)
	to := id + "-restored"
	cleanup(t, a, to)
	for _, args := range [][]string{{"checkpoint", id, ref, "--json"}, {"restore", ref, "--name", to, "--json"}} {
		r := must(t, a.Run(t.Context(), append([]string{"sh", "-c", `exec cryo "$@" >/dev/full`, "sh"}, args...)...))
		if !strings.Contains(r.Stderr, "warning: the result could not be printed: ") {
			t.Errorf("%s says\n%s", args[0], r.Stderr)
		}
	}
	await(t, a, to)
}

// TestCLIReadOnlyStore: what only reads works on a store that cannot be written, and the store stays as it is.
func TestCLIReadOnlyStore(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count", "--memory", "4"})
	to := shared.registry.Reference("cli/read-only:1")
	away(t, to)
	for _, args := range [][]string{
		{"prune", "--dry-run"}, {"verify", f.ref}, {"inspect", f.ref}, {"inspect", f.ref, "--check"}, {"ls"}, {"df"}, {"push", f.ref, to, "--plain-http"}, {"push", f.ref, "oci-archive:" + a.Dir + "/home/read-only.tar"},
	} {
		run := `mount --bind "$CRYO_ROOT" "$CRYO_ROOT" && mount -o remount,bind,ro "$CRYO_ROOT" && ! touch "$CRYO_ROOT/x" 2>/dev/null && exec cryo "$@"`
		must(t, a.Run(t.Context(), append([]string{"unshare", "--mount", "sh", "-c", run, "sh"}, args...)...))
	}
}
