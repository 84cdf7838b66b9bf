package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// Container is what a checkpoint drives.
type Container interface {
	Pause(ctx context.Context) error
	Paused(ctx context.Context) (bool, error)
	Thaw(ctx context.Context) error
	Kill(ctx context.Context) error
	// Silence makes connections end without a word to their peers when the frozen container is killed.
	Silence(ctx context.Context) error
	Checkpoint(ctx context.Context, d runc.Dump) error
	// Processes lists those of the container, by their ids in this process's pid namespace.
	Processes(ctx context.Context) ([]int, error)
	// Dumpable refuses a container that Checkpoint would never be done with.
	Dumpable(ctx context.Context) error
	// Sockets lists the container's TCP sockets, Fence cuts them from the network until it is closed, and TurnAway turns further peers of listeners away.
	Sockets(ctx context.Context) (runc.Sockets, error)
	Fence(s runc.Sockets) (io.Closer, error)
	TurnAway(listeners []netip.AddrPort) (io.Closer, error)
}

var _ Container = runc.Container{}

// Holder keeps a dumped container frozen for as long as it needs.
type Holder interface {
	// Held is called, if the container is saved in step with others, when it stands still with its connections cut, and returns when it may be dumped. An error means that it shall be as
	// before.
	Held(ctx context.Context, h Held) error
	// Dumped is called when the container is dumped and frozen, and returns what shall become of it. An error means Resume.
	Dumped(ctx context.Context, d Dumped) (Decision, error)
	// Released is called when the container has gone on, as it was decided.
	Released(r Result)
	// Progress changes while the holder works.
	Progress() string
}

// Request says what is wanted.
type Request struct {
	ID   string
	Dump runc.Dump
	// Frozen tells that the client has paused the container already; it is left paused then.
	Frozen bool
	// First is the container's first process: what CRIU dumps are it and its descendants. 0: all processes of the container are looked at.
	First int
	// Alive tells whether the container's first process still exists.
	Alive func() bool
	// Hold, unless nil, keeps the container frozen after the dump; Dump.Exit is then its decision.
	Hold Holder
	// With Together, the container is saved in step with others: its connections are cut before the holder lets it be dumped, and until it goes on or has ended.
	Together bool
	// Others are the addresses of those others.
	Others []netip.Addr
	// Devices, unless nil, are those of a container that may keep something there.
	Devices Devices
	// Parked tells that a checkpoint before has left the container frozen and its devices saved.
	Parked bool
}

// Result says how it went.
type Result struct {
	Freeze time.Duration // the container stood still
	Dump   time.Duration // of which runc and CRIU
	Load   time.Duration // of which moving back onto devices
	Killed bool
	// Pending tells that part of the snapshot is still on its way from the devices, while the container runs: [Devices.Drain]
	// waits for it, and [Devices.Release] then ends it.
	Pending bool
	// Parked tells that the container stands frozen with its devices saved, because its client had paused it: a client that resumes
	// it must thaw it and then load. It may be so also after an error.
	Parked bool
}

// Run takes the checkpoint. Whatever happens, the container afterwards is as before, or ended because that was wanted,
// or the error is of the kind [failure.ErrLost].
func Run(ctx context.Context, c Container, r Request) (Result, error) {
	s := &sequence{Container: c, Request: r, parts: newParts()}
	defer s.watch.close()
	defer s.parts.log(ctx)
	defer func() {
		if err := s.open(); err != nil { // what goes on has been told of it, and what has ended does not need it
			log.G(ctx).WithError(err).Warn("after a checkpoint")
		}
	}()
	err := s.run(ctx)
	if err != nil {
		s.result.Pending = false
		err = errors.Join(err, s.undo(ctx))
	}
	var loss *LossError
	if errors.As(err, &loss) {
		s.release()
		if !loss.Others {
			err = errors.Join(err, within(ctx, c.Kill))
		}
		return s.result, Lost("checkpoint", r.ID, err)
	}
	if lost := s.look(ctx, err != nil); lost != nil {
		s.result.Pending = false
		s.release()
		return s.result, Lost("checkpoint", r.ID, errors.Join(err, lost))
	}
	if err == nil {
		return s.result, nil
	}
	s.release()
	return s.result, Failed(r.ID, err)
}

// sequence is one checkpoint and how far it is; undo goes by that.
type sequence struct {
	Container
	Request
	result Result

	start  time.Time // when the first process stood still
	thawed bool      // what the client had paused
	saved  bool      // by this checkpoint
	frozen bool      // perhaps, by this checkpoint
	paused bool      // perhaps, by this checkpoint and before the dump: CRIU leaves it frozen
	watch  watch
	parts  parts       // and how long each took
	fences []io.Closer // keep packets from the container

	outgoing Outgoing
}

func (s *sequence) run(ctx context.Context) error {
	if err := s.restorable(ctx); err != nil {
		return err
	}
	if !s.Parked { // else cryo's own helper may trace them, which it does later, too
		if err := s.untraced(ctx); err != nil {
			return err
		}
	}
	if err := s.watch.add(ctx, s.Container); err != nil {
		return err
	}
	saved, err := s.save(ctx)
	s.parts.end("save")
	if err != nil {
		return err
	}
	s.start = saved.since(time.Now())
	dump := s.Dump
	if s.Hold != nil {
		dump.Exit = false
	}
	if s.Devices != nil {
		if err := s.Devices.Record(dump.Images); err != nil {
			return err
		}
	}
	if err := s.restorable(ctx); err != nil { // it may have changed meanwhile
		return err
	}
	// Also before a plain dump: where CRIU was ended, the cgroup it had frozen stays so.
	s.frozen = !s.Frozen || s.thawed
	if s.frozen && (s.Hold != nil || s.thawed || s.saved) {
		s.paused = true
		err := s.pause(ctx)
		s.parts.end("pause")
		if err != nil {
			return err
		}
	}
	if s.saved {
		if err := s.Devices.Yield(ctx); err != nil {
			return err
		}
	}
	held, err := s.cut(ctx)
	if err != nil {
		return err
	}
	s.watch.prune()
	if err := s.awaitTurn(ctx, held); err != nil {
		return err
	}
	s.parts.end("others-held")
	dumping := time.Now()
	if err := s.Checkpoint(ctx, dump); err != nil {
		if errors.Is(err, runc.ErrResidue) {
			return &LossError{Err: err}
		}
		return err
	}
	s.result.Dump = time.Since(dumping)
	s.parts.end("dump")
	if err := s.examine(dump); err != nil {
		return err
	}
	if s.Hold != nil { // it is frozen: these are all that there are
		if err := s.watch.add(ctx, s.Container); err != nil {
			return err
		}
	}
	switch {
	case s.Hold != nil:
		err = s.hold(ctx, Dumped{Frozen: s.start, DumpSeconds: s.result.Dump.Seconds(), LockSeconds: saved.Lock.Seconds(), SaveSeconds: saved.Save.Seconds()})
	case dump.Exit:
		s.release()
	default:
		err = s.resume(ctx)
	}
	if s.result.Freeze == 0 {
		s.result.Freeze = time.Since(s.start)
	}
	return err
}

// save moves what is on devices into memory. The driver of a device cannot do that to a frozen process.
func (s *sequence) save(ctx context.Context) (Saved, error) {
	if s.Devices == nil || s.Parked {
		return Saved{}, nil
	}
	if s.Frozen {
		if err := within(ctx, s.Thaw); err != nil {
			return Saved{}, err
		}
		s.thawed = true
	}
	saved, err := s.Devices.Save(ctx)
	s.saved = err == nil
	return saved, err
}

// examine looks at the images, and puts beside them which of CRIU's options a restore must repeat.
func (s *sequence) examine(dump runc.Dump) error {
	if err := criu.CheckImages(dump.Images); err != nil {
		return err
	}
	if !dump.Exit { // else the processes have ended already
		if err := criu.CheckLinks(dump.Images); err != nil {
			return err
		}
		if err := criu.CheckNested(dump.Images); err != nil {
			return err
		}
	}
	streams, err := criu.HasStreams(dump.Images)
	if err != nil {
		return err
	}
	// Without --tcp-established CRIU dumps sockets whose connection has ended, and its restore asks for the option all the same.
	record := criu.Record{TCPEstablished: dump.TCPEstablished || streams, FileLocks: dump.FileLocks, ExternalSockets: dump.ExternalSockets}
	return criu.WriteRecord(dump.Images, record)
}

// hold waits for the holder's decision and carries it out.
func (s *sequence) hold(ctx context.Context, d Dumped) error {
	if s.Devices != nil {
		var err error
		if s.outgoing, err = s.Devices.Outgoing(ctx); err != nil {
			return err
		}
		d.Devices, d.DevicesPending = s.outgoing.Any, s.outgoing.Copied
	}
	s.parts.end("examine")
	decision, err := s.decision(ctx, d)
	s.parts.end("holder")
	if err != nil {
		return err
	}
	switch decision {
	case Kill:
		if err := s.drain(ctx); err != nil {
			return err
		}
		if s.Dump.TCPEstablished {
			if err := s.Silence(ctx); err != nil {
				return err
			}
		}
		if err := within(ctx, s.Kill); err != nil {
			return err
		}
		s.result.Killed = true
		s.release()
		return nil
	case Resume:
		return s.resume(ctx)
	}
	return fmt.Errorf("decision %q is neither %q nor %q", decision, Resume, Kill)
}

// holdPatience is how many times longer the holder may make no progress than CRIU: it waits until all that it has written is on the disk.
const holdPatience = 4

// watched returns a context that ends when the holder does nothing any more. Without a holder it is ctx.
func (s *sequence) watched(ctx context.Context) (context.Context, func()) {
	if s.Hold == nil {
		return ctx, func() {}
	}
	patience := holdPatience * s.Dump.Patience
	return runc.Watch(ctx, patience, s.Hold.Progress, func() error {
		return failure.New(context.DeadlineExceeded, "see whether the checkpoint process was stopped, or its disk hangs; where the disk is only slow, raise timeout under [dump] in /etc/cryo/config.toml",
			"hold-stalled: the checkpoint process has made no progress for %s", patience).By("hold-stalled")
	})
}

// decision waits for the holder's decision.
func (s *sequence) decision(ctx context.Context, d Dumped) (Decision, error) {
	ctx, stop := s.watched(ctx)
	defer stop()
	return s.Hold.Dumped(ctx, d)
}

// pauseTime bounds how long runc may take to freeze the container.
const pauseTime = 30 * time.Second

func (s *sequence) pause(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pauseTime, fmt.Errorf("it could not be frozen for %s: %w", pauseTime, context.DeadlineExceeded))
	defer cancel()
	if err := s.Pause(ctx); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

// resume lets the container go on after its dump. What its client had paused stays frozen, so that what the client copies
// next is of the same instant; what was on devices stays in memory for as long.
func (s *sequence) resume(ctx context.Context) error {
	if s.Frozen {
		s.result.Parked = s.Devices != nil
		s.release()
		return s.open()
	}
	if s.Hold != nil {
		if !s.outgoing.Copied {
			if err := s.drain(ctx); err != nil {
				return err
			}
		}
		s.result.Pending = s.outgoing.Copied
	}
	// Before the thaw: the kernel would drop what the processes send, and send it again 200 ms later.
	if err := s.open(); err != nil {
		return err
	}
	s.parts.end("open")
	if s.paused {
		if err := s.thaw(ctx); err != nil {
			return err
		}
	}
	s.parts.end("thaw")
	if err := s.load(ctx); err != nil {
		return err
	}
	s.result.Freeze = time.Since(s.start)
	if s.Hold != nil {
		s.Hold.Released(s.result)
	}
	return nil
}

// drain waits for what goes from the devices to the client.
func (s *sequence) drain(ctx context.Context) error {
	if !s.outgoing.Any {
		return nil
	}
	ctx, stop := s.watched(ctx)
	defer stop()
	if err := s.Devices.Drain(ctx); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

// undo makes the container what it was before: running with its devices, or paused if the client had paused it.
func (s *sequence) undo(ctx context.Context) error {
	s.result.Parked = s.Parked
	opened := s.open()
	if s.frozen {
		if err := s.thaw(ctx); err != nil { // it can neither run nor be brought to
			return &LossError{Err: errors.Join(err, opened)}
		}
	}
	if s.Alive() {
		if err := s.load(ctx); err != nil {
			return errors.Join(err, opened)
		}
	}
	if s.Frozen && s.Alive() {
		return errors.Join(opened, within(ctx, s.pauseAgain))
	}
	return opened
}

// pauseAgain has a container stand still that its client has paused, and that was thawed since: by this checkpoint, or where CRIU was ended.
func (s *sequence) pauseAgain(ctx context.Context) error {
	if paused, err := s.Paused(ctx); err == nil && paused {
		return nil
	}
	return s.Pause(ctx)
}

// thawTime is how long to wait before a container that could not be thawed is tried again.
var thawTime = time.Second

// thaw is tried again for a while: there is nothing else to do for a frozen container. What was on devices must be brought back next.
func (s *sequence) thaw(ctx context.Context) error {
	if s.saved {
		if err := within(ctx, s.Devices.Stop); err != nil { // Load stops them too, a moment later
			log.G(ctx).WithError(err).Warn("stop processes whose device memory is in host memory")
		}
	}
	return within(ctx, func(ctx context.Context) error {
		for {
			err := s.Thaw(ctx)
			if err == nil {
				s.frozen = false
				return nil
			}
			select {
			case <-time.After(thawTime):
			case <-ctx.Done():
				return err
			}
		}
	})
}

// load moves back onto devices what this checkpoint has saved. It may take long, and is not ended halfway.
func (s *sequence) load(ctx context.Context) error {
	if !s.saved {
		return nil
	}
	s.saved = false
	start := time.Now()
	err := s.Devices.Load(context.WithoutCancel(ctx))
	s.result.Load = time.Since(start)
	if err != nil && !errors.As(err, new(*LossError)) {
		return &LossError{Err: err}
	}
	return err
}

func (s *sequence) release() {
	s.saved = false
	if s.Devices != nil {
		s.Devices.Release()
	}
}

// undoTime bounds what is done to undo, loading aside.
var undoTime = 30 * time.Second

// within runs f although ctx may be cancelled, but not for ever.
func within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return f(ctx)
}
