package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
)

// Serve is the helper's side: it opens the driver, answers the requests that come over c, and undoes what is to be undone when the client
// hangs up, or ctx ends. It gives [UnusableError] where the driver cannot be opened and
// one of kind Internal where not all could be undone; the client has been told of both.
func Serve(ctx context.Context, c *channel.Channel, open func() (API, error)) error {
	d, err := open()
	if err != nil {
		return errors.Join(err, c.Send(failed(err)))
	}
	l := newLedger(d)
	heard := make(chan []byte)
	go listen(ctx, c, heard)
	err = c.Send(answer{Hello: Version})
	for err == nil {
		select {
		case data, ok := <-heard:
			if !ok {
				return end(l, c)
			}
			err = c.Send(respond(l, data))
		case <-ctx.Done():
			return end(l, c)
		}
	}
	return errors.Join(err, end(l, c))
}

// listen passes one request after the other on, and closes heard at the end.
func listen(ctx context.Context, c *channel.Channel, heard chan<- []byte) {
	defer close(heard)
	for {
		var data json.RawMessage
		fds, err := c.Receive(&data)
		channel.Close(fds) // it sends none
		if err != nil {
			return
		}
		select {
		case heard <- data:
		case <-ctx.Done():
			return
		}
	}
}

func end(l *ledger, c *channel.Channel) error {
	made := l.undo()
	_ = c.Send(answer{Undone: made}) // the client may be gone
	if failed := failures(made); len(failed) > 0 {
		return undoError(failed)
	}
	return nil
}

func respond(l *ledger, data []byte) answer {
	r, err := decodeRequest(data)
	if err != nil {
		return failed(err)
	}
	switch r.Do {
	case verbFacts:
		f, err := l.driver.Facts()
		if err != nil {
			return failed(err)
		}
		return answer{Facts: &f}
	case verbStates:
		states := make(map[int]State, len(r.PIDs))
		for _, pid := range r.PIDs {
			states[pid] = l.driver.State(pid)
		}
		return answer{States: states}
	case verbLock:
		return answer{Outcomes: l.each(r.PIDs, Call{Function: Lock, Timeout: time.Duration(r.Timeout) * time.Millisecond})}
	case verbCheckpoint:
		return answer{Outcomes: l.each(r.PIDs, Call{Function: Checkpoint})}
	case verbRestore:
		return answer{Outcomes: l.each(r.PIDs, Call{Function: Restore, Pairs: r.Pairs})}
	case verbUnlock:
		return answer{Outcomes: l.each(r.PIDs, Call{Function: Unlock})}
	case verbRelease:
		l.forget()
		return answer{}
	}
	return failed(fmt.Errorf("%q: %w", r.Do, errdefs.ErrNotImplemented)) // decodeRequest lets none through
}

// failed is the answer that tells of err.
func failed(err error) answer {
	var d *UnusableError
	if errors.As(err, &d) {
		return answer{Driver: d}
	}
	return answer{Error: err.Error()}
}

// PrintFacts is the helper's command facts, for people and scripts: it prints one line, [Facts] or, together with an error, an answer that says it.
func PrintFacts(out io.Writer, open func() (API, error)) error {
	d, err := open()
	var f Facts
	if err == nil {
		f, err = d.Facts()
	}
	if err != nil {
		return errors.Join(err, json.NewEncoder(out).Encode(failed(err)))
	}
	return json.NewEncoder(out).Encode(f)
}
