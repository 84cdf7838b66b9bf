package device

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

// ServeHelper is the helper's side: it opens the driver, and answers the requests that come over c until the client hangs up, or ctx ends. It gives [UnusableError] where the
// driver cannot be opened; the client has been told.
func ServeHelper(ctx context.Context, c *channel.Channel, open func() (DriverAPI, error)) error {
	defer context.AfterFunc(ctx, func() { _ = c.CutOff() })() // it may be done already
	d, err := open()
	if err != nil {
		return errors.Join(err, c.Send(failed(err)))
	}
	stopper := newStopper(d)
	err = c.Send(answer{Hello: HelperVersion})
	for err == nil {
		var data json.RawMessage
		fds, heard := c.Receive(&data)
		channel.Close(fds) // it sends none
		if errors.Is(heard, io.EOF) {
			return nil
		}
		if err = heard; err == nil {
			err = c.Send(respond(ctx, d, stopper, data))
		}
	}
	return err
}

func respond(ctx context.Context, d DriverAPI, s *stopper, data []byte) answer {
	r, err := decodeRequest(data)
	if err != nil {
		return failed(err)
	}
	if r.Do != verbStop {
		if err := s.settle(r.PIDs); err != nil {
			return failed(err)
		}
	}
	switch r.Do {
	case verbStop:
		if err := s.stop(r.PIDs); err != nil {
			return failed(err)
		}
		return answer{}
	case verbYield:
		if err := s.yield(ctx); err != nil {
			return failed(err)
		}
		return answer{}
	case verbDisown:
		n, err := s.disown(r.PIDs, r.Others)
		if err != nil {
			return failed(err)
		}
		return answer{Changed: n}
	case verbFacts:
		f, err := d.Facts()
		if err != nil {
			return failed(err)
		}
		return answer{Facts: &f}
	case verbStates:
		states := make(map[int]ProcessState, len(r.PIDs))
		for _, pid := range r.PIDs {
			states[pid] = d.State(pid)
		}
		return answer{States: states}
	case verbLock:
		return answer{Outcomes: each(d, r.PIDs, DriverCall{Function: FunctionLock, Timeout: time.Duration(r.Timeout) * time.Millisecond})}
	case verbCheckpoint:
		return quietly(d, s, r.PIDs, DriverCall{Function: FunctionCheckpoint})
	case verbRestore:
		return quietly(d, s, r.PIDs, DriverCall{Function: FunctionRestore, Pairs: r.Pairs})
	case verbUnlock:
		a := quietly(d, s, r.PIDs, DriverCall{Function: FunctionUnlock})
		s.letGo(unlocked(a.Outcomes))
		return a
	}
	return failed(fmt.Errorf("%q: %w", r.Do, errdefs.ErrNotImplemented)) // decodeRequest lets none through
}

// quietly makes a call for all processes, whose restore threads handle no signals meanwhile.
func quietly(d DriverAPI, s *stopper, pids []int, c DriverCall) (a answer) {
	if err := s.quietly(pids, func() { a.Outcomes = each(d, pids, c) }); err != nil && a.Outcomes == nil {
		return failed(err)
	}
	return a
}

// unlocked are the processes whose calls pass again.
func unlocked(outcomes []Outcome) (pids []int) {
	for _, o := range outcomes {
		if o.Code == 0 {
			pids = append(pids, o.PID)
		}
	}
	return pids
}

// each makes a call for all processes side by side. A lock's timeout is one deadline for all.
func each(d DriverAPI, pids []int, c DriverCall) []Outcome {
	deadline := time.Now().Add(c.Timeout)
	outcomes := make([]Outcome, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			own, begin := c, time.Now()
			if c.Function == FunctionLock {
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
func PrintFacts(out io.Writer, open func() (DriverAPI, error)) error {
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
