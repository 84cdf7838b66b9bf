package integration

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestForgedSandbox: where the process that reviews CRIU's images ends, as by a fault of a decoder, a snapshot is refused by the rule's name, and nothing is left.
func TestForgedSandbox(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"files"}))
	const ref, id = "cryo.test/forged-sandbox:1", "forged-sandbox"
	g.forgeImages(t, b, ref, func(string) {})
	for _, test := range []struct {
		by   string // who has started that process
		args []string
	}{
		{"cryo\x00inspect\x00" + ref, []string{"inspect", ref}},
		{"cryo\x00verify\x00" + ref, []string{"verify", ref}},
		{"\x00restore-process\x00", []string{"restore", ref, "--name", id}},
	} {
		t.Run(strings.Trim(strings.ReplaceAll(test.by, "\x00", " "), " -"), func(t *testing.T) {
			before := trace(t, b)
			for range 10 { // some are through before they are found
				done, hit := make(chan struct{}), make(chan bool)
				r := lab.Follow(b.Command(t.Context(), "cryo", test.args...), func() {
					go func() { hit <- killReview(b, test.by, done) }()
				})
				close(done)
				if !<-hit || r.Code == 0 && test.args[0] != "inspect" || r.Code == 0 && !strings.Contains(r.Stdout, "sandbox") {
					remove(t.Context(), b, id)
					continue
				}
				if r.Elapsed > 10*time.Second {
					t.Errorf("it took %s", r.Elapsed)
				}
				const words = "it ended without an answer"
				if test.args[0] == "restore" {
					refusal(t, r, codeDamaged, words)
				}
				if said := r.Stdout + r.Stderr; !strings.Contains(said, words) || !strings.Contains(said, "rule sandbox") || test.args[0] != "inspect" && r.Code != codeDamaged {
					t.Errorf("exit code %d:\n%s", r.Code, said)
				}
				wantTrace(t, b, before)
				return
			}
			t.Error("the review was never found")
		})
	}
}

// TestStockSandbox: the same where a stock client restores, and the shim has the images reviewed.
func TestStockSandbox(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cryo.test/"+name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	before := stockCheckpoint(t, a, id, ref)
	hits := 0
	for range 10 { // some are through before they are found
		done, hit := make(chan struct{}), make(chan bool)
		r := lab.Follow(a.Command(t.Context(), "ctr", "containers", "restore", "--live", "--rw", id, ref), func() {
			go func() { hit <- killReview(a, "-id\x00"+id+"\x00", done) }()
		})
		close(done)
		if <-hit {
			hits++
			if said := r.Stdout + r.Stderr; r.Code == 0 || !strings.Contains(said, "it ended without an answer") || !strings.Contains(said, "rule: sandbox") {
				t.Errorf("exit code %d:\n%s", r.Code, said)
			}
		}
		if remove(t.Context(), a, id); hits > 0 {
			break
		}
	}
	if hits == 0 {
		t.Error("the review was never found")
	}
	must(t, a.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref))
	wentOn(t, before, await(t, a, id))
}

// killReview kills a process of a host that reviews images, of a parent whose command line has some words, before done. No other host's: tests beside this one review, too.
func killReview(h *lab.Host, words string, done <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return false
		default:
		}
		for _, p := range h.Running() {
			if p.Command != "cryo-review" {
				continue
			}
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID)) // it may have ended
			_, rest, _ := bytes.Cut(status, []byte("\nPPid:\t"))
			parent, _, _ := bytes.Cut(rest, []byte("\n"))
			line, err := os.ReadFile("/proc/" + string(parent) + "/cmdline")
			if err == nil && strings.Contains(string(line), words) && unix.Kill(p.PID, unix.SIGKILL) == nil {
				return true
			}
		}
	}
}
