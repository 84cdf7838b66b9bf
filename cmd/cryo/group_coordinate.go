package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/worker"
)

// groupFlags say which containers on which hosts are a group.
type groupFlags struct {
	members []string // NAME=HOST/CONTAINER
	file    string   // with one of these a line
	ssh     string   // the command that reaches a host
	remote  string   // the cryo program there
	hold    time.Duration
	parsed  []groupPlace
}

// groupPlace is a container on a host.
type groupPlace struct {
	name      string
	host      string // empty: this one
	container string // empty: as it was
}

// sshWords are options of ssh that make it fail rather than ask, and notice a host that is gone.
const sshWords = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"

// holdTime is how long all members may take to stand still, once the first may.
const holdTime = 30 * time.Second

func (f *groupFlags) given() bool { return len(f.members) > 0 || f.file != "" }

// hostName is what ssh may be given: it takes a word that begins with '-' for an option.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@:%-]*$`)

// parse reads the members.
func (f *groupFlags) parse(command string, container bool) error {
	all := f.members
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return failure.New(errdefs.ErrInvalidArgument, "name a file with a member a line: NAME=HOST/CONTAINER", "--group-file: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
	}
	for _, text := range all {
		name, at, ok := strings.Cut(text, "=")
		host, id, named := strings.Cut(at, "/")
		switch {
		case !ok, container && (!named || id == ""), named && id == "":
			return misused(command, "%q is not NAME=HOST/CONTAINER", text)
		case host != "" && !hostName.MatchString(host):
			return misused(command, "%q is no name of a host", host)
		case slices.ContainsFunc(f.parsed, func(p groupPlace) bool { return p.name == name }):
			return misused(command, "two members are called %s", name)
		}
		if err := image.CheckMemberName(name); err != nil {
			return err
		}
		f.parsed = append(f.parsed, groupPlace{name, host, id})
	}
	if n := len(f.parsed); n > image.MaxMembers {
		return misused(command, "a group has %d members at most, not %d", image.MaxMembers, n)
	}
	return nil
}

// groupRun is a group of which this process is the coordinator.
type groupRun struct {
	*app
	what    string // checkpoint, restore
	state   *coordination
	members []*runningMember
	heard   chan memberNews
	over    chan struct{}    // closed when no member is heard any more
	late    <-chan time.Time // for the step that is waited for; nil: it may take as long as it does
	failed  error            // the first failure
	hold    time.Duration

	// permit returns the addresses that the coordinator sends with the permission to pass a step; nil: none.
	permit func(worker.Step) (*worker.Together, error)
	// publish writes the index, which index returns.
	publish func(context.Context) error
	index   func() (*groupIndex, error)
	written []byte // the index
}

// runningMember is a member as the coordinator sees it.
type runningMember struct {
	groupPlace
	line      *groupLine
	command   *exec.Cmd // nil: the member is reached by other means
	at        worker.Reached
	addresses []string
	last      *groupMessage // its last
	words     error         // why there is none
	progress  map[string]worker.Progress
}

// memberNews is a message of a member; nil: it is gone.
type memberNews struct {
	of      int
	message *groupMessage
}

// start runs the command of a member on its host.
func (g *groupRun) start(ctx context.Context, of int, f groupFlags) error {
	m := g.members[of]
	args := append(strings.Fields(cmp.Or(f.ssh, sshWords)), m.host, cmp.Or(f.remote, "cryo"), groupMemberCommand)
	if m.host == "" {
		own, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find cryo: %w", err)
		}
		args = []string{own, "--address", g.address, groupMemberCommand}
		if g.root != "" {
			args = slices.Insert(args, 1, "--root", g.root)
		}
		if g.configPath != "" {
			args = slices.Insert(args, 1, "--config", g.configPath)
		}
	}
	// Ctrl-C on the terminal is for the coordinator alone, which then has the members undo their work.
	m.command = exec.Command(args[0], args[1:]...) //nolint:noctx // it ends when its input does
	m.command.SysProcAttr = ownGroup()
	in, err := m.command.StdinPipe()
	if err != nil {
		return fmt.Errorf("reach %s: %w", m, err)
	}
	out, err := m.command.StdoutPipe()
	if err != nil {
		return fmt.Errorf("reach %s: %w", m, err)
	}
	complaints, err := m.command.StderrPipe()
	if err != nil {
		return fmt.Errorf("reach %s: %w", m, err)
	}
	if err := m.command.Start(); err != nil {
		return failure.New(errdefs.ErrUnavailable, "install an ssh client, or name one with --ssh", "reach %s: %w", m, err)
	}
	said := make(chan string, 1)
	go func() { said <- lastLine(complaints) }()
	m.line = openLine(out, in, func() { _ = in.Close() })
	g.listen(of, func() error {
		var line string
		select {
		case line = <-said:
		case <-time.After(tickTime):
		}
		return failure.New(errdefs.ErrUnavailable, "see whether its host can be reached by ssh, and there what became of the container: cryo ps, ctr tasks ls", "%s is gone without a word: %s", m, cmp.Or(line, "its connection was cut, or it was silent for "+silentTime.String()))
	})
	return nil
}

// listen passes on what a member sends, until the member is gone for the reason that why returns.
func (g *groupRun) listen(of int, why func() error) {
	m := g.members[of]
	pass := func(n memberNews) {
		select {
		case g.heard <- n:
		case <-g.over:
		}
	}
	go func() {
		for message := range m.line.received {
			pass(memberNews{of, &message})
		}
		m.line.close()
		m.words = why()
		pass(memberNews{of: of})
	}()
}

// lastLine returns the last line of what a program complains of, and reads all of it.
func lastLine(from io.Reader) (last string) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if text := strings.TrimSpace(lines.Text()); text != "" {
			last = text
		}
	}
	return last
}

// String returns what users call the member.
func (m *runningMember) String() string {
	if m.host == "" {
		return "member " + m.name
	}
	return "member " + m.name + " on " + m.host
}

// run leads members that are reached by ssh.
func (g *groupRun) run(ctx context.Context, f groupFlags, ask func(m *runningMember) *groupAsk) error {
	return g.lead(ctx, f.parsed, f.hold, func(of int) error { return g.start(ctx, of, f) }, ask)
}

// lead opens a line to each member, sends it its task, which ask returns, and leads all members through the steps. It returns when every member has finished or failed.
func (g *groupRun) lead(ctx context.Context, places []groupPlace, hold time.Duration, open func(of int) error, ask func(m *runningMember) *groupAsk) error {
	for _, p := range places {
		g.members = append(g.members, &runningMember{groupPlace: p, progress: map[string]worker.Progress{}})
	}
	g.heard, g.over, g.hold = make(chan memberNews, len(g.members)), make(chan struct{}), cmp.Or(hold, holdTime)
	defer g.end()
	for i, m := range g.members {
		if err := open(i); err != nil {
			return err
		}
		m.line.send(groupMessage{Ask: ask(m)})
	}
	interrupted := ctx.Done()
	for !g.state.over() {
		select {
		case n := <-g.heard:
			g.hear(ctx, n)
		case <-g.late:
			g.fail(g.tooLate())
			g.take(ctx, 0, groupEvent{late: true})
		case <-interrupted:
			interrupted = nil
			g.fail(context.Cause(ctx))
			g.take(ctx, 0, groupEvent{late: true})
		}
	}
	return g.failed
}

// end ends the commands of all members. Their work is over, or undone by themselves.
func (g *groupRun) end() {
	close(g.over)
	for _, m := range g.members {
		if m.line == nil {
			continue
		}
		m.line.close()
		go func() { // the reader of a member that still speaks
			for range m.line.received {
			}
		}()
		if m.command == nil {
			continue
		}
		over := time.AfterFunc(lastLineTime, func() { _ = m.command.Process.Kill() })
		_ = m.command.Wait() // it has said how it went
		over.Stop()
	}
}

// fail keeps the first failure.
func (g *groupRun) fail(err error) {
	if g.failed == nil {
		g.failed = err
	}
}

// tooLate returns the error of members that have not reached a step in time.
func (g *groupRun) tooLate() error {
	if g.what == "restore" {
		return failure.New(context.DeadlineExceeded, "see kubectl describe pod, or raise spec.holdTimeoutSeconds", "%s was not restored within %s", g.behind(), g.hold)
	}
	return failure.New(context.DeadlineExceeded, "see whether these containers can be frozen, or raise --hold-timeout", "%s did not stand still within %s", g.behind(), g.hold)
}

// behind names the members that have not reached the step that is waited for.
func (g *groupRun) behind() string {
	var names []string
	for i, m := range g.members {
		if g.state.at < len(g.state.steps) && g.state.reached[i] != g.state.steps[g.state.at] {
			names = append(names, m.name)
		}
	}
	return strings.Join(names, ", ")
}

// hear takes a message of a member.
func (g *groupRun) hear(ctx context.Context, n memberNews) {
	m := g.members[n.of]
	message := n.message
	switch {
	case message == nil:
		if m.last == nil && !g.state.ended[n.of] {
			g.fail(m.words)
		}
		g.take(ctx, n.of, groupEvent{closed: true})
	case message.Reached != nil:
		m.at = *message.Reached
		if message.Addresses != nil {
			m.addresses = message.Addresses
		}
		g.take(ctx, n.of, groupEvent{reached: message.Reached.Step})
	case message.Done != nil:
		m.last = message
		g.take(ctx, n.of, groupEvent{done: true})
	case message.Failed != nil:
		m.last = message
		g.fail(message.Failed.Doing(m.String()))
		g.take(ctx, n.of, groupEvent{failed: true})
	case message.Warning != "":
		g.warn("%s: %s", m, message.Warning)
	case message.Progress != nil:
		m.progress[message.Progress.What] = *message.Progress
		g.showProgress(message.Progress.What)
	}
}

// showProgress shows how far an activity of all members is.
func (g *groupRun) showProgress(what string) {
	show := g.report()
	if show == nil {
		return
	}
	var sum worker.Progress
	for _, m := range g.members {
		sum.Done, sum.Total = sum.Done+m.progress[what].Done, sum.Total+m.progress[what].Total
	}
	show(what, sum.Done, sum.Total)
}

// take decides about an event, and does what is decided.
func (g *groupRun) take(ctx context.Context, of int, e groupEvent) {
	for _, action := range g.state.on(of, e) {
		var err error
		switch action.do {
		case permitAll:
			g.say("all %d members: %s", len(g.members), action.step)
			switch action.step {
			case worker.Admitted:
				g.late = time.After(g.hold)
			case worker.Frozen, worker.Placed:
			default:
				g.late = nil
			}
			var together *worker.Together
			if together, err = g.permit(action.step); err == nil {
				g.sendAll(groupMessage{Permit: action.step, Together: together})
			}
		case announce:
			var index *groupIndex
			if index, err = g.index(); err == nil {
				g.sendAll(groupMessage{Publishing: index})
			}
		case publish:
			published := groupEvent{published: indexThere}
			publishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTime)
			if failed := g.publish(publishing); failed != nil {
				g.fail(failed)
				published.published = indexAbsent
			}
			cancel()
			g.take(ctx, of, published)
		case abandon:
			g.sendAll(groupMessage{Abandoned: true})
		case closeAll:
			g.late = nil
			for _, m := range g.members {
				m.line.close()
			}
		}
		if err != nil {
			g.fail(err)
			g.take(ctx, of, groupEvent{late: true})
		}
	}
}

func (g *groupRun) sendAll(message groupMessage) {
	for _, m := range g.members {
		m.line.send(message)
	}
}

// lost returns the members whose containers are lost.
func (g *groupRun) lost() (names []string) {
	for _, m := range g.members {
		if m.last != nil && m.last.State != nil && m.last.State.Lost {
			names = append(names, m.name)
		}
	}
	return names
}

// outcome returns the error of a group, with what became of its members.
func (g *groupRun) outcome(err error) error {
	if err == nil {
		return nil
	}
	kind := failure.KindOf(err, errdefs.ErrAborted)
	hint := failure.Hint(err)
	switch lost := g.lost(); {
	case len(lost) > 0:
		kind = failure.ErrLost
		hint = strings.Trim(hint+"; lost are "+strings.Join(lost, ", "), "; ")
	case errors.Is(err, failure.ErrMisfit):
		kind = failure.ErrMisfit
	}
	return failure.New(kind, hint, "%s of the group: %w", g.what, err)
}
