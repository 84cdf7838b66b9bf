package main

import (
	"fmt"
	"slices"
	"strings"
)

// Exit codes of cryo that mean something here; see "cryo help exit-codes".
const (
	exitOK       = 0
	exitNotFound = 3
	exitState    = 4
	exitLost     = 12
	exitKilled   = 137

	exitInterrupted = 130
)

// seen is all that was seen after an operation.
type seen struct {
	code  int
	text  string // what the command said
	state string // of the container, see look.go
	// Of the snapshot in the local store: ls has its name, verify finds it whole; its name was seen there meanwhile.
	listed, whole, tagged bool
	// The same of the registry, where that was asked for.
	remote, remoteWhole bool
	reported, logged    bool   // its end was an event of containerd's, and is in its log
	harmed              string // what was killed, rebooted or damaged; "": nothing
	twice               bool   // the command was given twice, and this is the one that did better
	passing             bool   // what was harmed passed: a bad line or registry, or no room in the local store
	coming              bool   // the command does not wait until all memory is here
}

func (s seen) failed() bool { return s.code != exitOK && s.code != exitKilled }

// harmedOne tells whether one of these was killed.
func (s seen) harmedOne(of ...string) bool { return s.harmed != "" && slices.Contains(of, s.harmed) }

// late tells whether the container was gone before the command looked at it: that has nothing to lose.
func (s seen) late() bool {
	return s.code == exitState && strings.Contains(s.text, "the container is stopped, not running")
}

// ran tells whether a restore says that its container ran before it was ended.
func (s seen) ran() bool {
	return s.failed() && strings.Contains(s.text, "it ran, and was ended, since its memory did not all come")
}

// runsOn reports whether a restore failed and its message says that the container runs: a part of the snapshot is missing in the store, or a signal has ended the wait for memory.
func (s seen) runsOn() bool {
	return s.failed() && strings.Contains(s.text, "runs and has all its memory, but not all of the snapshot is in the local store") ||
		s.code == exitInterrupted && strings.Contains(s.text, "runs on, and its memory still comes")
}

// Outcomes of a round.
const (
	ranOn     = "ran on"  // the container runs, or what was asked for was done
	gone      = "gone"    // the container is gone, as was asked for or with a reason
	refused   = "refused" // the command failed, and nothing is lost
	violation = "violation"
)

// verdict is what is to be said of a round.
type verdict struct {
	outcome string
	wrong   []string
}

func (v *verdict) violate(format string, args ...any) {
	v.outcome = violation
	v.wrong = append(v.wrong, fmt.Sprintf(format, args...))
}

// be sets the outcome, unless something is wrong.
func (v *verdict) be(outcome string) {
	if v.outcome != violation {
		v.outcome = outcome
	}
}

// judgeSnapshot is for every operation that makes or removes a name in the local store.
func (v *verdict) judgeSnapshot(s seen) {
	if s.listed && !s.whole {
		v.violate("a snapshot is listed that is not whole")
	}
	if s.remote && !s.remoteWhole {
		v.violate("the registry has a snapshot that is not whole")
	}
}

// judgeCheckpoint judges checkpoints. Ending ones end their container.
func judgeCheckpoint(s seen, ending, push bool) verdict {
	v := verdict{outcome: ranOn}
	v.judgeSnapshot(s)
	switch s.state {
	case runs:
	case stopped, absent:
		v.be(gone)
	default:
		v.violate("the container is %s", s.state)
		return v
	}
	lost := s.state != runs
	switch {
	case s.twice && s.code != exitOK:
		v.violate("given twice, and neither has done it")
	case s.code == exitOK && !s.whole:
		v.violate("done, without a whole snapshot")
	case s.code == exitOK && push && !s.remoteWhole:
		v.violate("done, without a whole snapshot in the registry")
	case s.code == exitOK && ending && !lost:
		v.violate("done, and the container runs on")
	case s.code == exitOK && !ending && lost && !s.harmedOne("shim", "host"):
		v.violate("done, and the container that was to run on is %s", s.state)
	}
	switch {
	case !lost && s.code == exitLost:
		v.violate("reported lost, and runs")
	case lost && !s.whole && s.tagged:
		v.violate("container and snapshot both lost: there was a snapshot")
	case lost && !s.whole && !s.harmedOne("shim", "criu", "runc", "host"):
		v.violate("container and snapshot both lost")
	case lost && !s.whole && s.failed() && s.code != exitLost && !s.late():
		v.violate("the container is %s, and the exit code is %d", s.state, s.code)
	case lost && s.whole && s.failed() && !strings.Contains(s.text, "snapshot"):
		v.violate("the container is %s, and nothing is said of the snapshot, which is whole (exit code %d)", s.state, s.code)
	}
	if lost {
		v.judgeReason(s, s.code != exitOK && !s.whole && !s.late())
	}
	return v
}

// judgeReason wants the end of a container to be known to who did not wait for the command: by an event, and by the log where it was lost.
func (v *verdict) judgeReason(s seen, lost bool) {
	if !s.reported {
		v.violate("the container is %s, and there was no exit event", s.state)
	}
	if lost && !s.logged {
		v.violate("the container is lost, and the log does not say so")
	}
}

// judgeRestore judges restores of a container that was not there.
func judgeRestore(s seen) verdict {
	v := verdict{outcome: ranOn}
	v.judgeSnapshot(s)
	if s.twice && s.code != exitOK {
		v.violate("given twice, and neither has done it")
	}
	switch s.state {
	case runs:
		if s.failed() && !s.runsOn() {
			v.violate("reported failed (exit code %d), and the container runs", s.code)
		}
	case stopped, absent:
		v.be(refused)
		switch {
		case s.state == stopped && s.passing && (s.ran() || s.code == exitOK && s.coming):
			v.violate("what passed has ended a running container")
		case s.state == stopped && s.ran():
			v.be(gone)
			v.judgeReason(s, true)
		case s.code == exitOK && (s.coming || s.harmedOne("shim", "restore", "keeper", "host", "store")):
			v.be(gone)
			v.judgeReason(s, true)
		case s.code == exitOK:
			v.violate("done, and the container is %s", s.state)
		case s.failed() && s.state == stopped:
			v.violate("reported failed (exit code %d), and a container is left", s.code)
		case s.failed() && strings.TrimSpace(s.text) == "":
			v.violate("failed (exit code %d) without a word", s.code)
		}
	case taskless, "created":
		// A command that is killed leaves what it has made in containerd, as ctr run does.
		if v.be(refused); s.code != exitKilled {
			v.violate("the container is %s (exit code %d)", s.state, s.code)
		}
	default:
		v.violate("the container is %s (exit code %d)", s.state, s.code)
	}
	return v
}

// judgeStock judges stock clients, which do not undo what they have done: a user does. What runs must be right.
func judgeStock(s seen, restore bool) verdict {
	v := verdict{outcome: ranOn}
	switch s.state {
	case runs:
	case stopped, absent, taskless, "created", "paused":
		v.be(refused)
		switch {
		case s.code == exitOK && !s.harmedOne("shim", "host"):
			v.violate("done, and the container is %s", s.state)
		case s.code == exitOK || !restore && s.state == stopped && s.harmedOne("shim", "criu", "runc", "host"):
			v.be(gone)
		case !restore && s.state != "paused":
			v.violate("the container is %s", s.state)
		}
	default:
		v.violate("the container is %s", s.state)
	}
	return v
}

// judgeCopy judges what only moves snapshots: there afterwards is what they shall make, or not if they remove.
func judgeCopy(s seen, removes, remote bool) verdict {
	v := verdict{outcome: ranOn}
	v.judgeSnapshot(s)
	is := s.whole
	if remote {
		is = s.remoteWhole
	}
	switch {
	case s.code != exitOK && s.twice:
		v.violate("given twice, and neither has done it")
	case s.code != exitOK:
		v.be(refused)
		if s.failed() && strings.TrimSpace(s.text) == "" {
			v.violate("failed (exit code %d) without a word", s.code)
		}
	case is == removes:
		v.violate("done, and the snapshot is there: %t", is)
	}
	return v
}
