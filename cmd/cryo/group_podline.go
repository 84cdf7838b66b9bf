package main

import (
	"sync"
	"time"

	"github.com/cryo-project/cryo/image"
)

// memberLine returns a member's end of the line to the coordinator, which runs on node lead. The line writes what the member sends into this node's share of the group's status. The member receives what is new in the coordinator's share. index is the index of a group that is restored.
func (g *podGroup) memberLine(lead, name string, ask groupAsk, index image.Group) *groupLine {
	l := newLine()
	go func() {
		defer close(l.flushed)
		l.drain(func(m groupMessage) { g.note(name, m) }, nil)
		g.flush()
	}()
	go func() {
		defer close(l.received)
		if !l.receive(groupMessage{Ask: &ask}) {
			return
		}
		var was groupLead
		g.follow(l.closed, lead, func(o *groupObject) (over bool) {
			share := o.Status.Nodes[lead]
			if share.Leads == nil {
				return false
			}
			news := share.Leads.news(was, index)
			was = *share.Leads
			return !l.receive(news...) || was.Closed
		})
	}()
	return l
}

// receive passes on what has come, unless this end is closed.
func (l *groupLine) receive(all ...groupMessage) bool {
	for _, m := range all {
		select {
		case l.received <- m:
		case <-l.closed:
			return false
		}
	}
	return true
}

// follow calls look with each state of the group, until look reports that nothing more will come, the node at the other end is silent, the group is deleted, or stop is closed; nil: it never is.
func (g *podGroup) follow(stop <-chan struct{}, other string, look func(*groupObject) (over bool)) {
	tick, since := time.NewTicker(watchAgain), time.Now()
	defer tick.Stop()
	for {
		o, gone, changed := g.now()
		if gone || look(o) {
			return
		}
		select {
		case <-changed:
		case <-stop:
			return
		case <-tick.C:
			if g.pulse.silent(other, since) {
				return
			}
		}
	}
}

// leadLines are the coordinator's ends of the lines to all members. What is sent to all is written once.
type leadLines struct {
	*podGroup

	mu   sync.Mutex
	open int // lines; guarded by mu
}

// line opens the line to a member.
func (a *leadLines) line(p groupPlan) *groupLine {
	l := newLine()
	go func() {
		defer close(l.flushed)
		l.drain(func(m groupMessage) { a.edit(func(s *nodeShare) { s.Leads.note(m) }) }, nil)
		a.mu.Lock()
		a.open--
		last := a.open == 0
		a.mu.Unlock()
		if last {
			a.edit(func(s *nodeShare) { s.Leads.Closed = true })
		}
	}()
	go func() {
		defer close(l.received)
		var was memberShare
		begun := time.Now()
		a.follow(nil, p.Node, func(o *groupObject) (over bool) { // a member is heard to its end, also when it is told no more
			is, has := o.Status.Nodes[p.Node].Members[p.Name]
			if !has || is.UID != p.UID {
				return time.Since(begun) > unclaimedTime // the node finds other pods, or another coordinator
			}
			for _, m := range is.news(was) {
				l.received <- m
			}
			was = is
			return is.ended()
		})
	}()
	return l
}
