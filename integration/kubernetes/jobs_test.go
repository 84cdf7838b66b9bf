package kubernetes

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
)

// job is an object whose controller makes pods.
type job struct {
	controller controller
	kind       string
	label      string // of the pods, whose value is the object's name
	members    int
	object     func(name, group string) string // its manifest, whose pods are restored by a group, unless that is ""
	work       work
}

// work is what the pods of a job do.
type work interface {
	// begin has it begin.
	begin(t *testing.T, r podRing)
	// goesOn waits until it has gone on. It fails the test if a result is wrong, or the work has begun anew.
	goesOn(t *testing.T, r podRing)
}

// template is the template of a job's pods, which it spreads over the nodes.
func template(p pod, label, group, by string) string {
	annotations := ""
	if group != "" {
		annotations = restoreGroup + ": " + group
	}
	p.class = "cryo"
	p.spec += "\ntopologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {" + label + "}}}]"
	return indent("template:\n  metadata: {annotations: {"+annotations+"}}\n  spec:\n"+indent(p.specYAML(), "    "), by)
}

// jobPods waits until so many pods with a label are ready, and returns them in the order of their names.
func jobPods(t *testing.T, label string, members int) []*cluster.Pod {
	t.Helper()
	var pods struct{ Items []*cluster.Pod }
	eventually(t, fmt.Sprintf("%d pods with %s", members, label), func() bool {
		pods.Items = nil
		if err := shared.Get(t.Context(), "/api/v1/namespaces/default/pods?labelSelector="+url.QueryEscape(strings.Replace(label, ": ", "=", 1)), &pods); err != nil {
			t.Fatal(err)
		}
		return len(pods.Items) == members && !slices.ContainsFunc(pods.Items, func(p *cluster.Pod) bool { return !p.Ready() || !p.Metadata.DeletionTimestamp.IsZero() })
	})
	slices.SortFunc(pods.Items, func(a, b *cluster.Pod) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(nodes) != 2 {
		t.Errorf("the pods are on %v", nodes)
	}
	return pods.Items
}

// field returns a field of the object's status.
func (j job) field(t *testing.T, name, path string) string {
	t.Helper()
	return must(t, shared.Kubectl(t.Context(), "get", j.kind, name, "--output=jsonpath={.status."+path+"}")).Stdout
}

// conditions are those of the object that hold.
func (j job) conditions(t *testing.T, name string) string {
	t.Helper()
	return j.field(t, name, `conditions[?(@.status=="True")].type`)
}

// take makes the object, takes its pods in step by their label while they run on, and restores them. It returns the object's name, the reference of the checkpoint, and the restored pods.
func (j job) take(t *testing.T) (named, ref string, is podRing) {
	t.Helper()
	shareRoots(t)
	serveNodes(t)
	named = name(t)
	first := j.object(named, "")
	j.controller.start(t, first)
	apply(t, first)
	label := j.label + ": " + named
	r := podRing{label, jobPods(t, label, j.members)}
	j.work.begin(t, r)
	before := j.conditions(t, named)
	group, ref := r.checkpoint(t, "")
	r.published(t, ends(t, group), ref)
	j.work.goesOn(t, r)
	for i, p := range jobPods(t, label, j.members) {
		if p.Metadata.UID != r.pods[i].Metadata.UID || p.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("%s was made anew: %+v", p.Metadata.Name, p)
		}
	}
	if now := j.conditions(t, named); now != before {
		t.Errorf("the %s is %s; it was %s before the checkpoint", j.kind, now, before)
	}
	is = j.restore(t, named, ref)
	if now := j.conditions(t, named); now != before {
		t.Errorf("the %s is %s when it is restored; it was %s before", j.kind, now, before)
	}
	return named, ref, is
}

// restore deletes the object with its pods, and makes another of its name, whose pods are restored in step.
func (j job) restore(t *testing.T, named, ref string) podRing {
	t.Helper()
	if err := shared.Delete(t.Context(), j.object(named, ""), "--cascade=foreground"); err != nil {
		t.Fatal(err)
	}
	group, label := name(t), j.label+": "+named
	newGroup(t, group, label, shared.Registry.Reference(ref), restores)
	apply(t, j.object(named, group))
	if g := ends(t, group); g.Status.Phase != "Restored" || g.Status.Reason != "" {
		t.Fatalf("%+v", g.Status)
	}
	is := podRing{label, jobPods(t, label, j.members)}
	j.work.goesOn(t, is)
	return is
}

// ringWork is that of pods which are a ring.
type ringWork struct{ lives []string }

func (w *ringWork) begin(t *testing.T, r podRing) {
	t.Helper()
	r.close(t)
	w.lives = w.now(t, r)
}

func (w *ringWork) now(t *testing.T, r podRing) (lives []string) {
	t.Helper()
	for _, p := range r.pods {
		lives = append(lives, ask(t, p.Metadata.Name).Life)
	}
	return lives
}

func (w *ringWork) goesOn(t *testing.T, r podRing) {
	t.Helper()
	r.goesRound(t)
	if now := w.now(t, r); !slices.Equal(now, w.lives) {
		t.Errorf("the members live %v; they lived %v", now, w.lives)
	}
}

// ringTemplate is the template of the pods of a ring.
func ringTemplate(spec, label, group, by string) string {
	return template(pod{command: ringCommand, container: ringContainer, spec: spec}, label, group, by)
}

const jobSetLabel = "jobset.sigs.k8s.io/jobset-name"

// TestJobSet takes a JobSet of two Jobs with two pods each. When it was restored, its pods end, and it is complete.
func TestJobSet(t *testing.T) {
	j := job{
		controller: jobSetController, kind: "jobset", label: jobSetLabel, members: 4, work: &ringWork{},
		object: func(name, group string) string {
			return fmt.Sprintf(`apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: %s}
spec:
  replicatedJobs:
    - name: ring
      replicas: 2
      template:
        spec:
          parallelism: 2
          completions: 2
          backoffLimit: 0
%s`, name, ringTemplate("restartPolicy: Never", jobSetLabel+": "+name, group, "          "))
		},
	}
	named, _, is := j.take(t)
	for _, p := range is.pods {
		must(t, shared.Exec(t.Context(), p.Metadata.Name, "", "kill", "1"))
	}
	eventually(t, "the end of the JobSet", func() bool { return j.field(t, named, "terminalState") == "Completed" })
	if restarts := j.field(t, named, "restarts"); restarts != "" && restarts != "0" {
		t.Errorf("the JobSet has restarted %s times", restarts)
	}
}

const lwsLabel = "leaderworkerset.sigs.k8s.io/name"

// TestLeaderWorkerSet takes a LeaderWorkerSet of a leader and two workers. When a container of the restored pods ends, the controller makes all of them anew, and none of these starts. The set is then restored once more.
func TestLeaderWorkerSet(t *testing.T) {
	j := job{
		controller: lwsController, kind: "leaderworkerset", label: lwsLabel, members: 3, work: &ringWork{},
		object: func(name, group string) string {
			return fmt.Sprintf(`apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: %s}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 3
    workerTemplate:
%s`, name, strings.TrimPrefix(ringTemplate("", lwsLabel+": "+name, group, "    "), "    template:\n"))
		},
	}
	named, ref, is := j.take(t)
	leader := is.pods[0]
	killContainer(t, other(other(leader.Spec.NodeName).Name), leader)
	eventually(t, "the refusal of another leader", func() bool {
		events, err := shared.Events(t.Context(), leader.Metadata.Name)
		return err == nil && strings.Contains(fmt.Sprint(events), "does not restore pod "+leader.Metadata.Name)
	})
	if now, err := shared.Pod(t.Context(), leader.Metadata.Name); err != nil || now.Metadata.UID == leader.Metadata.UID {
		t.Errorf("the leader is %+v, %v", now, err)
	}
	j.restore(t, named, ref)
}

const mpiLabel = "training.kubeflow.org/job-name"

// mpiImage has Debian's OpenMPI. "make programs-roots" makes its root file system.
func mpiImage(t *testing.T) string {
	t.Helper()
	const path = "../../bin/programs/mpi.tar"
	layer, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run: make programs-roots", err)
	}
	config := ocispec.ImageConfig{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}}
	ref, err := shared.Registry.Push(t.Context(), "mpi:1", config, layer)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// The commands of the pods of an MPIJob. The launcher waits until it has the addresses of the workers, since the cluster has no DNS.
const (
	mpiWorkerScript   = `mkdir -p /run/sshd; echo "$RING" >/tmp/ring.py; exec /usr/sbin/sshd -De -o StrictModes=no`
	mpiLauncherScript = `printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' >/etc/ssh/ssh_config.d/workers.conf
for h in $(cut -d' ' -f1 /etc/mpi/hostfile); do
until getent hosts $h; do sleep 0.2; done; until ssh $h true </dev/null; do sleep 0.2; done; done
exec mpirun.openmpi --allow-run-as-root --hostfile /etc/mpi/hostfile --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle 1 python3 /tmp/ring.py`
)

// mpiWork is that of the ranks of an MPIJob, which count their steps.
type mpiWork struct {
	launcher string // the first
	step     int    // that was seen before the checkpoint
}

func (w *mpiWork) begin(t *testing.T, r podRing) {
	t.Helper()
	var hosts strings.Builder
	_, named, _ := strings.Cut(r.label, ": ")
	for _, p := range r.pods[1:] {
		fmt.Fprintf(&hosts, "%s %s.%s.default.svc\n", p.Status.PodIP, p.Metadata.Name, named)
	}
	w.launcher = r.pods[0].Metadata.Name
	must(t, shared.Exec(t.Context(), w.launcher, "", "sh", "-c", fmt.Sprintf("printf %q >>/etc/hosts", hosts.String())))
	w.goesOn(t, r)
	all := w.steps(t, w.launcher)
	w.step = all[len(all)-1]
}

// steps returns the steps that the launcher has printed.
func (w *mpiWork) steps(t *testing.T, launcher string) (all []int) {
	t.Helper()
	out, err := shared.Logs(t.Context(), launcher, "")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "wrong") {
		t.Fatalf("the job prints\n%s", out)
	}
	for _, m := range regexp.MustCompile(`step (\d+)`).FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(m[1])
		all = append(all, n)
	}
	return all
}

func (w *mpiWork) goesOn(t *testing.T, r podRing) {
	t.Helper()
	launcher := r.pods[0].Metadata.Name
	seen := len(w.steps(t, launcher))
	eventually(t, "steps of the job", func() bool { return len(w.steps(t, launcher)) > seen+5 })
	if first := w.steps(t, launcher)[0]; launcher != w.launcher && first <= w.step {
		t.Errorf("%s begins with step %d; step %d was before", launcher, first, w.step)
	}
}

// TestMPIJob takes an MPIJob of a launcher and two workers. When it was restored, its ranks end, and it has succeeded.
func TestMPIJob(t *testing.T) {
	image := mpiImage(t)
	ring, err := os.ReadFile("../testdata/mpi_ring.py")
	if err != nil {
		t.Fatal(err)
	}
	j := job{
		controller: mpiController, kind: "mpijob", label: mpiLabel, members: 3, work: &mpiWork{},
		object: func(name, group string) string {
			replica := func(script string) string {
				p := pod{image: image, command: []string{"bash", "-c", script}, container: fmt.Sprintf("env: [{name: RING, value: %q}]", ring)}
				return template(p, mpiLabel+": "+name, group, "      ")
			}
			return fmt.Sprintf(`apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: %s}
spec:
  mpiReplicaSpecs:
    Launcher:
%s    Worker:
      replicas: 2
%s`, name, replica(mpiLauncherScript), replica(mpiWorkerScript))
		},
	}
	named, _, is := j.take(t)
	must(t, shared.Exec(t.Context(), is.pods[1].Metadata.Name, "", "touch", "/tmp/end")) // the first worker has rank 0
	eventually(t, "the end of the MPIJob", func() bool { return strings.Contains(j.conditions(t, named), "Succeeded") })
}
