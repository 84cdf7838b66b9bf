package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/runc"
)

// Hold has the shim dump the container, and keep it frozen until the checkpoint process has decided what becomes of it.
//
//	checkpoint process: hold                                  decision, or undo
//	shim:                     streams ... dumped                                   released ... ended
//
// If it is together with others, there is a step more before the dump:
//
//	checkpoint process: hold             proceed, or undo
//	shim:                    ... held                     ... dumped
//
// The shim may say ended at any time, with the reason. Undo may come at any time, after which the container is as it was.
type Hold struct {
	Images              string `json:"images"` // empty directory for CRIU's images
	Work                string `json:"work"`   // CRIU's work directory
	TCPEstablished      bool   `json:"tcpEstablished,omitempty"`
	FileLocks           bool   `json:"fileLocks,omitempty"`
	ExternalUnixSockets bool   `json:"externalUnixSockets,omitempty"`
	SkipLock            bool   `json:"skipLock,omitempty"` // packets may reach the container while it is dumped: see [criu.SkipLock]
	// Together has the container saved in step with others, which have the addresses Others. Held reports that it stands still, and again that its connections are cut. Each time it waits until the process lets it proceed.
	Together bool               `json:"together,omitempty"`
	Others   []netip.Addr       `json:"others,omitempty"`
	Options  checkpoint.Options `json:"options"`
}

// stream is what a connection is for that the shim makes. The checkpoint process's end comes with the message.
type stream string

// The streams there are.
const (
	pagesStream   stream = "pages"   // CRIU's, of the dump
	precopyStream stream = "precopy" // as devices, of what is copied while the container runs; the message describes it. Before devices, or never
	devicesStream stream = "devices" // device memory, of the type SOCK_SEQPACKET: see package gpu/ring
)

// maxGPUTimeout is the longest that is accepted, seconds.
const maxGPUTimeout = 86400

// Holder is the checkpoint process as the shim sees it while a container is held. nil is that of a stock client's checkpoint, which is not held.
type Holder struct {
	Hold

	process  *Process
	proceed  chan struct{}
	decided  chan checkpoint.Decision
	cancel   context.CancelCauseFunc // of the dump
	released bool                    // the process knows what became of the container
	waited   atomic.Int64            // how many times the process has said that it waits for other members of a group
}

var _ checkpoint.Holder = (*Holder)(nil)

// Asked returns what the process asks for beyond what containerd's request has fields for.
func (h *Holder) Asked() (o checkpoint.Options) {
	if h != nil {
		o = h.Options
	}
	return o
}

// check refuses what makes no sense.
func (h Hold) check() error {
	if t := h.Options.GPUTimeout; t < 0 || t > maxGPUTimeout {
		return fmt.Errorf("a GPU timeout of %g seconds: %w", t, errdefs.ErrInvalidArgument)
	}
	return nil
}

// pagesBuffer is how much CRIU may have sent that the process has not read yet, bytes.
const pagesBuffer = 4 << 20

// Pages returns the socket over which CRIU shall send pages; nil if no process holds the container. The caller closes it.
func (h *Holder) Pages() (*os.File, error) {
	if h == nil {
		return nil, nil
	}
	f, err := h.connect(Message{Stream: pagesStream}, unix.SOCK_STREAM)
	if err == nil {
		// More than a user may have; without it, the dump is only slower.
		_ = unix.SetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pagesBuffer)
	}
	return f, err
}

// Devices returns the connection, of the type SOCK_SEQPACKET, over which the process takes device memory; nil if it does not want it.
// The process reads the record beside the images, which must be there by now, to know what comes: the pieces of all processes, in
// the order of the record. The caller closes the file.
func (h *Holder) Devices() (*os.File, error) {
	if !h.Options.Devices {
		return nil, nil
	}
	return h.connect(Message{Stream: devicesStream}, unix.SOCK_SEQPACKET)
}

// Precopy is Devices of what is copied while the container runs, which g describes.
func (h *Holder) Precopy(g *record.GPU) (*os.File, error) {
	if !h.Options.Precopy {
		return nil, nil
	}
	return h.connect(Message{Stream: precopyStream, Planned: g}, unix.SOCK_SEQPACKET)
}

// connect makes a connection of some type, and hands the process its end with a message.
func (h *Holder) connect(m Message, kind int) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	err = h.process.channel.Send(m, pair[1])
	_ = unix.Close(pair[1])
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach the checkpoint process for %s: %w: %w", m.Stream, err, errdefs.ErrUnavailable), unix.Close(pair[0]))
	}
	return os.NewFile(uintptr(pair[0]), string(m.Stream)), nil
}

// Held implements [checkpoint.Holder]. A process that is gone is an error, and so the container goes on.
func (h *Holder) Held(ctx context.Context, held checkpoint.Held) error {
	if err := h.process.channel.Send(Message{Held: &held}); err != nil {
		return fmt.Errorf("tell the checkpoint process: %w", err)
	}
	select {
	case <-h.proceed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Dumped implements [checkpoint.Holder]. A process that is gone is an error, and so the container resumes.
func (h *Holder) Dumped(ctx context.Context, d checkpoint.Dumped) (checkpoint.Decision, error) {
	if err := h.process.channel.Send(Message{Dumped: &d}); err != nil {
		return "", fmt.Errorf("tell the checkpoint process: %w", err)
	}
	select {
	case decision := <-h.decided:
		return decision, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Progress implements [checkpoint.Holder].
func (h *Holder) Progress() string {
	return runc.CoarseProgress(h.process.PID()) + " " + strconv.FormatInt(h.waited.Load(), 10)
}

// Released implements [checkpoint.Holder].
func (h *Holder) Released(r checkpoint.Result) {
	h.released = true
	released := r.Released()
	h.tell(Message{Released: &released})
}

// end tells the process how it went.
func (h *Holder) end(r checkpoint.Result, err error) {
	if err == nil && !h.released {
		h.Released(r)
	}
	m := Message{Ended: true}
	if err != nil {
		m.Failed = failure.Of(err)
	}
	h.tell(m)
}

// tell sends a message, which the process may not hear any more.
func (h *Holder) tell(m Message) { _ = h.process.channel.Send(m) }

// errUndo is why a dump ends of which there will be no snapshot.
var errUndo = fmt.Errorf("the checkpoint process wants it undone: %w", context.Canceled)

// Dump dumps a container and holds it. ctx ends where it is to be undone.
type Dump func(ctx context.Context, h *Holder) (checkpoint.Result, error)

// Take starts the checkpoint process, has the container dumped when the process asks for it, and returns what the process answers. If ctx ends before, the process undoes what it did.
func Take(ctx context.Context, r Request, dump Dump) (_ *Taken, warnings []string, err error) {
	p, err := spawn(CheckpointCommand, r)
	if err != nil {
		return nil, nil, fmt.Errorf("start the checkpoint process: %w", err)
	}
	return p.take(ctx, dump)
}

// take serves a checkpoint process until its last word.
func (p *Process) take(ctx context.Context, dump Dump) (_ *Taken, warnings []string, err error) {
	p.patience = undoCheckpointTime
	defer p.End()
	defer context.AfterFunc(ctx, func() { _ = p.channel.Send(Message{CallOff: true}) })()
	type end struct {
		result checkpoint.Result
		err    error
	}
	var h *Holder
	var last end
	over := make(chan end, 1)
	await := func(cause error) { // the dump, which has no sense any more
		if h != nil {
			h.cancel(cause)
			last, h = <-over, nil
		}
	}
	for {
		select {
		case last = <-over:
			h = nil
		case m, ok := <-p.said:
			switch {
			case !ok:
				await(ErrCheckpointDied)
				return nil, nil, died(last.result, last.err)
			case m.Hold != nil && h == nil:
				held, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // the process undoes it
				h = &Holder{Hold: *m.Hold, process: p, proceed: make(chan struct{}, 1), decided: make(chan checkpoint.Decision, 1), cancel: cancel}
				go func(h *Holder) {
					defer cancel(nil)
					var e end
					if e.err = h.check(); e.err == nil {
						e.result, e.err = dump(held, h)
					}
					h.end(e.result, e.err)
					over <- e
				}(h)
			case m.Proceed && h != nil && len(h.proceed) == 0:
				h.proceed <- struct{}{}
			case m.Decision != "" && h != nil && len(h.decided) == 0:
				h.decided <- m.Decision
			case m.Undo && h != nil:
				h.cancel(errUndo)
			case m.Waits && h != nil:
				h.waited.Add(1)
			case m.Decision != "" || m.Undo || m.Proceed || m.Waits: // it has ended meanwhile
			case m.Failed != nil:
				await(errUndo)
				return nil, m.Warnings, m.Failed
			case m.Taken != nil:
				await(errUndo)
				return m.Taken, m.Warnings, nil
			default:
				await(errUndo)
				return nil, nil, unexpected(m)
			}
		}
	}
}

// KeptRule is the rule of the error of a checkpoint process that has died when all was done but what follows the end of the container.
const KeptRule = "snapshot-kept"

// died returns the error of a checkpoint process that has died. r and err are how the dump went.
func died(r checkpoint.Result, err error) error {
	switch {
	case errors.Is(err, failure.ErrLost):
		return errors.Join(err, ErrCheckpointDied)
	case r.Killed:
		return failure.New(errdefs.ErrUnavailable, "find it with cryo ls, and push it with cryo push", "the checkpoint process has died after it had ended the container, of which it has kept a snapshot").By(KeptRule)
	}
	return ErrCheckpointDied
}
