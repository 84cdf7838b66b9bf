package kubernetes

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
)

// TestPods runs a pod of cryo's on each node: ready by its probes, exec, logs, measured by the kubelet, reached by the other; and looks at what it leaves.
func TestPods(t *testing.T) {
	const script = `echo begun on $(hostname); while true; do echo from $(hostname) | nc -l -p 8080; done & exec workload count --memory 8`
	probes := `
readinessProbe: {exec: {command: [workload, ask]}, periodSeconds: 1}
livenessProbe: {tcpSocket: {port: 9090}, periodSeconds: 1}
startupProbe: {exec: {command: [test, -S, /srv/ask.sock]}, periodSeconds: 1}
resources: {limits: {memory: 100Mi, cpu: 500m}}`
	listen := strings.Replace(script, "exec ", "while true; do nc -l -p 9090 </dev/null; done & exec ", 1)
	var pods []*cluster.Pod
	for _, node := range []*cluster.Node{shared.A, shared.B} {
		pods = append(pods, run(t, pod{name: name(t), class: "cryo", node: node, command: []string{"sh", "-c", listen}, container: probes}))
	}
	for i, node := range []*cluster.Node{shared.A, shared.B} {
		p, other := pods[i], pods[1-i]
		id := p.Metadata.Name
		if shim := shimOf(t, node, p); filepath.Base(shim) != "containerd-shim-cryo-v1" {
			t.Errorf("%s runs under %s", id, shim)
		}
		first := ask(t, id)
		if second := ask(t, id); second.Count < first.Count || second.Life != first.Life {
			t.Errorf("%s counted from %d to %d, life %s then %s", id, first.Count, second.Count, first.Life, second.Life)
		}
		if log, err := shared.Logs(t.Context(), id, ""); err != nil || !strings.HasPrefix(log, "begun on "+id+"\n") {
			t.Errorf("log of %s: %q, %v", id, log, err)
		}
		if out := must(t, shared.Exec(t.Context(), id, "", "nc", "-w", "5", other.Status.PodIP, "8080")).Stdout; out != "from "+other.Metadata.Name+"\n" {
			t.Errorf("%s heard %q from %s", id, out, other.Metadata.Name)
		}
		if out := shared.Exec(t.Context(), id, "", "sh", "-c", "exit 7"); out.Code != 7 {
			t.Errorf("exec in %s: %+v", id, out)
		}
		if stats, err := shared.WaitStats(t.Context(), node, id); err != nil || stats.Memory.WorkingSetBytes < 8<<20 || stats.Memory.WorkingSetBytes > 100<<20 {
			t.Errorf("stats of %s: %+v, %v", id, stats, err)
		}
		if events, err := shared.Events(t.Context(), id); err != nil || !strings.Contains(fmt.Sprint(events), "Started") {
			t.Errorf("events of %s: %v, %v", id, events, err)
		}
		p, err := shared.Pod(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if c := p.Status.ContainerStatuses[0]; c.RestartCount != 0 {
			t.Errorf("%s was started again: %+v", id, c)
		}
	}
	if a, b := address(t, pods[0]), address(t, pods[1]); a == b {
		t.Errorf("pods of both nodes have addresses in %s", a)
	}
	for i, node := range []*cluster.Node{shared.A, shared.B} {
		if err := shared.DeletePod(t.Context(), pods[i].Metadata.Name); err != nil {
			t.Error(err)
		}
		for _, leak := range node.Leaks() {
			t.Error("left behind:", leak)
		}
	}
}

// address is the subnet of a pod's address.
func address(t *testing.T, p *cluster.Pod) netip.Prefix {
	t.Helper()
	address, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		t.Fatal(err)
	}
	return netip.PrefixFrom(address, 26).Masked()
}

// shimOf is the program of the shim that has a pod's first container: the parent of its first process.
func shimOf(t *testing.T, node *cluster.Node, p *cluster.Pod) string {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	for _, process := range node.Running() {
		var parent int
		dir := fmt.Sprintf("/proc/%d/", process.PID)
		cgroups, err := os.ReadFile(dir + "cgroup")
		if err != nil || !strings.Contains(string(cgroups), id) {
			continue
		}
		status, err := os.ReadFile(dir + "status")
		if err != nil {
			continue
		}
		if _, after, found := strings.Cut(string(status), "\nPPid:"); found {
			_, _ = fmt.Sscan(after, &parent) // a number, see proc_pid_status(5)
		}
		if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", parent)); err == nil && strings.HasPrefix(filepath.Base(program), "containerd-shim") {
			return program
		}
	}
	t.Fatalf("no shim of %s", p.Metadata.Name)
	return ""
}
