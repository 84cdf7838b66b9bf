package integration

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// preDumped is what "cryo checkpoint --json" says of a pre-dump.
type preDumped struct {
	Freeze float64
	Memory int64
	Parent string
	Rounds []struct {
		Bytes   int64
		Seconds float64
	}
}

// tracks says whether the kernel knows what is written to.
func tracks(t *testing.T, h *lab.Host) bool {
	t.Helper()
	return h.Run(t.Context(), "criu", "check", "--feature", "mem_dirty_track").Code == 0
}

// refusesPreDump sees that a pre-dump is refused where the kernel cannot do it, and that nothing is changed.
func refusesPreDump(t *testing.T, h *lab.Host, id, ref string) {
	t.Helper()
	r := h.Cryo(t.Context(), "checkpoint", id, ref, "--pre-dump")
	if r.Code != 4 || !strings.Contains(r.Stderr, "CONFIG_MEM_SOFT_DIRTY") || !strings.Contains(r.Stderr, "hint: ") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
	if out := must(t, h.Cryo(t.Context(), "ls")).Stdout; strings.Contains(out, ref) {
		t.Errorf("there is a snapshot: %s", out)
	}
	await(t, h, id)
}

// writes is a process that writes all the time, and of which snapshots are taken.
type writes struct {
	t       *testing.T
	h       *lab.Host
	id, ref string
}

// startWriter starts one with so much memory.
func startWriter(t *testing.T, mib string) writes {
	t.Helper()
	a, _ := pair(t)
	w := writes{t, a, name(t), "predump/" + name(t) + ":1"}
	start(t, a, w.id, nil, "workload", "writer", "--memory", mib, "--quiet")
	return w
}

// gap is the longest time for which it stood still since the last call.
func (w writes) gap() any {
	w.t.Helper()
	answer, err := w.h.Ask(w.t.Context(), w.id, "gap")
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.State["gap"]
}

func (w writes) shot(flags ...string) (p preDumped) {
	w.t.Helper()
	w.gap()
	r := must(w.t, w.h.Cryo(w.t.Context(), append([]string{"checkpoint", w.id, w.ref, "--json"}, flags...)...))
	if err := json.Unmarshal([]byte(r.Stdout), &p); err != nil {
		w.t.Fatal(err)
	}
	pause := any("the end")
	if slices.Contains(flags, "--leave-running") {
		pause = w.gap()
	}
	w.t.Logf("%v: longest pause %v, %s in all, %+v", flags, pause, r.Elapsed, p)
	return p
}

// back ends it, restores it, and sees that every byte is right.
func (w writes) back(flags ...string) {
	w.t.Helper()
	remove(w.t.Context(), w.h, w.id)
	must(w.t, w.h.Cryo(w.t.Context(), append([]string{"restore", w.ref, "--name", w.id}, flags...)...))
	await(w.t, w.h, w.id)
}

// TestPreDump takes snapshots of a process that writes all the time, in rounds: what comes in the freeze is what was written last, and after
// a restore every byte is right. Where the kernel does not track that, it sees that this is said, and that the container goes on.
func TestPreDump(t *testing.T) {
	w := startWriter(t, "64")
	if !tracks(t, w.h) {
		refusesPreDump(t, w.h, w.id, w.ref)
		return
	}
	p := w.shot("--pre-dump=3", "--leave-running")
	if len(p.Rounds) != 3 || p.Rounds[0].Bytes < 64<<20 || p.Rounds[1].Bytes > 32<<20 || p.Rounds[2].Bytes > 32<<20 || p.Memory < 64<<20 {
		t.Errorf("three rounds give %+v", p)
	}
	await(t, w.h, w.id)
	w.back()
	// It has a parent, and is filled in lazily; and it ends.
	if p := w.shot("--pre-dump"); len(p.Rounds) != 1 || p.Parent == "" {
		t.Errorf("one round gives %+v", p)
	}
	must(t, w.h.Cryo(t.Context(), "verify", w.ref))
	w.back("--eager")
	// A container that is paused has no rounds.
	must(t, w.h.Ctr(t.Context(), "tasks", "pause", w.id))
	r := must(t, w.h.Cryo(t.Context(), "checkpoint", w.id, w.ref, "--json", "--leave-running", "--pre-dump"))
	must(t, w.h.Ctr(t.Context(), "tasks", "resume", w.id))
	if strings.Contains(r.Stdout, "rounds") || !strings.Contains(r.Stderr, "paused") {
		t.Errorf("%s, %s", r.Stdout, r.Stderr)
	}
	await(t, w.h, w.id)
	w.back()
}

// TestPreDumpPause shows what rounds are for: the longest pause without and with them. CRYO_PREDUMP_MIB gives the process more memory.
func TestPreDumpPause(t *testing.T) {
	w := startWriter(t, cmp.Or(os.Getenv("CRYO_PREDUMP_MIB"), "64"))
	if !tracks(t, w.h) {
		refusesPreDump(t, w.h, w.id, w.ref)
		return
	}
	for range 2 {
		w.shot("--leave-running", "--parent", "none", "--compression", "none")
		if p := w.shot("--leave-running", "--parent", "none", "--compression", "none", "--pre-dump"); len(p.Rounds) != 1 {
			t.Errorf("one round gives %+v", p)
		}
	}
	w.back()
}

// TestPreDumpJourney moves processes of other kinds after rounds.
func TestPreDumpJourney(t *testing.T) {
	a, _ := pair(t)
	if !tracks(t, a) {
		id := name(t)
		start(t, a, id, nil, "workload", "count")
		refusesPreDump(t, a, id, "predump/"+id+":1")
		return
	}
	for name, workload := range map[string][]string{
		"shm":    {"shm"},
		"tree":   {"tree"},
		"files":  {"files"},
		"region": {"region", "--memory", "16"},
	} {
		t.Run(name, func(t *testing.T) {
			travel(t, journey{checkpoint: []string{"--pre-dump=2"}}, workload...)
		})
	}
}

// TestPreDumpInterrupted breaks off checkpoints in rounds and after them: the container goes on, and nothing is left.
func TestPreDumpInterrupted(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "predump/" + id + ":1"
	start(t, a, id, nil, "workload", "writer", "--memory", "64", "--quiet")
	if !tracks(t, a) {
		refusesPreDump(t, a, id, ref)
		return
	}
	forget(t, a, ref)
	args := []string{"checkpoint", id, ref, "--pre-dump=3", "--leave-running"}
	takes := must(t, a.Cryo(t.Context(), args...)).Elapsed
	must(t, a.Cryo(t.Context(), "rm", ref))
	before := trace(t, a)
	breakOff(t, a, takes, func(t *testing.T, r lab.Result) {
		await(t, a, id)
		swept(t, a)
		if r.Code == 0 {
			must(t, a.Cryo(t.Context(), "verify", ref))
		}
		must(t, a.Cryo(t.Context(), args...))
		must(t, a.Cryo(t.Context(), "rm", ref))
		wantTrace(t, a, before)
	}, args...)
}
