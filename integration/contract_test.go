package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestContract have programs that take part in their checkpoints and restores; see shim/CONTRACT.md.

// controlDir is the control directory of the containers of these tests.
const controlDir = "/run/cryo"

// control are flags of ctr run for a container with a control directory.
var control = []string{"--env", "CRYO_CONTROL_DIR=" + controlDir}

// participant is a program that writes each event that it reads, and what it reads of it, to its output. It never looks whether anything has come.
const participant = `mkdir -p $CRYO_CONTROL_DIR; cd $CRYO_CONTROL_DIR; mkfifo events; exec 3<>events; echo waits
while read -r what generation <&3; do echo "event $what $generation"; [ $what = restored ] && tr -d '\n' <restored.json && echo; done`

// restoredChanges are what a restored program reads.
type restoredChanges struct {
	Version          int
	Generation       int64
	Snapshot, Digest string
	Frozen, Time     time.Time
	Pause            float64
	Hostname         struct{ Was, Is string }
	Addresses        struct{ Was, Is []string }
	GPUs             []struct{ Was, Is string }
	Environment      map[string]*string
	Annotations      map[string]*string
}

// participates starts the program on a host, with more flags of ctr run, and waits until it waits.
func participates(t *testing.T, h *lab.Host, program string, flags ...string) (id string) {
	t.Helper()
	id = name(t)
	startImage(t, h, shared.image, id, slices.Concat(control, flags), "sh", "-c", program)
	prints(t, h, id, "waits")
	return id
}

// prints waits until a container has printed a line that begins with some words, and returns what is after it.
func prints(t *testing.T, h *lab.Host, id, words string) (after string) {
	t.Helper()
	eventually(t, id+" prints "+words, 30*time.Second, func() bool {
		var found bool
		_, after, found = strings.Cut("\n"+logged(t, h, id), "\n"+words)
		return found && strings.Contains(after, "\n")
	})
	return after
}

// logged is what a container has printed, that start has started or the command has restored.
func logged(t *testing.T, h *lab.Host, id string) string {
	t.Helper()
	if text := output(t, h, id); text != "" {
		return text
	}
	return h.Cryo(t.Context(), "logs", id).Stdout
}

// restoredEvent is what a program has read that was restored: the generation in the event, and the file.
func restoredEvent(t *testing.T, h *lab.Host, id string) (c restoredChanges, text string) {
	t.Helper()
	generation, text, _ := strings.Cut(prints(t, h, id, "event restored "), "\n")
	eventually(t, "the file", 10*time.Second, func() bool {
		_, text, _ = strings.Cut(logged(t, h, id), "event restored "+generation+"\n")
		return strings.HasSuffix(text, "}\n")
	})
	if err := json.Unmarshal([]byte(text), &c); err != nil || fmt.Sprint(c.Generation) != generation {
		t.Fatalf("the event has generation %s; the file has %s (%v)", generation, text, err)
	}
	return c, text
}

// TestContractRestored has a program of which a snapshot is taken, which goes on, and of which two clones are restored. All wait in a read.
func TestContractRestored(t *testing.T) {
	a, b := pair(t)
	id := participates(t, a, participant, "--env", "ROLE=first", "--hostname", "first")
	j := journey{id: id, checkpoint: []string{"--leave-running"}}
	checkpoint(t, a, j)
	prints(t, a, id, "event resumed")
	must(t, b.Cryo(t.Context(), "pull", j.ref(), "--plain-http"))
	var clones []restoredChanges
	for _, n := range []string{"-1", "-2"} {
		clone := id + n
		cleanup(t, b, clone)
		must(t, b.Cryo(t.Context(), "restore", j.ref(), "--plain-http", "--name", clone, "--env", "ROLE="+n))
		c, text := restoredEvent(t, b, clone)
		if c.Version != 1 || c.Snapshot == "" || !strings.HasPrefix(c.Digest, "sha256:") || c.Pause <= 0 || c.Pause > 60 || time.Since(c.Time) > time.Minute || c.Time.Before(c.Frozen) ||
			c.Hostname.Was != "first" || c.Hostname.Is != "first" || c.Addresses.Was == nil || c.Addresses.Is == nil || len(c.GPUs) > 0 || len(c.Environment) != 1 || *c.Environment["ROLE"] != n {
			t.Errorf("the program reads %s", text)
		}
		clones = append(clones, c)
	}
	if clones[0].Generation == clones[1].Generation {
		t.Errorf("both clones are of generation %d", clones[0].Generation)
	}
	if strings.Contains(logged(t, a, id), "event restored") {
		t.Error("the container that went on was told of a restore")
	}
}

// TestContractUnasked: a container that does not name a control directory gets no file.
func TestContractUnasked(t *testing.T) {
	a, b := pair(t)
	j := journey{id: name(t)}
	start(t, a, j.id, nil, "workload", "count")
	move(t, j)
	if found := must(t, b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "find", j.id, "ls", "-A", "/")).Stdout; strings.Contains(found, ".cryo") {
		t.Errorf("the container has %s", found)
	}
}

// warming is a program that is ready when the file /go is there.
const warming = `mkdir -p $CRYO_CONTROL_DIR; echo waits; while [ ! -e /go ]; do sleep 0.05; done; touch $CRYO_CONTROL_DIR/ready; while :; do sleep 1; done`

// TestContractReady takes a snapshot when the program says that it may be taken, and not before.
func TestContractReady(t *testing.T) {
	a, _ := pair(t)
	id, ref := participates(t, a, warming), "contract/"+name(t)+":1"
	forget(t, a, ref)
	c := under(t, a.Command(t.Context(), "cryo", "checkpoint", id, ref, "--when-ready", "--leave-running", "--progress", "json"))
	eventually(t, "the command waits", 30*time.Second, func() bool { return len(senders(t, a)) == 1 })
	time.Sleep(300 * time.Millisecond)
	if r := a.Cryo(t.Context(), "inspect", ref); r.Code != codeNotFound {
		t.Errorf("there is a snapshot before the program is ready: %s", r.Stdout)
	}
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "go", id, "touch", "/go"))
	if r := must(t, <-c.ended); !strings.Contains(r.Stderr, "waiting until "+id+" is ready, by the file "+controlDir+"/ready") {
		t.Errorf("the command says %s", r.Stderr)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--when-ready", "--rm")) // it is still ready
	must(t, a.Cryo(t.Context(), "inspect", ref))
}

// TestContractResumed: a program hears that it goes on where its checkpoint has failed, or was only tried, and of no restore.
func TestContractResumed(t *testing.T) {
	a, _ := pair(t)
	ref := "contract/" + name(t) + ":1"
	id := participates(t, a, participant, hooked("before-checkpoint=[ -e /go ]", "after-restore=exit 1")...)
	if r := a.Cryo(t.Context(), "checkpoint", id, ref); r.Code != codeAborted || !strings.Contains(r.Stderr, "has exited with 1") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	prints(t, a, id, "event resumed")
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "go", id, "touch", "/go"))
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--verify", "--leave-running"))
	eventually(t, "the second event", 30*time.Second, func() bool { return strings.Count(logged(t, a, id), "event resumed") == 2 })
	if strings.Contains(logged(t, a, id), "restored") {
		t.Errorf("the program was told of a restore: %s", logged(t, a, id))
	}
}
