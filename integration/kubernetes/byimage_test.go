package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// snapshot takes a snapshot of a pod's first container, which goes on, and pushes it to a repository of the test's own. It gives the reference and the snapshot's digest.
func snapshot(t testing.TB, n *cluster.Node, p *cluster.Pod) (ref, digest string) {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	ref = shared.Registry.Reference("snapshots/" + p.Metadata.Name + ":1")
	var taken struct{ Digest string }
	out := must(t, n.Cryo(t.Context(), "-n", "k8s.io", "checkpoint", id, ref, "--push", "--plain-http", "--leave-running", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &taken); err != nil || taken.Digest == "" {
		t.Fatalf("checkpoint of %s: %v: %s", p.Metadata.Name, err, out)
	}
	must(t, n.Cryo(t.Context(), "rm", ref))
	return ref, taken.Digest
}

// warm ends the test unless the container that answers is the one that was asked before, on another host.
func warm(t *testing.T, was, is lab.Answer) {
	t.Helper()
	if is.Life != was.Life || is.Count < was.Count || is.State["sha256"] != was.State["sha256"] {
		t.Fatalf("the snapshot's container said %+v, and this one %+v", was, is)
	}
}

// cold ends the test unless the container that answers has been started.
func cold(t *testing.T, was, is lab.Answer) {
	t.Helper()
	if is.Life == was.Life {
		t.Fatalf("it was restored: %+v", is)
	}
}

// memoryLimit is what the cgroup of a pod's first container allows, in bytes.
func memoryLimit(t *testing.T, n *cluster.Node, p *cluster.Pod) string {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	for _, pid := range n.Processes() {
		cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.Contains(string(cgroups), id) {
			continue
		}
		for line := range strings.Lines(string(cgroups)) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			file := filepath.Join("/sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes")
			if fields[0] == "0" {
				file = filepath.Join("/sys/fs/cgroup", fields[2], "memory.max")
			} else if !slices.Contains(strings.Split(fields[1], ","), "memory") {
				continue
			}
			if limit, err := os.ReadFile(file); err == nil {
				return strings.TrimSpace(string(limit))
			}
		}
	}
	t.Fatalf("no cgroup of %s has a limit of memory", p.Metadata.Name)
	return ""
}

// volumes are one of each common kind. %[1]s is the name of a config map, a secret, a claim and its volume.
const volumes = `
volumes:
- {name: scratch, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
- {name: config, configMap: {name: %[1]s}}
- {name: secret, secret: {secretName: %[1]s}}
- {name: token, projected: {sources: [{serviceAccountToken: {path: token}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
- {name: host, hostPath: {path: /opt/shared, type: DirectoryOrCreate}}
- {name: claim, persistentVolumeClaim: {claimName: %[1]s}}
`

const volumeMounts = `
volumeMounts:
- {name: scratch, mountPath: /v/scratch}
- {name: memory, mountPath: /v/memory}
- {name: config, mountPath: /v/config, readOnly: true}
- {name: secret, mountPath: /v/secret, readOnly: true}
- {name: token, mountPath: /v/token, readOnly: true}
- {name: host, mountPath: /v/host, mountPropagation: HostToContainer}
- {name: claim, mountPath: /v/claim}
`

// volumeObjects are what volumes name, on a node. %[1]s is their name, %[2]s that of the node, %[3]s what is in the config map and the secret.
const volumeObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s}
data: {value: %[3]s}
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s}
stringData: {value: %[3]s}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: %[1]s
  hostPath: {path: /opt/claimed, type: DirectoryOrCreate}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[2]s]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %[1]s
  volumeName: %[1]s
  resources: {requests: {storage: 1Mi}}
`

// probes are exec probes of all kinds, and a limit of memory in MiB.
const probes = `
startupProbe: {exec: {command: [test, -S, /srv/ask.sock]}, periodSeconds: 1}
readinessProbe: {exec: {command: [workload, ask]}, periodSeconds: 1, timeoutSeconds: 10}
livenessProbe: {exec: {command: [workload, ask]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}
resources: {limits: {memory: %dMi}}
`

// TestByImage snapshots a pod on one node. A pod on the other whose image is that snapshot goes on, with its own name, address, limits and volumes, and is ready by its probes all the time;
// the same image starts under runc.
func TestByImage(t *testing.T) {
	objects := name(t)
	first := pod{name: name(t), class: "cryo", node: shared.A, command: []string{"workload", "count", "--memory", "32"},
		container: fmt.Sprintf(probes, 200) + volumeMounts, spec: fmt.Sprintf(volumes, objects)}
	values := fmt.Sprintf(volumeObjects, objects, shared.A.Name, "first")
	if err := shared.Apply(t.Context(), values); err != nil {
		t.Fatal(err)
	}
	forget := func() {
		if err := shared.Delete(cleanupContext(t), values); err != nil {
			t.Error(err)
		}
	}
	apply(t, first.yaml())
	a := ready(t, first.name)
	must(t, shared.Exec(t.Context(), first.name, "", "sh", "-c", "echo first >/v/scratch/file; echo written >/tmp/file"))
	was := ask(t, first.name)
	ref, digest := snapshot(t, shared.A, a)
	if err := shared.DeletePod(t.Context(), first.name); err != nil {
		t.Fatal(err)
	}
	forget()

	values = fmt.Sprintf(volumeObjects, objects, shared.B.Name, "second")
	apply(t, values)
	second := first
	second.name, second.node, second.image, second.command = name(t), shared.B, ref, nil
	second.container = fmt.Sprintf(probes, 300) + volumeMounts
	b := run(t, second)
	warm(t, was, ask(t, second.name))
	if b.Status.PodIP == a.Status.PodIP {
		t.Errorf("it has the address of the pod before, %s", b.Status.PodIP)
	}
	if got, want := memoryLimit(t, shared.B, b), fmt.Sprint(300<<20); got != want {
		t.Errorf("its limit of memory is %s, not %s", got, want)
	}
	for command, want := range map[string]string{
		"hostname": second.name, "cat /v/config/value": "second", "cat /v/secret/value": "second", "cat /v/token/name": second.name, "cat /tmp/file": "written",
		"ls /v/scratch /v/memory | grep -c file": "0", "echo here >/v/host/file && cat /v/host/file": "here", "echo here >/v/claim/file && cat /v/claim/file": "here",
		"grep -c " + b.Status.PodIP + " /etc/hosts": "1", "test -s /v/token/token && echo there": "there",
	} {
		if got := strings.TrimSpace(shared.Exec(t.Context(), second.name, "", "sh", "-c", command).Stdout); got != want {
			t.Errorf("%s: %q, not %q", command, got, want)
		}
	}
	const later = "/opt/shared/later"
	must(t, shared.B.Run(t.Context(), "sh", "-c", "mkdir $0 && mount -t tmpfs later $0 && touch $0/mounted", later))
	t.Cleanup(func() { must(t, shared.B.Run(cleanupContext(t), "sh", "-c", "umount $0 && rmdir $0", later)) })
	if got := shared.Exec(t.Context(), second.name, "", "ls", "/v/host/later").Stdout; strings.TrimSpace(got) != "mounted" {
		t.Errorf("of what the node mounts later it sees %q", got)
	}
	var note struct{ Digest string }
	if err := json.Unmarshal([]byte(shared.Exec(t.Context(), second.name, "", "cat", "/.cryo/restored.json").Stdout), &note); err != nil || note.Digest != digest {
		t.Errorf("it is told of the snapshot %q, %v", note.Digest, err)
	}
	now, err := shared.Pod(t.Context(), second.name)
	if err != nil {
		t.Fatal(err)
	}
	if c := now.Status.ContainerStatuses[0]; !c.Ready || c.RestartCount != 0 {
		t.Errorf("its container: %+v", c)
	}
	if events, err := shared.Events(t.Context(), second.name); err != nil || strings.Contains(fmt.Sprint(events), "Unhealthy") {
		t.Errorf("its probes: %v, %v", events, err)
	}

	ordinary := pod{name: name(t), node: shared.B, image: ref}
	run(t, ordinary)
	cold(t, was, ask(t, ordinary.name))
	if got := shared.Exec(t.Context(), ordinary.name, "", "cat", "/tmp/file").Stdout; strings.TrimSpace(got) != "written" {
		t.Errorf("under runc it has %q", got)
	}
}

// TestByImageContainers has a pod with several containers of which one is restored: by its image, and by an annotation that names it; what cannot be restored starts.
func TestByImageContainers(t *testing.T) {
	first := pod{name: name(t), class: "cryo", node: shared.A, command: []string{"workload", "count", "--memory", "8"}}
	a := run(t, first)
	was := ask(t, first.name)
	ref, _ := snapshot(t, shared.A, a)
	const others = `
initContainers:
- {name: prepares, image: %[1]s, command: ["true"]}
- {name: beside, image: %[1]s, command: [workload, count, --memory, "1"], restartPolicy: Always}
`
	for what, p := range map[string]pod{
		"by image":      {image: ref},
		"by annotation": {command: first.command, annotations: map[string]string{"io.cryo.restore.main": ref}},
	} {
		p.name, p.class, p.node, p.spec = name(t), "cryo", shared.B, fmt.Sprintf(others, shared.Base)
		run(t, p)
		warm(t, was, ask(t, p.name))
		beside, err := shared.Ask(t.Context(), p.name, "beside")
		if err != nil || !beside.OK {
			t.Fatalf("%s: the container beside it: %+v, %v", what, beside, err)
		}
		cold(t, was, beside)
	}

	// CRIU cannot restore into a namespace of processes that has others.
	shares := pod{name: name(t), class: "cryo", node: shared.B, image: ref, spec: "shareProcessNamespace: true"}
	run(t, shares)
	cold(t, was, ask(t, shares.name))
	refused := pod{name: name(t), class: "cryo", node: shared.B, image: ref, spec: "shareProcessNamespace: true", annotations: map[string]string{"io.cryo.restore.fallback": "fail"}}
	refuses(t, refused, "pid-namespace: ")
}

// refuses creates a pod whose restore is refused and that asks for no cold start, and waits until the pod's status has the reason.
func refuses(t *testing.T, refused pod, reason string) {
	t.Helper()
	apply(t, refused.yaml())
	if _, err := shared.WaitPod(t.Context(), refused.name, "refused", func(p *cluster.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			for _, said := range []string{message(c.State.Waiting), message(c.State.Terminated), message(c.LastState.Terminated)} {
				if strings.Contains(said, reason) {
					return true
				}
			}
		}
		return false
	}); err != nil {
		t.Error(err)
	}
}

// TestByImageUsers: the kubelet gives each pod with a user namespace (hostUsers: false) other ids. CRIU cannot restore a snapshot with other ids, so such pods start cold. If root may not read
// the limits of their processes, a checkpoint of such a pod fails, under runc too.
func TestByImageUsers(t *testing.T) {
	const own = "hostUsers: false"
	command := []string{"workload", "count", "--memory", "8"}
	host := pod{name: name(t), class: "cryo", node: shared.A, command: command}
	was := map[string]lab.Answer{}
	refs := map[string]string{"namespaces: ": ""} // by the rule that refuses them
	h := run(t, host)
	was["namespaces: "] = ask(t, host.name)
	refs["namespaces: "], _ = snapshot(t, shared.A, h)

	users := pod{name: name(t), class: "cryo", node: shared.A, command: command, spec: own}
	u := run(t, users)
	if ids := strings.Fields(shared.Exec(t.Context(), users.name, "", "cat", "/proc/self/uid_map").Stdout); len(ids) != 3 || ids[0] != "0" || ids[1] == "0" {
		t.Errorf("its ids are %v", ids)
	}
	before := ask(t, users.name)
	_, id, _ := strings.Cut(u.Status.ContainerStatuses[0].ContainerID, "://")
	ref := shared.Registry.Reference("snapshots/" + users.name + ":1")
	r := shared.A.Cryo(t.Context(), "-n", "k8s.io", "checkpoint", id, ref, "--push", "--plain-http", "--leave-running", "--json")
	if strings.Contains(r.Stdout, "CAP_SYS_RESOURCE") {
		plain := pod{name: name(t), node: shared.A, command: command, spec: own}
		run(t, plain)
		first := ask(t, plain.name)
		if archive, err := shared.A.Checkpoint(t.Context(), "default", plain.name, "main"); err == nil {
			t.Errorf("cryo could not, and runc has written %s", archive)
		}
		if now := ask(t, plain.name); now.Life != first.Life {
			t.Errorf("before %+v, after %+v", first, now)
		}
	} else {
		if must(t, r); !strings.Contains(r.Stdout, "the container's user namespace maps to") {
			t.Errorf("it does not say why there is no image: %s", r.Stdout)
		}
		was["user-mappings: "], refs["user-mappings: "] = before, ref
	}
	if now := ask(t, users.name); now.Life != before.Life || now.Count < before.Count {
		t.Errorf("before %+v, after %+v", before, now)
	}
	for rule, ref := range refs {
		p := pod{name: name(t), class: "cryo", node: shared.B, command: command, spec: own, annotations: map[string]string{"io.cryo.restore": ref, "io.cryo.restore.fallback": "start"}}
		run(t, p)
		cold(t, was[rule], ask(t, p.name))
		p.name, p.annotations = name(t), map[string]string{"io.cryo.restore": ref}
		refuses(t, p, rule)
	}
}

// message is that of a container's state.
func message(state any) string {
	text, _ := json.Marshal(state) // of a type of ours, which encodes
	return string(text)
}

// TestByImageAgain ends a restored container, which the kubelet creates again: it starts, or is restored where the pod asks for that.
func TestByImageAgain(t *testing.T) {
	first := pod{name: name(t), class: "cryo", node: shared.A, command: []string{"workload", "count", "--memory", "8"}}
	a := run(t, first)
	was := ask(t, first.name)
	ref, _ := snapshot(t, shared.A, a)
	for how, check := range map[string]func(*testing.T, lab.Answer, lab.Answer){"": cold, "restore": warm} {
		p := pod{name: name(t), class: "cryo", node: shared.B, image: ref}
		if how != "" {
			p.annotations = map[string]string{"io.cryo.restart": how}
		}
		b := run(t, p)
		warm(t, was, ask(t, p.name))
		_, id, _ := strings.Cut(b.Status.ContainerStatuses[0].ContainerID, "://")
		must(t, shared.B.Ctr(t.Context(), "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", id))
		if _, err := shared.WaitPod(t.Context(), p.name, "ready again", func(p *cluster.Pod) bool {
			c := p.Status.ContainerStatuses
			return len(c) == 1 && c[0].RestartCount == 1 && c[0].Ready
		}); err != nil {
			t.Fatal(err)
		}
		check(t, was, ask(t, p.name))
	}
}

// TestByImageDisturbed has pods deleted, drained and evicted in the middle of a restore, and containerd and the kubelet restarted: nothing is left of the first, and the others become ready.
func TestByImageDisturbed(t *testing.T) {
	first := pod{name: name(t), class: "cryo", node: shared.A, command: []string{"workload", "count", "--memory", "256"}}
	a := run(t, first)
	was := ask(t, first.name)
	ref, digest := snapshot(t, shared.A, a)
	n := shared.B
	for what, disturb := range map[string]func(pod string) error{
		"deleted": func(pod string) error { return shared.DeletePod(t.Context(), pod) },
		"evicted": func(pod string) error {
			file := filepath.Join(t.TempDir(), "eviction.json")
			body := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":"default"},"deleteOptions":{"gracePeriodSeconds":1}}`, pod)
			if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
				return err
			}
			return shared.Kubectl(t.Context(), "create", "--raw", "/api/v1/namespaces/default/pods/"+pod+"/eviction", "--filename="+file).Err()
		},
		"drained": func(string) error {
			defer func() { must(t, shared.Kubectl(cleanupContext(t), "uncordon", n.Name)) }()
			return shared.Kubectl(t.Context(), "drain", n.Name, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--grace-period=1", "--timeout=2m").Err()
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := pod{name: name(t), class: "cryo", node: n, image: ref}
			apply(t, p.yaml())
			restoring(t, n)
			if err := disturb(p.name); err != nil {
				t.Fatal(err)
			}
			if err := shared.DeletePod(t.Context(), p.name); err != nil { // waits until it is gone
				t.Fatal(err)
			}
			for _, leak := range n.Leaks() {
				t.Error("left behind:", leak)
			}
			_ = n.Cryo(t.Context(), "rm", digest) // the next one pulls it again; that there is none is no error
		})
	}
	for what, disturb := range map[string]func() error{
		"containerd": func() error { return n.RestartContainerd(t.Context(), syscall.SIGKILL) },
		"kubelet":    func() error { return n.RestartKubelet(t.Context(), syscall.SIGKILL) },
	} {
		t.Run(what, func(t *testing.T) {
			p := pod{name: name(t), class: "cryo", node: n, image: ref}
			apply(t, p.yaml())
			restoring(t, n)
			if err := disturb(); err != nil {
				t.Fatal(err)
			}
			ready(t, p.name)
			if is := ask(t, p.name); is.Life == was.Life {
				warm(t, was, is)
			}
		})
	}
}

// restoring waits until a restore has begun on a node.
func restoring(t *testing.T, n *cluster.Node) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, pid := range n.Processes() {
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(name)) == "cryo-restore" {
				return
			}
		}
	}
	t.Fatal("no restore begins")
}
