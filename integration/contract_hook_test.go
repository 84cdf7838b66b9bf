package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// hooked are flags of ctr run for a container with hooks, as NAME=COMMAND.
func hooked(hooks ...string) (flags []string) {
	for _, h := range hooks {
		flags = append(flags, "--annotation", "io.cryo."+h)
	}
	return flags
}

// ranHooks is what hooks have written to the file /ran.
func ranHooks(t *testing.T, h *lab.Host, id string) []string {
	t.Helper()
	return strings.Fields(must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "ran", id, "sh", "-c", "cat /ran; true")).Stdout)
}

// TestContractHooks runs the commands of a container before and after its checkpoint, and after its restore: as its user, with its environment.
func TestContractHooks(t *testing.T) {
	a, b := pair(t)
	flags := append(hooked("before-checkpoint=echo before-$ROLE >>/ran", "after-checkpoint=echo after >>/ran", `after-restore=["sh","-c","echo restored >>/ran; hostname >>/ran"]`), "--env", "ROLE=first", "--hostname", "own")
	j := journey{id: name(t), run: flags, checkpoint: []string{"--leave-running"}}
	start(t, a, j.id, flags, "workload", "count")
	before := await(t, a, j.id)
	checkpoint(t, a, j)
	if ran := ranHooks(t, a, j.id); !slices.Equal(ran, []string{"before-first", "after"}) {
		t.Errorf("of a container that went on: %v", ran)
	}
	goneOn(t, before, restore(t, b, j))
	if ran := ranHooks(t, b, j.id); !slices.Equal(ran, []string{"before-first", "restored", "own"}) {
		t.Errorf("of a container that was restored: %v", ran)
	}
}
