package kubernetes

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// other is the other node.
func other(n string) *cluster.Node {
	if n == shared.A.Name {
		return shared.B
	}
	return shared.A
}

// ended takes a ring's checkpoint, which ends its pods, and deletes them. It returns the checkpoint's reference, and what each pod answered before.
func (r podRing) ended(t *testing.T) (ref string, was map[string]lab.Answer) {
	t.Helper()
	was = map[string]lab.Answer{}
	for _, p := range r.pods {
		was[p.Metadata.Name] = ask(t, p.Metadata.Name)
	}
	group, ref := r.checkpoint(t, "leaveRunning: false")
	r.published(t, ends(t, group), ref)
	for _, p := range r.pods {
		if err := shared.DeletePod(t.Context(), p.Metadata.Name); err != nil {
			t.Fatal(err)
		}
	}
	return ref, was
}

// shareRoots has cryo node find cryo's root directory where contrib/kubernetes has it: the nodes' shims have one of the test's own.
func shareRoots(t *testing.T) {
	t.Helper()
	for _, n := range []*cluster.Node{shared.A, shared.B} {
		must(t, n.Run(t.Context(), "sh", "-c", `mkdir -p "$1" /var/lib/cryo && mount --bind "$1" /var/lib/cryo`, "sh", n.CryoRoot()))
		t.Cleanup(func() { must(t, n.Run(cleanupContext(t), "umount", "/var/lib/cryo")) })
	}
}

// restoreGroup is the annotation of a pod that names its CheckpointGroup.
const restoreGroup = "io.cryo.restore-group"

// ringRestore is the restore of a ring: pods that are created for it.
type ringRestore struct {
	group, label string
	names        []string // of the new pods, by the order of the ring
	on           []*cluster.Node
}

// restore asks for the restore of a ring, each pod on the other node. change changes the i-th pod; nil: none.
func (r podRing) restore(t *testing.T, ref, spec string, change func(i int, p *pod)) ringRestore {
	t.Helper()
	label := name(t)
	again := ringRestore{group: name(t), label: ringLabel + ": " + label}
	newGroup(t, again.group, again.label, shared.Registry.Reference(ref), restores+spec)
	for i, old := range r.pods {
		p := ringPod(t, other(old.Spec.NodeName), label, "restartPolicy: Never")
		p.annotations = map[string]string{restoreGroup: again.group, "io.cryo.restore-member": old.Metadata.Name}
		if change != nil {
			change(i, &p)
		}
		apply(t, p.yaml())
		again.names, again.on = append(again.names, p.name), append(again.on, p.node)
	}
	return again
}

// running waits until all pods of a restore are ready.
func (a ringRestore) running(t *testing.T) podRing {
	t.Helper()
	r := podRing{label: a.label}
	for _, name := range a.names {
		r.pods = append(r.pods, ready(t, name))
	}
	return r
}

// fails waits until a restore has failed, and checks that no pod of it has run, and that nothing of it is left.
func (a ringRestore) fails(t *testing.T, reason string) {
	t.Helper()
	if g := ends(t, a.group); g.Status.Phase != "Failed" || !strings.Contains(g.Status.Reason, reason) {
		t.Errorf("%+v, want the reason %q", g.Status, reason)
	}
	a.none(t)
}

// none waits until the pods of a restore have ended, and checks that nothing of them is left.
func (a ringRestore) none(t *testing.T) {
	t.Helper()
	for _, name := range a.names {
		p, err := shared.WaitPod(t.Context(), name, "ended or gone", func(p *cluster.Pod) bool { return p.Status.Phase == "Failed" || !p.Metadata.DeletionTimestamp.IsZero() })
		if gone := (*cluster.StatusError)(nil); errors.As(err, &gone) && gone.Code == http.StatusNotFound {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range p.Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil {
				t.Logf("%s: %s", name, end.Message)
			}
		}
		if err := shared.DeletePod(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []*cluster.Node{shared.A, shared.B} {
		for _, p := range n.Running() {
			if p.Command == "workload" {
				t.Errorf("%s has process %d of a restore that has failed", n.Name, p.PID)
			}
		}
	}
}

// stepOf is the step that a pod has reached.
func (g checkpointGroup) stepOf(pod string) string {
	for _, n := range g.Status.Nodes {
		if m, has := n.Members[pod]; has {
			return m.Step
		}
	}
	return ""
}

// killContainer kills a pod's first container.
func killContainer(t *testing.T, n *cluster.Node, p *cluster.Pod) {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	for _, process := range n.Running() {
		if cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process.PID)); err == nil && strings.Contains(string(cgroups), id) {
			if err := syscall.Kill(process.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no process of container %s runs on %s", id, n.Name)
}

// waits waits until kubectl shows that a group waits for one member, and for no other.
func waits(t *testing.T, group, member string) {
	t.Helper()
	var shown string
	eventually(t, "the status of a group that waits", func() bool {
		shown = must(t, shared.Kubectl(t.Context(), "get", "checkpointgroup", group)).Stdout
		return strings.Contains(shown, "for the members "+member+";")
	})
	if t.Log(shown); groupNow(t, group).Status.Phase != "Waiting" {
		t.Errorf("%+v", groupNow(t, group).Status)
	}
}

// TestPodGroupRestore takes rings of two and eight pods, which end, and restores them as other pods, each on another node and with another address: no message is lost. The restored pods are taken in step once more.
// The last pod comes late: until then the status names its member. A container of them that is killed is started, and not restored again.
func TestPodGroupRestore(t *testing.T) {
	shareRoots(t)
	serveNodes(t)
	for _, members := range []int{2, 8} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			r := newPodRing(t, members, "restartPolicy: Never")
			ref, was := r.ended(t)
			again := r.restore(t, ref, "", func(i int, p *pod) {
				if p.spec = ""; i == members-1 {
					waits(t, p.annotations[restoreGroup], p.annotations["io.cryo.restore-member"])
				}
			})
			g := ends(t, again.group)
			if g.Status.Phase != "Restored" || g.Status.Reason != "" || g.Status.Digest == "" {
				t.Fatalf("%+v", g.Status)
			}
			is := again.running(t)
			for i, p := range is.pods {
				old, now := r.pods[i], ask(t, p.Metadata.Name)
				if now.Life != was[old.Metadata.Name].Life || p.Status.PodIP == old.Status.PodIP || p.Spec.NodeName == old.Spec.NodeName {
					t.Errorf("%s at %s on %s answers %+v; it was %+v at %s on %s", p.Metadata.Name, p.Status.PodIP, p.Spec.NodeName, now, was[old.Metadata.Name], old.Status.PodIP, old.Spec.NodeName)
				}
				must(t, shared.Exec(t.Context(), p.Metadata.Name, "", "grep", "-q", old.Metadata.Name, "/.cryo/restored.json"))
			}
			is.goesRound(t)
			group, ref := is.checkpoint(t, "")
			is.published(t, ends(t, group), ref)
			is.goesRound(t)
			victim := is.pods[0]
			killContainer(t, again.on[0], victim)
			if _, err := shared.WaitPod(t.Context(), victim.Metadata.Name, "started again", func(p *cluster.Pod) bool {
				s := p.Status.ContainerStatuses
				return len(s) == 1 && s[0].RestartCount > 0 && s[0].State.Running != nil
			}); err != nil {
				t.Error(err)
			}
			if events, err := shared.Events(t.Context(), victim.Metadata.Name); err != nil || !strings.Contains(fmt.Sprint(events), "Restored") {
				t.Errorf("events %v, %v", events, err)
			}
		})
	}
}

// TestPodGroupRestoreBad has one member of two not be restored, cryo node die on either node while all wait, and the object be deleted: no pod runs, the status says why, nothing is left, and the group can be restored
// afterwards. If cryo node dies on a node that waits for the other pod, the group is restored.
func TestPodGroupRestoreBad(t *testing.T) {
	shareRoots(t)
	serveNodes(t)
	r := newPodRing(t, 2, "restartPolicy: Never")
	ref, was := r.ended(t)
	const patience = "holdTimeoutSeconds: 100"
	t.Run("misfit", func(t *testing.T) {
		again := r.restore(t, ref, patience, func(i int, p *pod) {
			if i == 1 {
				p.spec += "\nvolumes: [{name: more, emptyDir: {}}]"
				p.container += "\nvolumeMounts: [{name: more, mountPath: /more}]"
			}
		})
		again.fails(t, "mounts")
	})
	t.Run("deleted", func(t *testing.T) { // the kubelet lets the start of a waiting pod go on, and ends the pod when it runs
		open := reaches("restored").set(t, other(r.pods[1].Spec.NodeName))
		again := r.restore(t, ref, patience, nil)
		eventually(t, "step restored", func() bool { return groupNow(t, again.group).stepOf(again.names[0]) == "restored" })
		must(t, shared.Kubectl(t.Context(), "delete", "pod", again.names[0], "--wait=false"))
		time.Sleep(time.Second)
		open()
		if g := ends(t, again.group); g.Status.Phase != "Restored" {
			t.Errorf("%+v", g.Status)
		}
		ready(t, again.names[1])
		for _, name := range again.names {
			if err := shared.DeletePod(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("waits", func(t *testing.T) { // the next cryo node takes part, and the kubelet creates the container again
		again := r.restore(t, ref, patience, func(i int, p *pod) {
			if p.spec = ""; i == 0 {
				return
			}
			waits(t, p.annotations[restoreGroup], r.pods[i].Metadata.Name)
			victim := other(p.node.Name)
			if err := syscall.Kill(servicePID(t, victim), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			renew(t, victim)
		})
		if g := ends(t, again.group); g.Status.Phase != "Restored" || g.Status.Reason != "" {
			t.Errorf("%+v", g.Status)
		}
		for i, name := range again.names {
			ready(t, name)
			if now := ask(t, name); now.Life != was[r.pods[i].Metadata.Name].Life {
				t.Errorf("%s answers %+v", name, now)
			}
		}
		for _, name := range again.names {
			if err := shared.DeletePod(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("none of the group", func(t *testing.T) {
		again := r.restore(t, ref, patience, func(i int, p *pod) {
			if i == 1 {
				p.annotations["io.cryo.restore-member"] = "other"
			}
		})
		again.fails(t, "the group has no member other")
	})
	for _, step := range []string{"placed", "restored"} {
		for _, what := range []string{"coordinator", "member", "called off"} {
			t.Run(step+"/"+what, func(t *testing.T) {
				var open func()
				waits, victim := 0, shared.A // the pod that waits for the other; the node whose cryo node dies
				again := r.restore(t, ref, patience, func(i int, p *pod) {
					if i > 0 {
						return
					}
					open = reaches(step).set(t, other(p.node.Name)) // before a pod is made
				})
				leads := again.on[slices.Index(again.names, slices.Min(again.names))]
				eventually(t, "step "+step, func() bool { return groupNow(t, again.group).stepOf(again.names[waits]) == step })
				switch what {
				case "called off":
					must(t, shared.Kubectl(t.Context(), "delete", "checkpointgroup", again.group))
				default:
					if victim = leads; what == "member" {
						victim = other(leads.Name)
					}
					if err := syscall.Kill(servicePID(t, victim), syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				open()
				if what == "called off" {
					again.none(t)
					return
				}
				again.fails(t, "")
				renew(t, victim)
			})
		}
	}
	again := r.restore(t, ref, "", nil)
	if g := ends(t, again.group); g.Status.Phase != "Restored" {
		t.Fatalf("%+v", g.Status)
	}
	is := again.running(t)
	for i, p := range is.pods {
		if now := ask(t, p.Metadata.Name); now.Life != was[r.pods[i].Metadata.Name].Life {
			t.Errorf("%s answers %+v", p.Metadata.Name, now)
		}
	}
	is.goesRound(t)
}

// TestPodGroupRestoreLeft writes the status of a failed restore, by which an earlier cryo node has left a container running. The next cryo node ends the container if it is the member pod's, and leaves a container of another pod alone.
func TestPodGroupRestoreLeft(t *testing.T) {
	serveNodes(t)
	pod := run(t, ringPod(t, shared.A, name(t), "restartPolicy: Never"))
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	for _, c := range []struct {
		uid, phase string
	}{{"another", "Running"}, {pod.Metadata.UID, "Failed"}} {
		group := name(t)
		newGroup(t, group, "ring: none", shared.Registry.Reference("groups/none:1"), restores)
		must(t, shared.Kubectl(t.Context(), "patch", "checkpointgroup", group, "--subresource=status", "--type=merge", "--patch",
			fmt.Sprintf(`{"status":{"phase":"Failed","reason":"x","nodes":{%q:{"instance":"earlier","members":{"x":{"uid":%q,"container":%q}}}}}}`, shared.A.Name, c.uid, id)))
		renew(t, shared.A)
		eventually(t, "the end of the member", func() bool { return groupNow(t, group).Status.Nodes[shared.A.Name].Members["x"].Failed != nil })
		time.Sleep(2 * time.Second) // cryo node ends containers afterwards
		logs := must(t, shared.Kubectl(t.Context(), "-n", "cryo-system", "logs", nodeService(t, shared.A).Metadata.Name)).Stdout
		if refused := strings.Contains(logs, "the member is pod "+c.uid); refused != (c.phase == "Running") {
			t.Errorf("cryo node writes %s", logs)
		}
		if _, err := shared.WaitPod(t.Context(), pod.Metadata.Name, c.phase, func(p *cluster.Pod) bool { return p.Status.Phase == c.phase }); err != nil {
			t.Error(err)
		}
	}
}
