package integration

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// gateScript takes the place of ssh. It holds back what the member on a host sends from the step on that the file "gate" names, until the file "go" is there.
const gateScript = `#!/bin/bash
dir=%q
ssh -F %q "$@" | while IFS= read -r line; do
	read -r host step <"$dir/gate"
	if [ "$1" = "$host" ] && [[ $line == *"\"step\":\"$step\""* ]]; then
		touch "$dir/reached"
		until [ -e "$dir/go" ]; do sleep 0.02; done
	fi
	printf '%%s\n' "$line"
done
`

// turnstile is a place of one member's protocol at which a test can stop.
type turnstile struct{ dir, ssh string }

func newTurnstile(t *testing.T, config string) turnstile {
	t.Helper()
	g := turnstile{dir: t.TempDir()}
	g.ssh = filepath.Join(g.dir, "ssh")
	if err := os.WriteFile(g.ssh, fmt.Appendf(nil, gateScript, g.dir, config), 0o700); err != nil {
		t.Fatal(err)
	}
	return g
}

// set has the gate close when the member on a host has come to a step.
func (g turnstile) set(t *testing.T, h *lab.Host, step string) {
	t.Helper()
	_ = os.Remove(filepath.Join(g.dir, "go"))
	_ = os.Remove(filepath.Join(g.dir, "reached"))
	if err := os.WriteFile(filepath.Join(g.dir, "gate"), []byte(h.Name+" "+step+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (g turnstile) open(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// await waits until the gate has closed. A command that ends before fails the test.
func (g turnstile) await(t *testing.T, step string, ended chan lab.Result) {
	t.Helper()
	eventually(t, "the member is "+step, 30*time.Second, func() bool {
		select {
		case r := <-ended:
			t.Fatalf("the command ends before the member is %s: %v", step, r.Err())
		default:
		}
		_, err := os.Stat(filepath.Join(g.dir, "reached"))
		return err == nil
	})
}

// hasWords reports whether a process has words in its command line.
func hasWords(words ...string) func(process) bool {
	return func(p process) bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		text := strings.ReplaceAll(string(line), "\x00", " ")
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return err == nil
	}
}

// groupVictim is a process that dies. One that is stopped stands for a network that is cut.
type groupVictim struct {
	coordinators bool // on the coordinator's host
	is           func(process) bool
	signal       syscall.Signal
}

// groupVictims are what dies beside a worker process.
func groupVictims(worker string) map[string]groupVictim {
	return map[string]groupVictim{
		"coordinator": {true, func(p process) bool { return hasWords("cryo", "--group")(p) && p.command == "cryo" }, syscall.SIGKILL},
		"interrupted": {true, func(p process) bool { return hasWords("cryo", "--group")(p) && p.command == "cryo" }, syscall.SIGINT},
		"member":      {false, hasWords("cryo", "group-member"), syscall.SIGKILL},
		"worker":      {false, called(worker), syscall.SIGKILL},
		"connection":  {true, func(p process) bool { return p.command == "ssh" && hasWords("-F", "two")(p) }, syscall.SIGKILL},
		"silence":     {true, func(p process) bool { return p.command == "ssh" && hasWords("-F", "two")(p) }, syscall.SIGSTOP},
	}
}

// hasIndex reports whether the registry has the index of a group.
func hasIndex(t *testing.T, ref string) bool {
	t.Helper()
	repository, tag, _ := strings.Cut(strings.TrimPrefix(ref, shared.registry.Reference("")), ":")
	r, err := shared.registry.Get(t.Context(), "/v2/"+repository+"/manifests/"+tag, ocispec.MediaTypeImageIndex)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// ringHosts are two hosts with a ring between them.
type ringHosts struct {
	hosts  []*lab.Host
	ids    []string
	before [][]string // what is on the hosts beside the containers
	turnstile
}

func newRingHosts(t *testing.T) *ringHosts {
	t.Helper()
	r := &ringHosts{hosts: []*lab.Host{newHost(t, "one", lab.HostOptions{}), newHost(t, "two", lab.HostOptions{})}}
	r.turnstile = newTurnstile(t, sshd(t, t.TempDir(), r.hosts...))
	r.set(t, r.hosts[0], "none")
	r.ids = ringOf(t, r.hosts...)
	r.look(t)
	return r
}

func (r *ringHosts) look(t *testing.T) {
	t.Helper()
	r.before = [][]string{trace(t, r.hosts[0]), trace(t, r.hosts[1])}
}

// checkpoint starts a checkpoint of the ring.
func (r *ringHosts) checkpoint(t *testing.T, ref string, left bool) chan lab.Result {
	ended := make(chan lab.Result, 1)
	args := []string{"checkpoint", "--ssh", r.ssh, "--group", "one=one/" + r.ids[0], "--group", "two=two/" + r.ids[1], "--plain-http", ref}
	if left {
		args = append(args, "--leave-running")
	}
	go func() { ended <- r.hosts[0].Cryo(t.Context(), args...) }()
	return ended
}

// kill sends the signal to a victim, if there is one.
func (r *ringHosts) kill(t *testing.T, v groupVictim) (pid int) {
	t.Helper()
	at := r.hosts[1]
	if v.coordinators {
		at = r.hosts[0]
	}
	if pid = find(t, at, v.is); pid != 0 {
		if err := syscall.Kill(pid, v.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	return pid
}

// strike kills a victim when the member on the second host has come to a step, lets that member go on, and waits for the end of the command, which must fail.
func (r *ringHosts) strike(t *testing.T, step, kind string, victim groupVictim, ended chan lab.Result) {
	t.Helper()
	r.await(t, step, ended)
	pid := r.kill(t, victim)
	if pid == 0 {
		t.Fatalf("there is no %s", kind)
	}
	r.open(t)
	if r := <-ended; r.Code == 0 {
		t.Errorf("the command succeeded: %s", r.Stdout)
	} else {
		t.Log(r.Stderr)
	}
	if victim.signal == syscall.SIGSTOP {
		kill(t, pid)
	}
}

// settles checks what became of the ring: it runs, or the index is published and the snapshot has it; nothing else is left. published: the index may be.
func (r *ringHosts) settles(t *testing.T, ref string, left, published bool) {
	t.Helper()
	there := hasIndex(t, ref)
	if there && !published {
		t.Error("the index is published")
	}
	for _, h := range r.hosts {
		if there { // a host's store may have the member's snapshot, as after a checkpoint of one container
			works := func(p process) bool { return hasWords("cryo", "group-member")(p) || called("cryo-checkpoint")(p) }
			eventually(t, "the member on "+h.Name+" has ended", 40*time.Second, func() bool { return !slices.ContainsFunc(processes(t, h), works) })
			h.Cryo(t.Context(), "rm", ref+"-"+h.Name)
		}
	}
	if there && !left { // some have ended, as published
		r.set(t, r.hosts[0], "none")
		for i, h := range r.hosts {
			remove(t.Context(), h, r.ids[i])
		}
		must(t, r.hosts[0].Cryo(t.Context(), "restore", "--ssh", r.ssh, "--group", "one=one", "--group", "two=two", "--plain-http", "--allow", "namespaces", ref))
		r.look(t)
	}
	for i, h := range r.hosts {
		goesRound(t, h, r.ids[i])
		eventually(t, "cryo prune removes what a killed checkpoint process has written on "+h.Name, 40*time.Second, func() bool {
			return !strings.Contains(must(t, h.Cryo(t.Context(), "prune", "--json")).Stdout, `"busy": true`)
		})
		wantTraceWithin(t, h, 40*time.Second, r.before[i])
		if tables := must(t, h.Run(t.Context(), "nft", "list", "tables")).Stdout; strings.Contains(tables, "cryo") {
			t.Errorf("%s has a fence: %s", h.Name, tables)
		}
	}
}

// badGroup takes checkpoints of a group, with --leave-running if left is true. In each of them it kills one of the processes, or cuts a connection, at one of the steps.
func badGroup(t *testing.T, left bool, steps ...string) {
	t.Helper()
	r := newRingHosts(t)
	for _, step := range steps {
		for kind, victim := range groupVictims("cryo-checkpoint") {
			if kind == "worker" && left && step == "told" {
				continue // it has done all that it has to do
			}
			if kind == "silence" && (left || step != "held" && step != "told") {
				continue // it is as the death of the connection, 15 s later
			}
			t.Run(step+"/"+kind, func(t *testing.T) {
				ref := shared.registry.Reference(name(t)) + ":bad"
				r.set(t, r.hosts[1], step)
				ended := r.checkpoint(t, ref, left)
				r.strike(t, step, kind, victim, ended)
				r.settles(t, ref, left, step == "complete" || step == "told")
			})
		}
	}
}

// The steps are those of several tests, since one test may take ten minutes only.
func TestGroupBadRunning(t *testing.T)     { badGroup(t, true, "admitted", "frozen", "held") }
func TestGroupBadRunningLate(t *testing.T) { badGroup(t, true, "complete", "told") }
func TestGroupBadEnding(t *testing.T)      { badGroup(t, false, "admitted", "frozen", "held") }
func TestGroupBadEndingLate(t *testing.T)  { badGroup(t, false, "complete", "told") }

// TestGroupChaos has processes of a group's checkpoint die at any time. CRYO_GROUP_CHAOS is for how long, such as 1h.
func TestGroupChaos(t *testing.T) {
	long := 30 * time.Second
	if text := os.Getenv("CRYO_GROUP_CHAOS"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	r := newRingHosts(t)
	victims := groupVictims("cryo-checkpoint")
	victims["criu"] = groupVictim{false, isCRIU, syscall.SIGKILL}
	kinds := slices.Sorted(maps.Keys(victims))
	outcomes := map[string]int{}
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); {
		kind, left, wait := kinds[rand.IntN(len(kinds))], rand.IntN(2) == 0, time.Duration(rand.Int64N(int64(2500*time.Millisecond)))
		ref := shared.registry.Reference(name(t)) + ":chaos"
		began := time.Now()
		ended := r.checkpoint(t, ref, left)
		time.Sleep(wait)
		var pid int
		for i, h := range r.hosts {
			if pid != 0 || (i == 0) != victims[kind].coordinators {
				continue
			}
			for _, p := range processes(t, h) {
				if victims[kind].is(p) {
					pid = p.pid
					_ = syscall.Kill(pid, victims[kind].signal)
					break
				}
			}
		}
		result := <-ended
		if victims[kind].signal == syscall.SIGSTOP && pid != 0 {
			kill(t, pid)
		}
		outcome := fmt.Sprintf("%s, hit %v, code %d, published %v", kind, pid != 0, result.Code, hasIndex(t, ref))
		outcomes[outcome]++
		r.settles(t, ref, left, true)
		if result.Code == 0 && !hasIndex(t, ref) {
			t.Error("the command succeeded, and the index is absent")
		}
		if t.Failed() {
			t.Errorf("%s, left %v, killed after %s, round of %s: %s", outcome, left, wait, time.Since(began), result.Stderr)
		}
	}
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		t.Logf("%4d %s", outcomes[outcome], outcome)
	}
}

// TestGroupBadRestore has each of the processes of a group's restore die, and each connection cut, at each step.
func TestGroupBadRestore(t *testing.T) {
	r := newRingHosts(t)
	hosts, ids, one, two := r.hosts, r.ids, r.hosts[0], r.hosts[1]
	ref := shared.registry.Reference(name(t)) + ":bad"
	must(t, <-r.checkpoint(t, ref, false))
	for i, h := range hosts {
		remove(t.Context(), h, ids[i])
		cleanup(t, h, ids[1-i])
	}
	// Each goes to the host of the other.
	restore := []string{"restore", "--ssh", r.ssh, "--group", "one=two", "--group", "two=one", "--plain-http", "--allow", "namespaces", ref}
	for _, step := range []string{"placed", "restored", "running"} {
		for kind, victim := range groupVictims("cryo-restore") {
			if kind == "silence" && step != "restored" {
				continue // it is as the death of the connection, 15 s later
			}
			if kind == "worker" && step != "restored" {
				continue // there is none yet, or it has done all that it has to do
			}
			t.Run(step+"/"+kind, func(t *testing.T) {
				r.set(t, two, step)
				ended := make(chan lab.Result, 1)
				go func() { ended <- one.Cryo(t.Context(), restore...) }()
				r.strike(t, step, kind, victim, ended)
				switch {
				case step == "running" && (kind == "member" || kind == "connection"): // the others stay if the coordinator has heard that all run, and else are removed
					eventually(t, "the other member runs or is gone", 40*time.Second, func() bool {
						_, status, err := one.Task(t.Context(), ids[1])
						return err == nil && (status == "RUNNING" || status == "")
					})
					for i, h := range hosts {
						remove(t.Context(), h, ids[1-i])
					}
				case kind == "member": // as after cryo restore that is killed, the created container is left
					eventually(t, "no process is left on two", 40*time.Second, func() bool {
						_, status, err := two.Task(t.Context(), ids[0])
						return err == nil && status != "RUNNING" && len(restorers(t, two)) == 0
					})
					remove(t.Context(), two, ids[0])
				}
				for i, h := range hosts {
					eventually(t, "no container is left on "+h.Name, 40*time.Second, func() bool {
						return !strings.Contains(must(t, h.Ctr(t.Context(), "containers", "ls", "-q")).Stdout, ids[1-i])
					})
					// The kernel may keep the ends of connections until the other host's kernel has answered, which was asked ever more seldom while the member waited.
					eventually(t, "no connection is left on "+h.Name, time.Minute, func() bool {
						return !strings.Contains(must(t, h.Run(t.Context(), "ss", "-tan", "exclude", "time-wait")).Stdout, ":7100")
					})
				}
			})
		}
	}
	r.set(t, one, "none")
	must(t, one.Cryo(t.Context(), restore...))
	for i, h := range hosts {
		goesRound(t, h, ids[1-i])
	}
}
