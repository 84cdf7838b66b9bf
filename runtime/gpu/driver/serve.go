package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
)

// Serve is the helper's side: it opens the driver, and answers the requests that come over c until the client hangs up, or ctx ends. It gives [UnusableError] where the
// driver cannot be opened; the client has been told.
func Serve(ctx context.Context, c *channel.Channel, open func() (API, error)) error {
	defer context.AfterFunc(ctx, func() { _ = c.CutOff() })() // it may be done already
	d, err := open()
	if err != nil {
		return errors.Join(err, c.Send(failed(err)))
	}
	err = c.Send(answer{Hello: Version})
	for err == nil {
		var data json.RawMessage
		fds, heard := c.Receive(&data)
		channel.Close(fds) // it sends none
		if errors.Is(heard, io.EOF) {
			return nil
		}
		if err = heard; err == nil {
			err = c.Send(respond(d, data))
		}
	}
	return err
}

func respond(d API, data []byte) answer {
	r, err := decodeRequest(data)
	if err != nil {
		return failed(err)
	}
	switch r.Do {
	case verbFacts:
		f, err := d.Facts()
		if err != nil {
			return failed(err)
		}
		return answer{Facts: &f}
	case verbStates:
		states := make(map[int]State, len(r.PIDs))
		for _, pid := range r.PIDs {
			states[pid] = d.State(pid)
		}
		return answer{States: states}
	case verbLock:
		return answer{Outcomes: each(d, r.PIDs, Call{Function: Lock, Timeout: time.Duration(r.Timeout) * time.Millisecond})}
	case verbCheckpoint:
		return answer{Outcomes: each(d, r.PIDs, Call{Function: Checkpoint})}
	case verbRestore:
		return answer{Outcomes: each(d, r.PIDs, Call{Function: Restore, Pairs: r.Pairs})}
	case verbUnlock:
		return answer{Outcomes: each(d, r.PIDs, Call{Function: Unlock})}
	}
	return failed(fmt.Errorf("%q: %w", r.Do, errdefs.ErrNotImplemented)) // decodeRequest lets none through
}

// each makes a call for all processes side by side. A lock's timeout is one deadline for all.
func each(d API, pids []int, c Call) []Outcome {
	deadline := time.Now().Add(c.Timeout)
	outcomes := make([]Outcome, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			own, begin := c, time.Now()
			if c.Function == Lock {
				own.Timeout = max(time.Until(deadline), time.Millisecond)
			}
			o := Outcome{PID: pid, Call: string(c.Function), Code: d.Do(pid, own)}
			o.Seconds = time.Since(begin).Seconds()
			if o.Code != 0 {
				o.Name = d.Name(o.Code)
			}
			outcomes[i] = o
		})
	}
	all.Wait()
	return outcomes
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
