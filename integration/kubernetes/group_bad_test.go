package kubernetes

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
)

// disturbed is a ring of two pods and its nodes.
type disturbed struct {
	podRing
	leads, other *cluster.Node // of the coordinator, and of the other member
}

// groupSteps are the steps of a member in a group's checkpoint.
var groupSteps = []string{"admitted", "frozen", "held", "complete", "told"}

// disturbedRing starts a ring of two pods on nodes with cryo node.
func disturbedRing(t *testing.T) disturbed {
	t.Helper()
	serveNodes(t)
	r := newPodRing(t, 2, "")
	first := slices.MinFunc(r.pods, func(a, b *cluster.Pod) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	if first.Spec.NodeName == shared.B.Name {
		return disturbed{r, shared.B, shared.A}
	}
	return disturbed{r, shared.A, shared.B}
}

// signal takes a checkpoint of the group. At a step it sends a signal to cryo node on victim, while the other node is held up ahead of that step. It fails the test unless all pods run on, the status contains a reason, and the
// registry has an index exactly if the status is Published.
func (r disturbed) signal(t *testing.T, step string, victim *cluster.Node, signal syscall.Signal) {
	t.Helper()
	held, waits := r.other, r.leads // the member that is held up, and another that waits for it
	if victim == r.other {
		held, waits = r.leads, r.other
	}
	open := reaches(step).set(t, held)
	group, ref := r.checkpoint(t, "holdTimeoutSeconds: 60")
	eventually(t, "step "+step, func() bool { return groupNow(t, group).step(waits) == step })
	pid := servicePID(t, victim)
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	if signal == syscall.SIGSTOP {
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	if signal == syscall.SIGKILL {
		time.Sleep(time.Second)
	}
	open()
	g := ends(t, group)
	index := groupIndex(t, ref)
	if (g.Status.Phase == "Published") != (index != nil) || index != nil && step != "told" || g.Status.Reason == "" {
		t.Errorf("%+v; the registry has %+v", g.Status, index)
	}
	if signal == syscall.SIGSTOP {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	r.goesRound(t)
	renew(t, victim)
}

// isTaken takes a checkpoint of the group that nothing disturbs.
func (r disturbed) isTaken(t *testing.T) {
	t.Helper()
	group, ref := r.checkpoint(t, "")
	r.published(t, ends(t, group), ref)
	r.goesRound(t)
}

// TestPodGroupMemberKilled kills cryo node at each step, on the node of the member that does not coordinate.
func TestPodGroupMemberKilled(t *testing.T) {
	r := disturbedRing(t)
	for _, step := range groupSteps {
		t.Run(step, func(t *testing.T) { r.signal(t, step, r.other, syscall.SIGKILL) })
	}
	r.isTaken(t)
}

// TestPodGroupCoordinatorKilled kills the coordinator's cryo node at each step, and when the index is in the registry.
func TestPodGroupCoordinatorKilled(t *testing.T) {
	r := disturbedRing(t)
	for _, step := range groupSteps {
		t.Run(step, func(t *testing.T) { r.signal(t, step, r.leads, syscall.SIGKILL) })
	}
	t.Run("published", func(t *testing.T) {
		open := permits("complete").set(t, r.leads)
		group, ref := r.checkpoint(t, "")
		eventually(t, "the index", func() bool { return groupIndex(t, ref) != nil })
		if err := syscall.Kill(servicePID(t, r.leads), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		open()
		if g := ends(t, group); g.Status.Phase != "Published" || g.Status.Reason == "" || g.Status.Digest == "" {
			t.Errorf("%+v", g.Status)
		}
		r.goesRound(t)
		renew(t, r.leads)
	})
	r.isTaken(t)
}

// TestPodGroupSilent ends cryo node, stops it (after 15 s of silence the others take it for dead), keeps a member from taking part, and deletes the object.
func TestPodGroupSilent(t *testing.T) {
	r := disturbedRing(t)
	t.Run("ended", func(t *testing.T) { r.signal(t, "held", r.leads, syscall.SIGTERM) })
	t.Run("silent member", func(t *testing.T) { r.signal(t, "held", r.other, syscall.SIGSTOP) })
	t.Run("silent coordinator", func(t *testing.T) { r.signal(t, "told", r.leads, syscall.SIGSTOP) })
	t.Run("absent", func(t *testing.T) {
		open := turnstile{"?members.orValue({}).size() == 0", `{"members":{"x":{"container":"x"}}}`}.set(t, r.other)
		group, ref := r.checkpoint(t, "")
		if g := ends(t, group); g.Status.Phase != "Failed" || !strings.Contains(g.Status.Reason, "does not take part") || groupIndex(t, ref) != nil {
			t.Errorf("%+v", g.Status)
		}
		open()
		r.goesRound(t)
	})
	t.Run("deleted", func(t *testing.T) {
		open := reaches("held").set(t, r.other)
		group, ref := r.checkpoint(t, "")
		eventually(t, "step held", func() bool { return groupNow(t, group).step(r.leads) == "held" })
		must(t, shared.Kubectl(t.Context(), "delete", "checkpointgroup", group))
		r.goesRound(t)
		if index := groupIndex(t, ref); index != nil {
			t.Errorf("the registry has %+v", index)
		}
		open()
	})
	r.isTaken(t)
}
