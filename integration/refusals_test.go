package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestRefusals takes snapshots of what CRIU cannot save and explains in words of its source only. cryo refuses it by a rule before anything is frozen, a stock client hears the same, and the container runs on.
func TestRefusals(t *testing.T) {
	a, _ := pair(t)
	for what, rule := range map[string]string{"io_uring": "io-uring", "mqueue": "message-queue"} {
		t.Run(what, func(t *testing.T) {
			id := name(t)
			start(t, a, id, nil, "workload", "descriptor", "--what", what)
			refused(t, a, codePrecondition, rule+": ", "checkpoint", id, "refusals/"+id+":1")
			refusedStock(t, a, rule+": ", id)
			counts(t, a, id)
		})
	}
	t.Run("traced", func(t *testing.T) {
		id := name(t)
		start(t, a, id, nil, "workload", "descriptor", "--what", "traced")
		refused(t, a, codePrecondition, "traced-process: ", "checkpoint", id, "refusals/"+id+":1")
		counts(t, a, id)
	})
}

// TestRefuseRing has containers do without io_uring by an annotation, with and without a seccomp profile. The client stays and reads the two streams: in a log of a file://
// URI, containerd loses the standard error of a program that ends at once (github.com/containerd/containerd/issues/3118).
func TestRefuseRing(t *testing.T) {
	a, _ := pair(t)
	for _, flags := range [][]string{nil, {"--seccomp"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			id := name(t)
			cleanup(t, a, id)
			r := a.Ctr(t.Context(), slices.Concat([]string{"run", "--rm", "--runtime", cryoRuntime, "--annotation", "io.cryo.io-uring=refuse"}, flags,
				[]string{"cryo.test/base:1", id, "workload", "descriptor", "--what", "io_uring"})...)
			if r.Code != 1 || !strings.Contains(r.Stderr, "function not implemented") { // as if the kernel had no io_uring
				t.Errorf("exit status %d: %s%s", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
	id := name(t)
	cleanup(t, a, id)
	if r := a.Ctr(t.Context(), "run", "--detach", "--null-io", "--runtime", cryoRuntime, "--annotation", "io.cryo.io-uring=yes", "cryo.test/base:1", id, "workload", "count"); r.Code == 0 || !strings.Contains(r.Stderr, "io.cryo.io-uring") {
		t.Errorf("another value: exit status %d, %s", r.Code, r.Stderr)
	}
}

// TestInotify saves what a program watches outside of the directories where CRIU looks by itself, and names the directory where cryo does not look either.
func TestInotify(t *testing.T) {
	a, _ := pair(t)
	comesBack(t, a, "inotify-tmp")
	other := name(t)
	start(t, a, other, nil, "workload", "descriptor", "--what", "inotify-other")
	r := a.Cryo(t.Context(), "checkpoint", other, "inotify/"+other+":1")
	if r.Code != codePrecondition || !strings.Contains(r.Stderr, "inotify: ") || !strings.Contains(r.Stderr, "inotify-paths") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	counts(t, a, other)
}

// TestEndedConnection saves, without --tcp-established, a program that has not closed a connection that ended. CRIU dumps its socket in any case, and restores it with that option only.
func TestEndedConnection(t *testing.T) {
	a, _ := pair(t)
	comesBack(t, a, "ended-tcp")
}

// comesBack saves and restores a container whose program has a descriptor of a kind open, without further flags.
func comesBack(t *testing.T, h *lab.Host, what string) {
	t.Helper()
	id := name(t)
	ref := what + "/" + id + ":1"
	start(t, h, id, nil, "workload", "descriptor", "--what", what)
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
	await(t, h, id)
}

// TestNearNames restores by a name that the local store does not have, and is told of the one that it has.
func TestNearNames(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	forget(t, a, "near/"+id+":1")
	must(t, a.Cryo(t.Context(), "checkpoint", id, "near/"+id+":1"))
	for _, wrong := range []string{"near/" + id + ":2", id + ":1", "nea/" + id + ":1"} {
		r := a.Cryo(t.Context(), "restore", wrong)
		if r.Code == 0 || !strings.Contains(r.Stderr, wrong+" names no registry: docker.io is asked for docker.io/") || !strings.Contains(r.Stderr, "; it has near/"+id+":1\n") {
			t.Errorf("%s: exit code %d: %s", wrong, r.Code, r.Stderr)
		}
	}
	r := a.Cryo(t.Context(), "restore", "other/name:1")
	if strings.Contains(r.Stderr, "near/") {
		t.Errorf("a name that is not near: %s", r.Stderr)
	}
}

// TestRefusedExit has a stock client ask for a checkpoint that ends a container with a nested namespace, of which a restore would be refused. The container runs on.
func TestRefusedExit(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, []string{"--cap-add", "CAP_SYS_ADMIN"}, "workload", "descriptor", "--what", "nested-network")
	if r := a.Ctr(t.Context(), "tasks", "checkpoint", "--exit", id); r.Code == 0 || !strings.Contains(r.Stderr, "nested-namespaces: ") {
		t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	counts(t, a, id)
}

// TestBesideExec saves a container in which exec has started what CRIU cannot save: it is no part of the snapshot.
func TestBesideExec(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "beside/" + id + ":1"
	start(t, a, id, nil, "workload", "count")
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--detach", "--exec-id", "beside", id, "workload", "descriptor", "--what", "io_uring", "--alone"))
	pid, _, err := a.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the exec has its descriptor", 10*time.Second, func() bool {
		found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/srv/alone", pid))
		return len(found) > 0
	})
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	counts(t, a, id)
}
