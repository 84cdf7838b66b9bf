package main

import (
	"slices"

	"github.com/cryo-project/cryo/shim/worker"
)

// The steps of a group that only the commands have. The others are those of package worker.
const (
	stepTold    worker.Step = "told"    // the member knows which index is about to be published
	stepRunning worker.Step = "running" // the restored container runs
)

// The steps in their order. At each, a member waits until all members have reached it.
var (
	checkpointSteps = []worker.Step{worker.Admitted, worker.Frozen, worker.Held, worker.Complete, stepTold}
	restoreSteps    = []worker.Step{worker.Placed, worker.Restored, stepRunning}
)

// groupEvent is what a coordinator or a member observes. One field is set.
type groupEvent struct {
	reached    worker.Step // a coordinator: by the member of; a member: by its work
	permitted  worker.Step // a member: by the coordinator
	publishing bool        // a member: the coordinator is about to publish the index
	abandoned  bool        // a member: the coordinator will not publish it, and has not tried
	looked     lookedUp    // a member: the registry's answer
	published  lookedUp    // a coordinator: the registry's answer
	done       bool        // the member's work has succeeded
	failed     bool        // the member's work has failed, and is undone
	closed     bool        // the other end has closed the connection, or is silent
	late       bool        // a coordinator: the time for the step is over
}

// lookedUp is whether the registry has the index.
type lookedUp int

const (
	notLooked lookedUp = iota
	indexThere
	indexAbsent
)

// groupAction is what a coordinator or a member does upon an event.
type groupAction struct {
	do   groupDeed
	step worker.Step
}

type groupDeed string

const (
	// Of a member.
	tellReached groupDeed = "tell reached" // tell the coordinator that step is reached
	passStep    groupDeed = "pass"         // let the work go on from step
	callOff     groupDeed = "call off"     // have the work undone
	lookUp      groupDeed = "look up"      // ask the registry whether the index was published
	removeIt    groupDeed = "remove"       // end and remove the restored container
	tellEnd     groupDeed = "tell end"     // tell the coordinator how the work ended
	// Of a coordinator.
	permitAll groupDeed = "permit"   // let all members go on from step
	announce  groupDeed = "announce" // tell all members which index is about to be published
	publish   groupDeed = "publish"  // write the index to the registry
	abandon   groupDeed = "abandon"  // tell all members that the index is not published
	closeAll  groupDeed = "close"    // close the connections: each member undoes its work
)

// memberLife is what a member decides.
type memberLife struct {
	restores bool
	reached  worker.Step
	told     bool // which index is about to be published
	ran      bool // the restored container runs
	kept     bool // and goes on whatever becomes of the coordinator
	closed   bool
	over     bool // the work has ended
}

// on takes an event, and returns what is to be done.
func (m *memberLife) on(e groupEvent) []groupAction {
	switch {
	case e.reached != "":
		m.reached = e.reached
		if m.closed {
			return []groupAction{{do: callOff}}
		}
		return []groupAction{{tellReached, e.reached}}
	case e.permitted != "":
		if m.closed || m.over || e.permitted != m.reached {
			return nil
		}
		if e.permitted == stepRunning {
			m.kept, m.over = true, true
			return []groupAction{{do: tellEnd}}
		}
		return []groupAction{{passStep, e.permitted}}
	case e.publishing:
		if m.closed || m.over || m.reached != worker.Complete {
			return nil
		}
		m.told = true
		return []groupAction{{tellReached, stepTold}}
	case e.abandoned:
		m.told = false
		return nil
	case e.looked != notLooked && m.over:
		return nil
	case e.looked == indexThere:
		return []groupAction{{passStep, worker.Complete}}
	case e.looked == indexAbsent:
		return []groupAction{{do: callOff}}
	case e.done && m.restores:
		m.ran, m.reached = true, stepRunning
		if m.closed {
			m.over = true
			return []groupAction{{do: removeIt}}
		}
		return []groupAction{{tellReached, stepRunning}}
	case e.done, e.failed:
		m.over = true
		return []groupAction{{do: tellEnd}}
	case e.closed && !m.closed:
		return m.alone()
	}
	return nil
}

// alone returns what is to be done where the coordinator is gone.
func (m *memberLife) alone() []groupAction {
	m.closed = true
	switch {
	case m.over:
		return nil
	case m.ran:
		m.over = true
		return []groupAction{{do: removeIt}}
	case m.told: // the index may have been published
		return []groupAction{{do: lookUp}}
	}
	return []groupAction{{do: callOff}}
}

// coordination is what a coordinator decides.
type coordination struct {
	steps   []worker.Step
	at      int           // the step that is waited for; len(steps): the end
	reached []worker.Step // by each member
	ended   []bool        // the member's work is over, or its connection is
	tried   bool          // to publish the index
	failed  bool          // all members were told to undo their work, as far as they have not decided
	decided bool          // the coordinator has published the index, or all members have reported that they run: it undoes nothing any more
}

func newCoordination(steps []worker.Step, members int) *coordination {
	return &coordination{steps: steps, reached: make([]worker.Step, members), ended: make([]bool, members)}
}

// on takes an event of a member, and returns what is to be done.
func (c *coordination) on(member int, e groupEvent) []groupAction {
	switch {
	case e.reached != "":
		c.reached[member] = e.reached
		return c.advance()
	case e.done:
		c.ended[member] = true
		return nil
	case e.failed, e.closed:
		if c.ended[member] {
			return nil
		}
		c.ended[member] = true
		return c.fail()
	case e.late:
		return c.fail()
	case e.published == indexThere:
		c.decided = true
		return []groupAction{{permitAll, worker.Complete}}
	case e.published == indexAbsent:
		return c.fail()
	}
	return nil
}

// advance returns what is to be done when all members have reached a step.
func (c *coordination) advance() []groupAction {
	if c.failed || c.at == len(c.steps) {
		return nil
	}
	step := c.steps[c.at]
	if slices.ContainsFunc(c.reached, func(reached worker.Step) bool { return reached != step }) {
		return nil
	}
	c.at++
	switch step {
	case worker.Complete:
		return []groupAction{{do: announce}}
	case stepTold:
		c.tried = true
		return []groupAction{{do: publish}}
	case stepRunning:
		c.decided = true
	}
	return []groupAction{{permitAll, step}}
}

// fail has all members undo their work, unless that is decided already.
func (c *coordination) fail() []groupAction {
	if c.failed || c.decided {
		return nil
	}
	c.failed = true
	if c.tried { // each member looks whether it is published
		return []groupAction{{do: closeAll}}
	}
	return []groupAction{{do: abandon}, {do: closeAll}}
}

// over reports whether no member does anything any more for the group.
func (c *coordination) over() bool { return !slices.Contains(c.ended, false) }
