package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
)

// Serve is the helper's side: it opens the driver, answers the requests of in on out, and undoes what is to be undone when in
// ends, ctx does, or nobody reads out any more. It gives [UnusableError] where the driver cannot be opened and
// [UndoError] where not all could be undone; the client has been told of both.
func Serve(ctx context.Context, in io.Reader, out io.Writer, open func() (API, error)) error {
	d, err := open()
	if err != nil {
		return errors.Join(err, write(out, failed(err)))
	}
	l := newLedger(d)
	heard := make(chan []byte)
	go listen(ctx, in, heard)
	err = write(out, answer{Hello: Version})
	for err == nil {
		select {
		case line, ok := <-heard:
			if !ok {
				return end(l, out)
			}
			err = write(out, respond(l, line))
		case <-ctx.Done():
			return end(l, out)
		}
	}
	return errors.Join(err, end(l, out))
}

// listen sends a line at a time and closes heard at the end.
func listen(ctx context.Context, in io.Reader, heard chan<- []byte) {
	defer close(heard)
	for l := newLines(in); ; {
		line, err := l.next()
		if err != nil {
			return
		}
		select {
		case heard <- append([]byte(nil), line...):
		case <-ctx.Done():
			return
		}
	}
}

func end(l *ledger, out io.Writer) error {
	made := l.undo()
	_ = write(out, answer{Undone: made}) // the client may be gone
	if failed := failures(made); len(failed) > 0 {
		return &UndoError{failed}
	}
	return nil
}

func respond(l *ledger, line []byte) answer {
	r, err := decodeRequest(line)
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

func write(out io.Writer, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	if _, err := out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// PrintFacts is the helper's command facts, for people and scripts: it prints one line, [Facts] or, together with an error, an answer that says it.
func PrintFacts(out io.Writer, open func() (API, error)) error {
	d, err := open()
	var f Facts
	if err == nil {
		f, err = d.Facts()
	}
	if err != nil {
		return errors.Join(err, write(out, failed(err)))
	}
	return write(out, f)
}
