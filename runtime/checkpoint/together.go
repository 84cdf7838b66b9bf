package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
)

// Rules of the errors of a container that is to be saved in step with others.
const (
	ArrivingRule = "group-arriving" // its program does not accept the connections that wait for it
	ClosingRule  = "group-closing"  // its program has closed a connection to one of the others, which has not taken the last data
)

// How the connections of a container are cut that is saved in step with others.
const (
	settleTime = 50 * time.Millisecond // how long its connections may take until all that was sent is acknowledged
	closeTime  = time.Second           // and until others have taken the last data of connections that its program has closed
	lookTime   = 2 * time.Millisecond  // between two looks at that
	arriveMost = 10                    // how many times it stands still, until no connection waits to be accepted
	acceptTime = 5 * time.Millisecond  // how long its program runs in between to accept them, times how many times it has been tried
)

// Held describes a container that stands still before it is dumped.
type Held struct {
	// With Cut, its connections are cut. Before, it waits until all others stand still: what is on its way between them arrives meanwhile, since their kernels still answer.
	Cut         bool              `json:"cut,omitempty"`
	Frozen      time.Time         `json:"frozen"` // since when it stands still
	Connections []runc.Connection `json:"connections,omitempty"`
	Listeners   []netip.AddrPort  `json:"listeners,omitempty"`
	// Closing are connections that no process has any more, and whose last data may not have reached the peer. A snapshot does not have them.
	Closing []runc.Connection `json:"closing,omitempty"`
	// Unacknowledged counts the segments that were on their way when the connections were cut. The later the connections go on, the longer it takes until these come.
	Unacknowledged int `json:"unacknowledged,omitempty"`
}

// cut cuts the connections of a container that stands still, for [Request.Together]. Afterwards no connection waits to be accepted: CRIU would drop it, and its peer may be saved with it. Where one
// waits, the program runs for a moment and accepts it. Meanwhile no further peer connects.
func (s *sequence) cut(ctx context.Context) (h Held, err error) {
	if !s.Together {
		return h, nil
	}
	if s.Hold == nil {
		return h, failure.New(errdefs.ErrInvalidArgument, "take its snapshot with cryo checkpoint", "a plain dump cannot be in step with others")
	}
	if err := s.awaitTurn(ctx, Held{Frozen: s.start}); err != nil {
		return h, err
	}
	s.parts.end("others-frozen")
	for try := 1; ; try++ {
		sockets, err := s.settle(ctx, try == 1)
		s.parts.end("settle")
		if err != nil {
			return h, err
		}
		if err := s.fence(func() (io.Closer, error) { return s.Fence(sockets) }); err != nil {
			return h, err
		}
		s.parts.end("fence")
		// What had been on its way until the fence was there.
		if sockets, err = s.Sockets(ctx); err != nil {
			return h, err
		}
		waiting := slices.Concat(sockets.Waiting, sockets.Arriving)
		if lost := s.toOthers(sockets.Closing); len(lost) > 0 {
			return h, closing(lost)
		}
		if len(waiting) == 0 {
			return Held{Cut: true, Frozen: s.start, Connections: sockets.Connections, Listeners: sockets.Listeners, Closing: sockets.Closing, Unacknowledged: sockets.Unacknowledged}, nil
		}
		if why := s.standsStill(); why != "" || try == arriveMost {
			return h, arriving(waiting, why)
		}
		if err := s.accept(ctx, time.Duration(try)*acceptTime); err != nil {
			return h, err
		}
	}
}

// toOthers returns the connections to containers that are saved in step with this one.
func (s *sequence) toOthers(all []runc.Connection) (found []runc.Connection) {
	for _, c := range all {
		if slices.Contains(s.Others, c.Remote.Addr()) {
			found = append(found, c)
		}
	}
	return found
}

// settle waits a moment until peers have acknowledged what the container has sent, and connections that are about to be made are there. Later, what is sent again would come
// after ever longer times. With first, no fence turns further peers away yet.
func (s *sequence) settle(ctx context.Context, first bool) (runc.Sockets, error) {
	began := time.Now()
	for {
		sockets, err := s.Sockets(ctx)
		if err != nil {
			return sockets, err
		}
		if first && len(sockets.Listeners) > 0 {
			if err := s.fence(func() (io.Closer, error) { return s.TurnAway(sockets.Listeners) }); err != nil {
				return sockets, err
			}
			first = false
			continue // a connection may have come before
		}
		closing := len(s.toOthers(sockets.Closing))
		if sockets.Unacknowledged+len(sockets.Arriving)+closing == 0 || time.Since(began) > settleTime && closing == 0 || time.Since(began) > closeTime {
			return sockets, nil
		}
		select {
		case <-time.After(lookTime):
		case <-ctx.Done():
			return sockets, context.Cause(ctx)
		}
	}
}

// fence takes up a fence that is removed when the container goes on.
func (s *sequence) fence(cut func() (io.Closer, error)) error {
	f, err := cut()
	if err != nil {
		return err
	}
	s.fences = append(s.fences, f)
	return nil
}

// standsStill returns why the program cannot run for a moment before the dump; empty if it can.
func (s *sequence) standsStill() string {
	switch {
	case s.saved || s.Parked:
		return "; it cannot accept them, since its device memory is saved already"
	case s.Frozen:
		return "; it cannot accept them, since its client has paused it"
	}
	return ""
}

// accept lets the program run for a moment. The fence of its connections is removed, and peers are still turned away.
func (s *sequence) accept(ctx context.Context, run time.Duration) error {
	last := len(s.fences) - 1
	err := s.fences[last].Close()
	if s.fences = s.fences[:last]; err != nil {
		return err
	}
	if err := s.thaw(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(run):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.start, s.frozen = time.Now(), true
	return s.pause(ctx)
}

// named names the first of some connections. between is a word between their two ends.
func named(all []runc.Connection, between string) string {
	const most = 3
	var names []string
	for _, c := range all[:min(most, len(all))] {
		names = append(names, fmt.Sprintf("%s %s %s", c.Local, between, c.Remote))
	}
	if more := len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// closing returns the error of a container with connections that its program has closed, and whose last data no other container has taken.
func closing(lost []runc.Connection) error {
	return failure.New(errdefs.ErrUnavailable, "take the snapshots again; if that fails again, see why the other end does not read (ss -t in the container's network, column Send-Q)",
		"%s: the program has closed %d connections to others of its group, which have not taken the last data, and a snapshot would lose that (%s)", ClosingRule, len(lost), named(lost, "to")).By(ClosingRule)
}

// arriving returns the error of a container with connections that its program does not accept. why is the end of a sentence, or empty.
func arriving(waiting []runc.Connection, why string) error {
	return failure.New(errdefs.ErrUnavailable, "take the snapshots when the program accepts connections; see which wait: ss -tl in the container's network, column Recv-Q",
		"%s: %d connections wait that the program has not accepted, and a snapshot would lose (%s)%s", ArrivingRule, len(waiting), named(waiting, "from"), why).By(ArrivingRule)
}

// awaitTurn waits until the holder lets the container's connections be cut, or the container be dumped.
func (s *sequence) awaitTurn(ctx context.Context, h Held) error {
	if !s.Together {
		return nil
	}
	ctx, stop := s.watched(ctx)
	defer stop()
	return s.Hold.Held(ctx, h)
}

// open removes the fences: the connections go on.
func (s *sequence) open() error {
	var err error
	for _, f := range slices.Backward(s.fences) {
		err = errors.Join(err, f.Close())
	}
	s.fences = nil
	return err
}
