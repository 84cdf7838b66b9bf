package integration

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestContractLate: without the answer of the program there is no snapshot, and the container goes on.
func TestContractLate(t *testing.T) {
	a, _ := pair(t)
	ref := "contract/" + name(t) + ":1"
	id := participates(t, a, "mkdir -p $CRYO_CONTROL_DIR; echo waits; exec sleep 10000")
	file := participates(t, a, "mkdir -p /run; touch $CRYO_CONTROL_DIR; echo waits; exec sleep 10000")
	unasked := name(t)
	start(t, a, unasked, nil, "workload", "count")
	refused(t, a, codeDeadline, "has not made the file "+controlDir+"/ready within 500ms", "checkpoint", id, ref, "--when-ready", "--ready-timeout", "500ms")
	refused(t, a, codePrecondition, "names no control directory", "checkpoint", unasked, ref, "--when-ready")
	refused(t, a, codePrecondition, "not a directory", "checkpoint", file, ref, "--when-ready")
	refused(t, a, codeUsage, "is for --when-ready", "checkpoint", id, ref, "--ready-timeout", "5s")
	refused(t, a, codeUsage, "no time to wait", "checkpoint", id, ref, "--when-ready", "--ready-timeout", "0s")
	waits := func() *underway {
		c := under(t, a.Command(t.Context(), "cryo", "checkpoint", id, ref, "--when-ready"))
		eventually(t, "the command waits", 30*time.Second, func() bool { return len(senders(t, a)) == 1 })
		return c
	}
	c := waits()
	c.signal(syscall.SIGINT)
	if r := <-c.ended; r.Code != codeInterrupted {
		t.Errorf("interrupted: exit code %d: %s", r.Code, r.Stderr)
	}
	eventually(t, "no checkpoint process", time.Minute, func() bool { return len(senders(t, a)) == 0 })
	runs(t, a, id)
	c = waits()
	must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id))
	if r := <-c.ended; r.Code != codePrecondition || !strings.Contains(r.Stderr, "not running") {
		t.Errorf("the container has ended: exit code %d: %s", r.Code, r.Stderr)
	}
}

// TestContractWhen has the container's annotations take its snapshot when its program is ready, and send it. Nothing asks for it. The restored container is not taken again.
func TestContractWhen(t *testing.T) {
	_, b := pair(t)
	h := newHost(t, "contractwhen", lab.HostOptions{})
	registry := shared.registry.Address
	allowSending(t, h, "", registry)
	pullImage(t, h, shared.image)
	when := func(to string, more ...string) []string {
		all := slices.Clone(control)
		for _, a := range append([]string{sendAnnotation + "=" + to, "io.cryo.checkpoint-when=ready"}, more...) {
			all = append(all, "--annotation", a)
		}
		return all
	}
	run := func(program string, flags []string) (id string) {
		id = name(t)
		startImage(t, h, shared.image, id, flags, "sh", "-c", program)
		prints(t, h, id, "waits")
		return id
	}
	says := func(words string) {
		t.Helper()
		eventually(t, "containerd's log says "+words, 30*time.Second, func() bool { return strings.Contains(read(t, h.Log()), words) })
		eventually(t, "no checkpoint process", time.Minute, func() bool { return len(senders(t, h)) == 0 })
	}
	ref := registry + "/contract/when:1"
	id := run(warming, when(ref))
	must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "go", id, "touch", "/go"))
	says("a snapshot was taken and sent")
	keptNothing(t, h)
	runs(t, h, id)
	forget(t, b, ref)
	cleanup(t, b, id)
	if err := b.Configure("[checkpoint]\nrepositories = ['" + registry + "']\nplain-http = ['" + registry + "']\n"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Configure("") })
	must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--wait"))
	time.Sleep(time.Second)
	if len(senders(t, b)) > 0 {
		t.Error("a snapshot of the restored container is being taken")
	}

	run(warming, when(registry+"/contract/when:2", "io.cryo.checkpoint-ready-timeout=300ms"))
	says("within 300ms")
	run(warming, when("registry.example.com/elsewhere:1"))
	says("checkpoint-to: the configuration does not allow")
	dies := run(warming, when(registry+"/contract/when:3"))
	eventually(t, "the checkpoint process waits", time.Minute, func() bool { return len(senders(t, h)) == 1 })
	remove(t.Context(), h, dies)
	eventually(t, "no checkpoint process", time.Minute, func() bool { return len(senders(t, h)) == 0 })
	bad := name(t)
	cleanup(t, h, bad)
	if r := h.Ctr(t.Context(), slices.Concat([]string{"run", "--detach", "--runtime", cryoRuntime, "--annotation", "io.cryo.checkpoint-when=ready"}, []string{shared.image, bad, "true"})...); r.Code == 0 || !strings.Contains(r.Stderr, "needs io.cryo.checkpoint-to") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
}
