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

// signal takes the group, and sends a signal to cryo node on victim when its node has come to a step and the other one has not: all pods run on, the status says why, and the registry has an index only where the coordinator
// says so.
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

// isTaken takes the group, which nothing disturbs.
func (r disturbed) isTaken(t *testing.T) {
	t.Helper()
	group, ref := r.checkpoint(t, "")
	r.published(t, ends(t, group), ref)
	r.goesRound(t)
}

// TestPodGroupMemberKilled has cryo node die at each step on the node of a member that does not lead.
func TestPodGroupMemberKilled(t *testing.T) {
	r := disturbedRing(t)
	for _, step := range []string{"admitted", "frozen", "held", "complete", "told"} {
		t.Run(step, func(t *testing.T) { r.signal(t, step, r.other, syscall.SIGKILL) })
	}
	r.isTaken(t)
}

// TestPodGroupCoordinatorKilled has cryo node die at each step on the coordinator's node, and once the index is in the registry.
func TestPodGroupCoordinatorKilled(t *testing.T) {
	r := disturbedRing(t)
	for _, step := range []string{"admitted", "frozen", "held", "complete", "told"} {
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

// TestPodGroupSilent has cryo node end or be silent, which is as death 15 s later, a member not take part, and the object be deleted.
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
