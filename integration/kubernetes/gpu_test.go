package kubernetes

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// way is how pods are given GPUs.
type way interface {
	start(t *testing.T, n *cluster.Node) // until the test ends; the node's GPUs may be asked for when it returns
	asks(p pod, gpus int) pod            // the pod that asks for so many
}

// keeper has pods' device memory saved by the keeper, and those that use two GPUs too.
var keeper = map[string]string{"io.cryo.gpu.engine": "keeper", "io.cryo.gpu.force": "gpu-peer"}

// gpuPod is one of fakeapp's that the scheduler puts on a node.
func gpuPod(t *testing.T, n *cluster.Node) pod {
	return pod{name: name(t), class: "cryo", image: shared.GPU, command: []string{"/fake/fakeapp", "--quiet", "--blocks", "1,2,3,5,1"}, annotations: keeper,
		spec: "nodeSelector: {kubernetes.io/hostname: " + n.Name + "}"}
}

// restored is the same of a snapshot.
func restored(t *testing.T, n *cluster.Node, ref string) pod {
	p := gpuPod(t, n)
	p.image, p.command = ref, nil
	return p
}

// giveGPUs snapshots pods with GPUs on one node, and restores them on the other: on the GPU that another pod has not, though it is the first that the snapshot names; on both; and not at all where
// the driver fails when CRIU has made the processes, or a pod has too few.
func giveGPUs(t *testing.T, w way) {
	a, b := shared.A, shared.B
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(coldStarts(t, b), ""))
		}
	})
	w.start(t, a)
	w.start(t, b)

	first := w.asks(gpuPod(t, a), 1)
	p := run(t, first)
	was := ask(t, first.name)
	hasGPUs(t, a, p, was, 0)
	ref, _ := snapshot(t, a, p)
	savedByKeeper(t, a, ref)
	if again := ask(t, first.name); again.Life != was.Life {
		t.Errorf("the snapshot's container is another: %+v", again)
	}
	if err := shared.DeletePod(t.Context(), first.name); err != nil {
		t.Fatal(err)
	}

	neighbour := w.asks(gpuPod(t, b), 1)
	p = run(t, neighbour)
	its := ask(t, neighbour.name)
	hasGPUs(t, b, p, its, 0)
	one := w.asks(restored(t, b, ref), 1)
	p = run(t, one)
	is := counts(t, one.name)
	warm(t, was, is)
	hasGPUs(t, b, p, is, 1)
	now := counts(t, neighbour.name)
	warm(t, its, now)
	p, err := shared.Pod(t.Context(), neighbour.name)
	if err != nil {
		t.Fatal(err)
	}
	hasGPUs(t, b, p, now, 0)
	for _, done := range []string{one.name, neighbour.name} {
		if err := shared.DeletePod(t.Context(), done); err != nil {
			t.Fatal(err)
		}
	}

	both := w.asks(gpuPod(t, a), 2)
	p = run(t, both)
	was = ask(t, both.name)
	hasGPUs(t, a, p, was, 0, 1)
	ref, _ = snapshot(t, a, p)
	savedByKeeper(t, a, ref)
	again := w.asks(restored(t, b, ref), 2)
	p = run(t, again)
	is = counts(t, again.name)
	warm(t, was, is)
	hasGPUs(t, b, p, is, 1, 0) // in the order of their nodes
	if err := shared.DeletePod(t.Context(), again.name); err != nil {
		t.Fatal(err)
	}

	if err := b.Order("restore 1 error 999"); err != nil {
		t.Fatal(err)
	}
	broken := w.asks(restored(t, b, ref), 2)
	p = run(t, broken)
	is = counts(t, broken.name)
	cold(t, was, is)
	hasGPUs(t, b, p, is, 1, 0)
	// The first container has failed when it had a task. The next one starts cold.
	if log, err := os.ReadFile(b.Log()); err != nil || !strings.Contains(string(log), "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN") {
		t.Errorf("%s does not say why the first container of %s has failed (%v)", b.Log(), broken.name, err)
	}
	if err := errors.Join(shared.DeletePod(t.Context(), broken.name), b.Order()); err != nil {
		t.Fatal(err)
	}

	few := w.asks(restored(t, b, ref), 1)
	p = run(t, few)
	is = counts(t, few.name)
	cold(t, was, is)
	hasGPUs(t, b, p, is, 0)
	coldFor(t, b, p, "gpu-count: the snapshot has 2 GPUs, and would get 1")
	fails := w.asks(restored(t, b, ref), 1)
	fails.annotations = map[string]string{"io.cryo.gpu.engine": "keeper", "io.cryo.restore.fallback": "fail"}
	apply(t, fails.yaml())
	if _, err := shared.WaitPod(t.Context(), fails.name, "refused", func(p *cluster.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			if strings.Contains(message(c.State)+message(c.LastState), "gpu-count: the snapshot has 2 GPUs, and would get 1") {
				return true
			}
		}
		return false
	}); err != nil {
		t.Error(err)
	}
}

// savedByKeeper fails the test unless a snapshot's device memory has been saved so.
func savedByKeeper(t *testing.T, n *cluster.Node, ref string) {
	t.Helper()
	if engine := must(t, n.Cryo(t.Context(), "inspect", ref, "--plain-http", "--format", "{{.config.gpu.engine}}")).Stdout; strings.TrimSpace(engine) != "keeper" {
		t.Errorf("its device memory was saved by %q", engine)
	}
}

// hasGPUs fails the test unless fakeapp is on the GPUs of these indices of a node, in this order, and a pod's first container sees these alone, and may use no others.
func hasGPUs(t *testing.T, n *cluster.Node, p *cluster.Pod, is lab.Answer, indices ...int) {
	t.Helper()
	var uuids, devices []string
	var minors []int
	for _, i := range indices {
		uuids, minors = append(uuids, n.UUID(i)), append(minors, n.Minor(i))
	}
	slices.Sort(minors)
	for _, process := range processes(t, is) {
		devices = append(devices, process.Devices...)
	}
	if !slices.Equal(devices, uuids) {
		t.Errorf("%s is on %v, want %v", p.Metadata.Name, devices, uuids)
	}
	seen, allowed, err := lab.GPUsOf(taskOf(t, n, p))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, minors) || allowed != nil && !slices.Equal(allowed, minors) {
		t.Errorf("%s sees the GPUs %v and may use %v, want %v", p.Metadata.Name, seen, allowed, minors)
	}
}

// process is what fakeapp says of each of its processes.
type process struct {
	Devices []string // UUIDs
	Ticks   float64  // how often it has counted on its devices
}

func processes(t *testing.T, is lab.Answer) (all []process) {
	t.Helper()
	data, err := json.Marshal(is.State["processes"])
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil || len(all) == 0 {
		t.Fatalf("fakeapp says %+v: %v", is, err)
	}
	return all
}

// counts waits until each process of a pod's fakeapp has counted on its devices, whose memory is whole.
func counts(t *testing.T, pod string) lab.Answer {
	t.Helper()
	is := ask(t, pod)
	first := processes(t, is)
	eventually(t, "the use of the GPUs of "+pod, func() bool {
		is = ask(t, pod)
		now := processes(t, is)
		for i := range first {
			if len(now) != len(first) || now[i].Ticks <= first[i].Ticks {
				return false
			}
		}
		return true
	})
	return is
}

// taskOf is the first process of a pod's first container.
func taskOf(t *testing.T, n *cluster.Node, p *cluster.Pod) int {
	t.Helper()
	id := containerOf(p)
	for line := range strings.Lines(must(t, n.Ctr(t.Context(), "-n", "k8s.io", "tasks", "ls")).Stdout) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == id {
			pid, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("%s has no task", p.Metadata.Name)
	return 0
}

// containerOf is the id of a pod's first container.
func containerOf(p *cluster.Pod) string {
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// coldFor fails the test unless containerd's log has why a pod's container was started instead of restored.
func coldFor(t *testing.T, n *cluster.Node, p *cluster.Pod, says string) {
	t.Helper()
	if !slices.ContainsFunc(coldStarts(t, n), func(line string) bool { return strings.Contains(line, containerOf(p)) && strings.Contains(line, says) }) {
		t.Errorf("%s does not say of %s: %s", n.Log(), p.Metadata.Name, says)
	}
}

// coldStarts are the lines of containerd's log about containers that were started instead of restored.
func coldStarts(t *testing.T, n *cluster.Node) (lines []string) {
	t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "a container is started afresh") {
			lines = append(lines, line)
		}
	}
	return lines
}
