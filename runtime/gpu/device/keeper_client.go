package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// KeeperOptions say how to start a keeper.
type KeeperOptions struct {
	// Path is the program's; "" is the one beside the own executable, else that of PATH.
	Path string
	// Ring is [DefaultRing] if it is zero.
	Ring RingGeometry
}

// Keeper is a keeper that runs. Its methods may be called from several goroutines; requests are carried out one after the other.
// Errors are [UnusableError] where the driver cannot be used, [CallError] of the driver,
// [DiedError] once the keeper is gone, or was killed because it did not answer. After each error that it has told of, but for one of a copy, the keeper ends.
type Keeper struct {
	*Program
	turn   chan struct{} // has room for one: whose turn it is
	ring   RingGeometry
	opened chan struct{} // closed when the driver and the ring are ready, or are not
	err    error         // of opening; valid when opened is closed
}

// How long a keeper may take for what does not depend on other processes.
var (
	startTime = 2 * time.Minute  // to initialise the driver, as the helper
	askTime   = 30 * time.Second // to answer what takes milliseconds
	endTime   = 10 * time.Second // to end when it is killed
	slowest   = int64(256 << 20) // bytes a second that are copied or cleared at least
)

// moveTime bounds what is done with so many bytes on devices.
func moveTime(bytes int64) time.Duration {
	return askTime + time.Duration(bytes/slowest)*time.Second
}

// StartKeeper starts a keeper and returns at once. It initialises the driver, and waits for [Keeper.Open]. It leaves the session of its parent, but ends with it:
// when the client's process dies, or calls Close. ctx is for the start alone.
func StartKeeper(ctx context.Context, o KeeperOptions) (*Keeper, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start %s: %w", ProgramName, context.Cause(ctx))
	}
	if o.Ring == (RingGeometry{}) {
		o.Ring = DefaultRing
	}
	program, err := RunProgram(o.Path, "keeper")
	if err != nil {
		return nil, err
	}
	return &Keeper{Program: program, turn: make(chan struct{}, 1), ring: o.Ring, opened: make(chan struct{})}, nil
}

// Open names the devices that will be needed, by their UUIDs, once, and returns at once: [Keeper.Ready] waits for it. Another is opened when it is named
// first, for which a process waits then.
func (c *Keeper) Open(devices []string) error {
	r := KeeperRequest{Do: VerbOpen, Version: KeeperVersion, Devices: devices, Ring: &c.ring}
	if err := r.check(0); err != nil {
		return fmt.Errorf("start %s: %w", ProgramName, err)
	}
	go func() {
		defer close(c.opened)
		_, _, c.err = c.exchange(r, nil, startTime)
	}()
	return nil
}

// Ready waits until the driver is initialised and the ring pinned, which is not before Open.
func (c *Keeper) Ready(ctx context.Context) error {
	select {
	case <-c.opened:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// inTurn has something done when the keeper is ready and no other process has it do anything.
func (c *Keeper) inTurn(ctx context.Context, what KeeperVerb, do func() error) error {
	err := c.Ready(ctx)
	if err == nil {
		select {
		case c.turn <- struct{}{}:
			defer func() { <-c.turn }()
			return do()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ask makes a request of whose turn it is. Its error has the request's name.
func (c *Keeper) ask(ctx context.Context, r KeeperRequest, files []*os.File, bound time.Duration) (KeeperAnswer, []*os.File, error) {
	var a KeeperAnswer
	var got []*os.File
	err := r.check(len(files))
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		a, got, err = c.exchange(r, files, bound)
	}
	if err != nil {
		return a, nil, fmt.Errorf("%s: %w", r.Do, err)
	}
	return a, got, nil
}

// exchange makes a request and waits for its answer, whatever becomes of ctx: what moves memory may take its time as long as it comes along.
// bound is how long the keeper may be silent: it is killed then.
func (c *Keeper) exchange(r KeeperRequest, files []*os.File, bound time.Duration) (KeeperAnswer, []*os.File, error) {
	timer := time.AfterFunc(bound, func() {
		_ = c.Silence(bound)
		// One that is in a call of the driver that does not end keeps its end of the channel.
		time.AfterFunc(endTime, func() { c.Channel.Close() })
	})
	defer timer.Stop()
	if err := c.Channel.Send(r, Descriptors(files)...); errors.Is(err, unix.EBADF) {
		return KeeperAnswer{}, nil, err // a file that is closed; nothing was sent
	} else if err != nil {
		return KeeperAnswer{}, nil, c.Died()
	}
	if r.Do == VerbSend || r.Do == VerbReceive || r.Do == VerbBegin {
		CloseAll(files) // the keeper has them, and hanging up is heard
	}
	for {
		var raw json.RawMessage
		got, err := c.Channel.Receive(&raw)
		if err != nil {
			return KeeperAnswer{}, nil, c.Died()
		}
		a, err := decodeKeeperAnswer(raw, r, len(got))
		if err != nil {
			channel.Close(got)
			_ = c.Kill() // nothing it says can be understood from here on
			return KeeperAnswer{}, nil, err
		}
		switch {
		case !a.Done:
			timer.Reset(bound)
		case a.Error != nil:
			return a, nil, a.Error.err()
		default:
			return a, FilesOf(got), nil
		}
	}
}

// decodeKeeperAnswer reads an answer to r that came with so many descriptors.
func decodeKeeperAnswer(data []byte, r KeeperRequest, files int) (KeeperAnswer, error) {
	var a KeeperAnswer
	if err := channel.Strict(data, &a); err != nil {
		return KeeperAnswer{}, err
	}
	wanted := 0
	if r.Do == VerbMake && a.Done && a.Error == nil {
		wanted = len(r.Pieces)
	}
	if files != wanted || !a.Done && a != (KeeperAnswer{}) {
		return KeeperAnswer{}, fmt.Errorf("%s: unexpected message from the keeper: got %d descriptors, want %d: %w", r.Do, files, wanted, io.ErrUnexpectedEOF)
	}
	return a, nil
}
