package main

import "testing"

// TestChooseRepeats has the same seed and number give the same choice, and others give others.
func TestChooseRepeats(t *testing.T) {
	different := 0
	for round := range 200 {
		first, second := choose(7, round, filter{}), choose(7, round, filter{})
		if first != second {
			t.Fatalf("round %d: %s, then %s", round, first, second)
		}
		if choose(8, round, filter{}) != first {
			different++
		}
	}
	if different < 150 {
		t.Errorf("another seed gives the same in %d of 200 rounds", 200-different)
	}
}

// TestChooseReaches has every operation, fault and target come up.
func TestChooseReaches(t *testing.T) {
	missing := map[[3]string]bool{}
	for _, o := range operations {
		for _, f := range faults {
			for _, target := range f.targets(o) {
				missing[[3]string{o.name, f.name, target}] = true
			}
		}
	}
	for round := range 30000 {
		c := choose(1, round, filter{})
		delete(missing, [3]string{c.Operation, c.Fault, c.Target})
	}
	for m := range missing {
		t.Error("never chosen:", m)
	}
}

func TestFilter(t *testing.T) {
	only, err := parseFilter([]string{"end", "kill", "shim", "criu"})
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for round := range 100 {
		c := choose(3, round, only)
		if c.Operation != "end" || c.Fault != "kill" {
			t.Fatalf("round %d: %s", round, c)
		}
		targets[c.Target] = true
	}
	if len(targets) != 2 || !targets["shim"] || !targets["criu"] {
		t.Errorf("targets: %v", targets)
	}
	for _, words := range [][]string{{"nonsense"}, {"rm", "shim"}, {"push", "restart", "cryo"}} {
		if _, err := parseFilter(words); err == nil {
			t.Errorf("%v is taken", words)
		}
	}
}

// TestSteps has every step that an operation names be known.
func TestSteps(t *testing.T) {
	for _, o := range operations {
		for _, name := range o.events {
			if commands[name] == "" && steps[name] == nil && name != "tag" && name != "end" {
				t.Errorf("%s: no step %s", o.name, name)
			}
		}
		for _, name := range o.processes {
			if commands[name] == "" && name != "registry" {
				t.Errorf("%s: no process %s", o.name, name)
			}
		}
	}
}

// TestBlocks has disks that forget under a block of rounds, and only there what wants them.
func TestBlocks(t *testing.T) {
	for round := range 2 * block * forgetfulBlocks {
		c := choose(5, round, filter{})
		if want := round/block%forgetfulBlocks == 1; c.Disk != want || faultOf(c.Fault).disk != want {
			t.Fatalf("round %d: %s, on a disk that forgets: %t", round, c, c.Disk)
		}
	}
	for word, want := range map[string]bool{"power": true, "kill": false} {
		only, err := parseFilter([]string{word})
		if err != nil {
			t.Fatal(err)
		}
		for _, round := range []int{0, block} {
			if c := choose(5, round, only); c.Disk != want {
				t.Errorf("only %s, round %d: on a disk that forgets: %t", word, round, c.Disk)
			}
		}
	}
}
