package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/shim/worker"
)

// world is a group with its containers, its registry and its network. Each of the processes may die at any time, and each connection may be cut.
type world struct {
	restores, ends bool // ends: the containers end with their snapshots
	coordinator    coordination
	alive          bool // the coordinator
	put            lookedUp
	putting        bool // the coordinator writes the index, or wrote it when it died
	members        []citizen
	halves         bool // a connection may also be cut in one direction: one node observes the silence of another that still hears it, as in Kubernetes
	deaths         int  // how many processes and connections may still fail
	faults         int  // how many have
}

// citizen is a member: its command, its worker and its container.
type citizen struct {
	life      memberLife
	command   bool         // lives
	hears     bool         // what the coordinator sends
	heard     bool         // by the coordinator
	to, from  []groupEvent // messages under way: to the member, and from it
	work      string       // where the worker is
	container string       // running, frozen, cut (frozen behind a fence), ended, absent
	looking   bool
	dumped    bool
	whole     bool // it was dumped when each of the others stood still or had been dumped before
}

func newWorld(restores, ends bool, members, deaths int) world {
	steps, container, work := checkpointSteps, "running", "admitting"
	if restores {
		steps, container, work = restoreSteps, "absent", "placing"
	}
	w := world{restores: restores, ends: ends, coordinator: *newCoordination(steps, members), alive: true, put: indexAbsent, deaths: deaths}
	for range members {
		w.members = append(w.members, citizen{life: memberLife{restores: restores}, command: true, hears: true, heard: true, work: work, container: container})
	}
	return w
}

func (w world) copy() world {
	w.coordinator.reached, w.coordinator.ended = slices.Clone(w.coordinator.reached), slices.Clone(w.coordinator.ended)
	w.members = slices.Clone(w.members)
	for i := range w.members {
		w.members[i].to, w.members[i].from = slices.Clone(w.members[i].to), slices.Clone(w.members[i].from)
	}
	return w
}

func (w world) key() string { return fmt.Sprintf("%+v", w) }

// coordinate has the coordinator take an event.
func (w *world) coordinate(i int, e groupEvent) {
	for _, a := range w.coordinator.on(i, e) {
		switch a.do {
		case permitAll:
			w.send(groupEvent{permitted: a.step})
		case announce:
			w.send(groupEvent{publishing: true})
		case publish:
			w.putting = true
		case abandon:
			w.send(groupEvent{abandoned: true})
		case closeAll:
			for j := range w.members {
				if w.members[j].hears || !w.halves {
					w.members[j].to = append(w.members[j].to, groupEvent{closed: true})
				}
			}
		}
	}
}

func (w *world) send(e groupEvent) {
	for j := range w.members {
		if w.members[j].hears {
			w.members[j].to = append(w.members[j].to, e)
		}
	}
}

// decide has a member's command take an event.
func (w *world) decide(i int, e groupEvent) {
	m := &w.members[i]
	for _, a := range m.life.on(e) {
		switch a.do {
		case tellReached:
			m.tell(groupEvent{reached: a.step})
		case tellEnd:
			if m.work == "failed" {
				m.tell(groupEvent{failed: true})
			} else {
				m.tell(groupEvent{done: true})
			}
		case passStep:
			w.pass(i, a.step)
		case callOff:
			w.undo(i)
		case lookUp:
			m.looking = true
		case removeIt:
			m.container, m.work = "absent", "failed"
			if w.halves { // a pod's node writes it into its share; by ssh the connection ends
				m.tell(groupEvent{failed: true})
			}
		}
	}
}

func (m *citizen) tell(e groupEvent) {
	if m.heard {
		m.from = append(m.from, e)
	}
}

// pass has the worker go on from a step.
func (w *world) pass(i int, step worker.Step) {
	next := map[worker.Step]string{worker.Admitted: "freezing", worker.Frozen: "cutting", worker.Held: "dumping", worker.Complete: "ending", worker.Placed: "restoring", worker.Restored: "starting"}
	w.members[i].work = next[step]
}

// undo has the worker undo what it did, unless that is over.
func (w *world) undo(i int) {
	m := &w.members[i]
	if m.work == "done" || m.work == "failed" {
		return
	}
	m.work = "undoing"
}

// moves returns all worlds that may come next.
func (w world) moves() (next []world) {
	add := func(change func(w *world)) {
		n := w.copy()
		change(&n)
		next = append(next, n)
	}
	for i := range w.members {
		m := w.members[i]
		if m.command && len(m.to) > 0 {
			add(func(w *world) {
				e := w.members[i].to[0]
				w.members[i].to = w.members[i].to[1:]
				w.decide(i, e)
			})
		}
		if w.alive && len(m.from) > 0 {
			add(func(w *world) {
				e := w.members[i].from[0]
				w.members[i].from = w.members[i].from[1:]
				w.coordinate(i, e)
			})
		}
		// The index is looked for as long as a coordinator may be writing it.
		if m.command && m.looking && !(w.putting && w.put == indexAbsent) {
			add(func(w *world) { w.members[i].looking = false; w.decide(i, groupEvent{looked: w.put}) })
		}
		for _, step := range w.works(i) {
			add(step)
		}
		if w.deaths == 0 {
			continue
		}
		if m.command && m.hears && m.heard {
			add(func(w *world) { w.fault(); w.cut(i) })
			if w.halves {
				add(func(w *world) { w.fault(); w.members[i].deafen() })
				add(func(w *world) { w.fault(); w.members[i].silence() })
			}
			add(func(w *world) { // the command dies; its worker hears that it has hung up
				w.fault()
				w.members[i].command = false
				w.cut(i)
				if !w.members[i].life.kept && !(w.restores && w.members[i].life.ran) {
					w.undo(i)
				}
			})
		}
		if m.work != "done" && m.work != "failed" && m.work != "undoing" {
			add(func(w *world) { w.fault(); w.undo(i) }) // the work fails
		}
	}
	for i, m := range w.members {
		if w.leftToEnd(m) { // by the cryo node that is started anew
			add(func(w *world) { w.members[i].container, w.members[i].work = "absent", "failed" })
		}
	}
	if w.putting && w.put == indexAbsent {
		add(func(w *world) { w.put = indexThere })
		add(func(w *world) { // the registry refuses
			w.putting = false
			if w.alive {
				w.coordinate(0, groupEvent{published: indexAbsent})
			}
		})
	}
	if w.putting && w.put == indexThere && w.alive {
		add(func(w *world) { w.putting = false; w.coordinate(0, groupEvent{published: indexThere}) })
	}
	if w.alive && w.deaths > 0 && !w.coordinator.over() {
		add(func(w *world) {
			w.fault()
			w.alive = false
			for j := range w.members {
				w.cut(j)
			}
		})
		add(func(w *world) { w.fault(); w.coordinate(0, groupEvent{late: true}) })
	}
	return next
}

// leftToEnd reports whether the container of a pod runs whose cryo node has died, and whose group is not restored: that is known when the coordinator is done, or is dead.
func (w world) leftToEnd(m citizen) bool {
	return w.halves && w.restores && !m.command && m.container == "running" && !w.coordinator.decided && (!w.alive || w.coordinator.over())
}

func (w *world) fault() { w.deaths--; w.faults++ }

// cut cuts a connection: what is under way to the member is lost or not, which the order of moves decides; each end observes the cut.
func (w *world) cut(i int) {
	w.members[i].deafen()
	w.members[i].silence()
}

// deafen has the member observe that the coordinator is gone.
func (m *citizen) deafen() {
	if m.hears {
		m.hears, m.to = false, []groupEvent{{closed: true}}
	}
}

// silence has the coordinator observe that the member is gone.
func (m *citizen) silence() {
	if m.heard {
		m.heard, m.from = false, append(m.from, groupEvent{closed: true})
	}
}

// works returns what the worker of a member may do next.
func (w world) works(i int) []func(*world) {
	at := func(work string, then func(w *world, m *citizen)) func(*world) {
		return func(w *world) { w.members[i].work = work; then(w, &w.members[i]) }
	}
	reach := func(step worker.Step) func(*world, *citizen) {
		return func(w *world, m *citizen) { w.hear(i, groupEvent{reached: step}) }
	}
	switch w.members[i].work {
	case "admitting":
		return []func(*world){at("admitted", reach(worker.Admitted))}
	case "freezing":
		return []func(*world){at("frozen", func(w *world, m *citizen) { m.container = "frozen"; reach(worker.Frozen)(w, m) })}
	case "cutting":
		return []func(*world){at("held", func(w *world, m *citizen) { m.container = "cut"; reach(worker.Held)(w, m) })}
	case "dumping":
		return []func(*world){at("sending", func(w *world, m *citizen) {
			m.dumped, m.whole = true, true
			for _, o := range w.members {
				m.whole = m.whole && (o.container == "cut" || o.dumped)
			}
			if !w.ends {
				m.container = "running"
			}
		})}
	case "sending":
		return []func(*world){at("complete", reach(worker.Complete))}
	case "ending":
		return []func(*world){at("done", func(w *world, m *citizen) {
			if w.ends {
				m.container = "ended"
			}
			w.hear(i, groupEvent{done: true})
		})}
	case "placing":
		return []func(*world){at("placed", reach(worker.Placed))}
	case "restoring":
		return []func(*world){at("restored", func(w *world, m *citizen) { m.container = "frozen"; reach(worker.Restored)(w, m) })}
	case "starting":
		return []func(*world){at("done", func(w *world, m *citizen) { m.container = "running"; w.hear(i, groupEvent{done: true}) })}
	case "undoing":
		return []func(*world){at("failed", func(w *world, m *citizen) {
			m.container = "running"
			if w.restores {
				m.container = "absent"
			}
			w.hear(i, groupEvent{failed: true})
		})}
	}
	return nil
}

// hear has a member's command hear of its worker.
func (w *world) hear(i int, e groupEvent) {
	if w.members[i].command {
		w.decide(i, e)
	}
}

// check returns what is wrong with a world in which nothing happens any more, or at any time.
func (w world) check(last bool) error {
	for i, m := range w.members {
		switch {
		case w.put == indexThere && (!m.dumped || !m.whole):
			return fmt.Errorf("the index is published, and member %d was not dumped while all stood still", i)
		case m.container == "ended" && w.put != indexThere:
			return fmt.Errorf("member %d has ended, and no index is published", i)
		case last && (m.container == "frozen" || m.container == "cut"):
			return fmt.Errorf("member %d stands still for ever", i)
		case last && w.faults == 0 && w.restores && m.container != "running":
			return fmt.Errorf("member %d is %s though nothing has failed", i, m.container)
		case last && w.faults == 0 && !w.restores && (w.ends && w.put == indexThere) != (m.container == "ended"):
			return fmt.Errorf("member %d is %s though nothing has failed", i, m.container)
		case last && !w.restores && m.container != "running" && m.container != "ended":
			return fmt.Errorf("member %d is %s", i, m.container)
		case last && w.restores && w.halves && m.container == "running" && !w.coordinator.decided:
			return fmt.Errorf("member %d runs, and the group is not restored", i)
		}
	}
	if last && w.alive && w.restores { // a coordinator that lives knows: all run, or none does where its connections hold
		running, absent := 0, 0
		for _, m := range w.members {
			switch {
			case !m.hears: // told what is left of it
			case m.container == "running":
				running++
			default:
				absent++
			}
		}
		if running > 0 && absent > 0 {
			return fmt.Errorf("%d run and %d do not", running, absent)
		}
	}
	return nil
}

// TestGroupLives goes through all orders of all events of small groups, with up to two failures.
func TestGroupLives(t *testing.T) {
	for _, c := range []struct {
		name           string
		restores, ends bool
		members        int
		deaths         int
		halves         bool
	}{
		{"left running, 2 members", false, false, 2, 2, false},
		{"ended, 2 members", false, true, 2, 2, false},
		{"ended, 3 members", false, true, 3, 1, false},
		{"restored, 2 members", true, false, 2, 2, false},
		{"restored, 3 members", true, false, 3, 1, false},
		{"left running, 2 pods", false, false, 2, 2, true},
		{"ended, 2 pods", false, true, 2, 2, true},
		{"restored, 2 pods", true, false, 2, 2, true},
		{"restored, 3 pods", true, false, 3, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			first := newWorld(c.restores, c.ends, c.members, c.deaths)
			first.halves = c.halves
			seen, waiting := map[string]bool{first.key(): true}, []world{first}
			ends := map[string]int{}
			for len(waiting) > 0 {
				w := waiting[len(waiting)-1]
				waiting = waiting[:len(waiting)-1]
				next := w.moves()
				last := len(next) == 0 || w.deaths > 0 && settled(next, w)
				if err := w.check(last); err != nil {
					t.Fatalf("%v\n%+v", err, w)
				}
				if last {
					end := fmt.Sprintf("index published %v:", w.put == indexThere)
					for _, m := range w.members {
						end += " " + m.container
					}
					ends[end]++
				}
				for _, n := range next {
					if k := n.key(); !seen[k] {
						seen[k] = true
						waiting = append(waiting, n)
					}
				}
			}
			t.Logf("%d states", len(seen))
			for end, n := range ends {
				t.Logf("%6d ends: %s", n, end)
			}
		})
	}
}

// settled reports whether nothing happens any more in a world unless another process or connection fails.
func settled(next []world, w world) bool {
	return !slices.ContainsFunc(next, func(n world) bool { return n.faults == w.faults })
}
