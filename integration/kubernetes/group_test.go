package kubernetes

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// serveNodes runs cryo node on both nodes by contrib/kubernetes, without its installer, which TestNodeService tests. Snapshots may be sent to the cluster's registry, and restored from there.
func serveNodes(t *testing.T) {
	t.Helper()
	settings := fmt.Sprintf(`[checkpoint]
repositories = ["%[1]s/groups"]
plain-http = ["%[1]s"]
[restore.policy]
repositories = ["%[1]s/groups"]
plain-http = ["%[1]s"]
[trust.repositories]
"%[1]s/groups" = "unsigned"
`, shared.Registry.Address)
	for _, n := range []*cluster.Node{shared.A, shared.B} {
		must(t, n.Run(t.Context(), "sh", "-c", `mkdir -p /etc/cryo && printf %s "$1" >/etc/cryo/config.toml`, "sh", settings))
		t.Cleanup(func() { must(t, n.Run(cleanupContext(t), "rm", "-r", "/etc/cryo")) })
	}
	apply(t, manifest(t, "namespace.yaml")+manifest(t, "checkpointgroup.yaml")+manifest(t, "rbac.yaml")+manifest(t, "policy.yaml")+configMap("cryo-config", "config.toml", settings)+configMap("cryo-prewarm", "prewarm.toml", ""))
	service := manifest(t, "daemonset.yaml", "image: cryo\n", "image: "+cryoImage(t)+"\n")
	before, rest, _ := strings.Cut(service, "      initContainers:\n")
	_, after, found := strings.Cut(rest, "      containers:\n")
	if !found {
		t.Fatal("the DaemonSet has no installer, or no containers after it")
	}
	apply(t, before+"      containers:\n"+after)
	for _, n := range []*cluster.Node{shared.A, shared.B} {
		eventually(t, "cryo node on "+n.Name, func() bool { return nodeService(t, n).Ready() })
	}
	t.Cleanup(func() {
		if t.Failed() {
			r := shared.Kubectl(cleanupContext(t), "-n", "cryo-system", "logs", "-l", "app.kubernetes.io/name=cryo-node", "--prefix", "--tail=40")
			t.Logf("%s%s", r.Stdout, r.Stderr)
		}
	})
}

// renew has another pod of cryo node start at once on a node: a container that died again and again would start later.
func renew(t *testing.T, n *cluster.Node) {
	t.Helper()
	must(t, shared.Kubectl(t.Context(), "-n", "cryo-system", "delete", "pod", nodeService(t, n).Metadata.Name))
	eventually(t, "cryo node on "+n.Name, func() bool { return nodeService(t, n).Ready() })
}

// nodeService is the pod of cryo node on a node.
func nodeService(t *testing.T, n *cluster.Node) *cluster.Pod {
	t.Helper()
	var pods struct{ Items []cluster.Pod }
	if err := shared.Get(t.Context(), "/api/v1/namespaces/cryo-system/pods", &pods); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == n.Name && p.Metadata.DeletionTimestamp.IsZero() {
			return &p
		}
	}
	return &cluster.Pod{}
}

// servicePID is the process of cryo node on a node.
func servicePID(t *testing.T, n *cluster.Node) int {
	t.Helper()
	p := nodeService(t, n)
	if len(p.Status.ContainerStatuses) != 1 {
		t.Fatalf("%s has no cryo node: %+v", n.Name, p.Status)
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	for _, process := range n.Running() {
		dir := fmt.Sprintf("/proc/%d/", process.PID)
		cgroups, err := os.ReadFile(dir + "cgroup")
		line, err2 := os.ReadFile(dir + "cmdline")
		if err == nil && err2 == nil && strings.Contains(string(cgroups), id) && strings.Contains(string(line), "\x00node\x00") {
			return process.PID
		}
	}
	t.Fatalf("no process of container %s runs on %s", id, n.Name)
	return 0
}

// podRing is a ring of pods, one after the other on another node.
type podRing struct {
	label string // that selects the pods, as NAME: VALUE
	pods  []*cluster.Pod
}

// ringLabel is the label of the pods of a ring that no controller makes.
const ringLabel = "ring"

// ringCommand is what a pod of a ring runs. A file has the address of the next pod.
var ringCommand = []string{"sh", "-c", "until [ -s /srv/next ]; do sleep 0.1; done; exec workload ring --quiet --next $(cat /srv/next):7100"}

// ringContainer has further fields of the container of a pod of a ring.
const ringContainer = "env: [{name: GODEBUG, value: multipathtcp=0}]"

// ringPod is a pod of a ring.
func ringPod(t *testing.T, n *cluster.Node, label, spec string) pod {
	return pod{
		name: name(t), class: "cryo", node: n, labels: map[string]string{ringLabel: label}, spec: spec, container: ringContainer, command: ringCommand,
	}
}

// newPodRing starts pods that send messages to each other.
func newPodRing(t *testing.T, members int, spec string) podRing {
	t.Helper()
	label := name(t)
	r := podRing{label: ringLabel + ": " + label}
	for i := range members {
		r.pods = append(r.pods, run(t, ringPod(t, []*cluster.Node{shared.A, shared.B}[i%2], label, spec)))
	}
	r.close(t)
	return r
}

// close writes the address of the next pod into each pod, and waits until the messages go round.
func (r podRing) close(t *testing.T) {
	t.Helper()
	for i, p := range r.pods {
		must(t, shared.Exec(t.Context(), p.Metadata.Name, "", "sh", "-c", "echo "+r.pods[(i+1)%len(r.pods)].Status.PodIP+" >/srv/next"))
	}
	r.goesRound(t)
}

// goesRound waits until each pod has sent and taken more messages than before. None is lost, or comes twice: else a member answers that it is damaged.
func (r podRing) goesRound(t *testing.T) {
	t.Helper()
	number := func(a lab.Answer, of string) float64 {
		n, _ := a.State[of].(float64)
		return n
	}
	const more = 1000
	for _, p := range r.pods {
		id := p.Metadata.Name
		before := ask(t, id)
		eventually(t, "messages through "+id, func() bool {
			now := ask(t, id)
			return now.Life == before.Life && number(now, "acknowledged") > number(before, "acknowledged")+more && number(now, "taken") > number(before, "taken")+more
		})
		if now, err := shared.Pod(t.Context(), id); err != nil || now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("%s was started anew: %+v, %v", id, now.Status, err)
		}
	}
}

// checkpointGroup is what tests ask of one.
type checkpointGroup struct {
	Status struct {
		Phase, Reason, Digest string
		Nodes                 map[string]struct {
			Instance string
			Leads    *struct{ Permit string }
			Members  map[string]struct {
				Step               string
				Done               bool
				FrozenMilliseconds int64
				Failed             *struct{ Message string }
			}
		}
	}
}

// step is the step that a node's member has reached.
func (g checkpointGroup) step(n *cluster.Node) string {
	for _, m := range g.Status.Nodes[n.Name].Members {
		return m.Step
	}
	return ""
}

func groupNow(t *testing.T, name string) (g checkpointGroup) {
	t.Helper()
	if err := shared.Get(t.Context(), "/apis/io.cryo/v1alpha1/namespaces/default/checkpointgroups/"+name, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// newGroup makes a CheckpointGroup of the pods with a label. spec has its further fields.
func newGroup(t *testing.T, group, label, reference, spec string) {
	t.Helper()
	apply(t, fmt.Sprintf("apiVersion: io.cryo/v1alpha1\nkind: CheckpointGroup\nmetadata: {name: %s}\nspec:\n  selector: {matchLabels: {%s}}\n  reference: %s\n%s", group, label, reference, indent(spec, "  ")))
}

// restores is the field of a CheckpointGroup that is a restore.
const restores = "operation: Restore\n"

// checkpoint asks for a checkpoint of the ring.
func (r podRing) checkpoint(t *testing.T, spec string) (group, ref string) {
	t.Helper()
	group = name(t)
	ref = "groups/" + group + ":ring"
	newGroup(t, group, r.label, shared.Registry.Reference(ref), spec)
	return group, ref
}

// ends waits until a group has its result.
func ends(t *testing.T, group string) (g checkpointGroup) {
	t.Helper()
	eventually(t, "the result of "+group, func() bool {
		g = groupNow(t, group)
		return g.Status.Phase == "Published" || g.Status.Phase == "Restored" || g.Status.Phase == "Failed"
	})
	t.Logf("%s: %s", g.Status.Phase, g.Status.Reason)
	return g
}

// groupIndex is the index of a group in the registry, nil where there is none.
func groupIndex(t *testing.T, ref string) *image.Group {
	t.Helper()
	repository, tag, _ := strings.Cut(ref, ":")
	a, err := shared.Registry.Get(t.Context(), "/v2/"+repository+"/manifests/"+tag, ocispec.MediaTypeImageIndex)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	data, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode == http.StatusNotFound {
		return nil
	}
	g, err := image.ParseGroup(data)
	if err != nil {
		t.Fatalf("%s: %v: %s", ref, err, data)
	}
	return &g
}

// published checks that a group was, with all pods of the ring.
func (r podRing) published(t *testing.T, g checkpointGroup, ref string) {
	t.Helper()
	index := groupIndex(t, ref)
	if g.Status.Phase != "Published" || index == nil || len(index.Members) != len(r.pods) {
		text, _ := json.Marshal(g)
		t.Fatalf("the registry has %+v, and the group is %s", index, text)
	}
	for _, p := range r.pods {
		m := g.Status.Nodes[p.Spec.NodeName].Members[p.Metadata.Name]
		if !m.Done || m.Failed != nil || m.FrozenMilliseconds == 0 {
			t.Errorf("%s: %+v", p.Metadata.Name, m)
		}
		t.Logf("%s on %s stood still for %d ms", p.Metadata.Name, p.Spec.NodeName, m.FrozenMilliseconds)
		if !slices.ContainsFunc(index.Members, func(of image.GroupMember) bool {
			return of.Name == p.Metadata.Name && strings.HasPrefix(of.Addresses[0], p.Status.PodIP+"/")
		}) {
			t.Errorf("the index has %+v, and not %s", index.Members, p.Metadata.Name)
		}
	}
}

// TestPodGroup takes two and four pods on two nodes in step, by their label: they run on, and then they end.
func TestPodGroup(t *testing.T) {
	serveNodes(t)
	for _, members := range []int{2, 4} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			r := newPodRing(t, members, "restartPolicy: Never")
			group, ref := r.checkpoint(t, "")
			r.published(t, ends(t, group), ref)
			r.goesRound(t)
			group, ref = r.checkpoint(t, "leaveRunning: false")
			r.published(t, ends(t, group), ref)
			for _, n := range []*cluster.Node{shared.A, shared.B} {
				if kept := must(t, n.Run(t.Context(), shared.Lab.Tool("../cryo"), "--root", "/var/lib/cryo", "ls", "-q")).Stdout; strings.Contains(kept, "/groups/") {
					t.Errorf("%s keeps %s", n.Name, kept)
				}
			}
			for _, p := range r.pods {
				if _, err := shared.WaitPod(t.Context(), p.Metadata.Name, "ended", func(p *cluster.Pod) bool { return p.Status.Phase == "Failed" }); err != nil {
					t.Error(err)
				}
			}
		})
	}

	// What cannot be is said in the status.
	r := newPodRing(t, 2, "")
	for _, c := range []struct{ spec, words string }{
		{"container: other", "no container other runs in pod"},
		{"holdTimeoutSeconds: 1\nreadyTimeoutSeconds: 1", "ready"},
	} {
		group, ref := r.checkpoint(t, c.spec)
		if g := ends(t, group); g.Status.Phase != "Failed" || !strings.Contains(g.Status.Reason, c.words) || groupIndex(t, ref) != nil {
			t.Errorf("%s: %+v", c.spec, g.Status)
		}
	}
	none := podRing{label: "ring: none"}
	group, _ := none.checkpoint(t, "")
	if g := ends(t, group); !strings.Contains(g.Status.Reason, "matches no pod") {
		t.Errorf("%+v", g.Status)
	}
	elsewhere := name(t)
	newGroup(t, elsewhere, r.label, "elsewhere.example/x:1", "")
	if g := ends(t, elsewhere); !strings.Contains(g.Status.Reason, "repositories under [checkpoint]") {
		t.Errorf("%+v", g.Status)
	}
	r.goesRound(t)

	// A node's token is good for its own entry and its own lease.
	token := must(t, shared.A.Run(t.Context(), "sh", "-c", "cat /var/lib/kubelet/pods/"+nodeService(t, shared.A).Metadata.UID+"/volumes/kubernetes.io~projected/*/token")).Stdout
	status := "/apis/io.cryo/v1alpha1/namespaces/default/checkpointgroups/" + group + "/status"
	leases := "/apis/coordination.k8s.io/v1/namespaces/cryo-system/leases/"
	for _, c := range []struct {
		path, patch string
		code        int
	}{
		{status, `{"status":{"nodes":{"` + shared.A.Name + `":{"instance":"x"}}}}`, http.StatusOK},
		{status, `{"status":{"nodes":{"` + shared.B.Name + `":{"instance":"x"}}}}`, http.StatusForbidden},
		{status, `{"status":{"nodes":{"` + shared.A.Name + `":{"instance":"y"},"other":{"instance":"x"}}}}`, http.StatusForbidden},
		{status, `{"status":{"nodes":null}}`, http.StatusForbidden},
		{status, `{"status":{"phase":"Published"}}`, http.StatusForbidden},
		{status, `{"status":{"phase":"Waiting"}}`, http.StatusForbidden},
		{status, `{"status":{"reason":"x"}}`, http.StatusForbidden},
		{strings.TrimSuffix(status, "/status"), `{"metadata":{"labels":{"a":"b"}}}`, http.StatusForbidden},
		{leases + shared.A.Name, `{"spec":{"holderIdentity":"x"}}`, http.StatusOK},
		{leases + shared.B.Name, `{"spec":{"holderIdentity":"x"}}`, http.StatusForbidden},
		{"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + shared.A.Name, `{"spec":{"holderIdentity":"x"}}`, http.StatusForbidden},
	} {
		if code, body := requestAs(t, token, http.MethodPatch, c.path, c.patch); code != c.code {
			t.Errorf("patch %s by %s: %d, want %d: %s", c.path, c.patch, code, c.code, body)
		}
	}
}

// turnstilePolicy refuses what a node writes from some step on, so that the group stands still there. %[1]s is the node, %[2]s is true of an entry that passes.
const turnstilePolicy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: turnstile}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [io.cryo], apiVersions: [v1alpha1], operations: [UPDATE], resources: [checkpointgroups/status]}]
  validations:
    - expression: "!has(object.status.nodes) || object.status.nodes.all(n, n != '%[1]s' || object.status.nodes[n].%[2]s)"
      message: turnstile
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: turnstile}
spec: {policyName: turnstile, validationActions: [Deny]}
`

// turnstile is where a group stands still: an expression of [turnstilePolicy], and an entry that does not pass.
type turnstile struct{ passes, entry string }

// reaches is the turnstile of a member that comes to a step.
func reaches(step string) turnstile {
	return turnstile{
		fmt.Sprintf("?members.orValue({}).all(p, m, m.?step.orValue('') != '%s' || has(m.failed))", step), fmt.Sprintf(`{"members":{"x":{"step":%q}}}`, step),
	}
}

// permits is the turnstile of a coordinator that lets all members go on from a step.
func permits(step string) turnstile {
	return turnstile{fmt.Sprintf("?leads.?permit.orValue('') != '%s'", step), fmt.Sprintf(`{"leads":{"permit":%q}}`, step)}
}

// set closes the turnstile on a node, and returns what opens it. It is closed when the API server refuses what the node would write.
func (at turnstile) set(t *testing.T, n *cluster.Node) (open func()) {
	t.Helper()
	policy := fmt.Sprintf(turnstilePolicy, n.Name, at.passes)
	apply(t, policy)
	group, _ := podRing{label: "ring: none"}.checkpoint(t, "")
	ends(t, group)
	eventually(t, "the turnstile", func() bool {
		r := shared.Kubectl(t.Context(), "patch", "checkpointgroup", group, "--subresource=status", "--type=merge", "--dry-run=server",
			"--patch", fmt.Sprintf(`{"status":{"nodes":{%q:%s}}}`, n.Name, at.entry))
		return strings.Contains(r.Stderr, "turnstile")
	})
	return func() {
		if err := shared.Delete(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
	}
}
