package failure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

type hinted struct{ error }

func (hinted) Hint() string { return "do this" }

type ruled struct{ error }

func (ruled) ByRule() string { return "mounts" }

// TestCross has errors cross as JSON: their kind, message and hint are the same on the other side.
func TestCross(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		of   []error
		kind error
		hint string
	}{
		"with a hint":    {fmt.Errorf("read: %w", errors.Join(errdefs.ErrDataLoss, hinted{errors.New("x")})), []error{errdefs.ErrDataLoss, errdefs.ErrAborted}, errdefs.ErrDataLoss, "do this"},
		"hint below":     {fmt.Errorf("read: %w: %w", errdefs.ErrUnavailable, hinted{errors.New("x")}), []error{errdefs.ErrUnavailable}, errdefs.ErrUnavailable, "do this"},
		"of no such":     {errdefs.ErrNotFound, []error{errdefs.ErrDataLoss, errdefs.ErrAborted}, errdefs.ErrAborted, ""},
		"that ended":     {context.Canceled, []error{context.Canceled, errdefs.ErrUnavailable}, context.Canceled, ""},
		"a full disk":    {fmt.Errorf("x: %w: %w", errdefs.ErrAborted, &os.PathError{Op: "write", Path: "y", Err: syscall.ENOSPC}), nil, errdefs.ErrResourceExhausted, ""},
		"by itself":      {fmt.Errorf("x: %w", errdefs.ErrAlreadyExists), nil, errdefs.ErrAlreadyExists, ""},
		"late":           {context.DeadlineExceeded, nil, context.DeadlineExceeded, ""},
		"very long":      {errors.New(strings.Repeat("x", 1<<20)), []error{errdefs.ErrInternal}, errdefs.ErrInternal, ""},
		"of newer cryos": {nil, nil, errdefs.ErrInternal, ""},
	} {
		sent := &Error{Kind: "of tomorrow", Message: "x"}
		if test.err != nil {
			sent = Of(test.err, test.of...)
		}
		data, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		var got *Error
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if *got != *sent || !errors.Is(got, test.kind) || len(data) > 1<<15 {
			t.Errorf("%s: %+v, want kind %v", name, got, test.kind)
		}
		if test.hint != "" && Hint(fmt.Errorf("more: %w", got)) != test.hint {
			t.Errorf("%s: hint %q", name, got.Hint())
		}
		if test.err != nil && !strings.HasPrefix(test.err.Error(), got.Error()) {
			t.Errorf("%s: message %q", name, got.Error())
		}
	}
	for want, err := range map[string]error{
		"mounts": fmt.Errorf("x: %w", errors.Join(errors.New("y"), ruled{errdefs.ErrNotFound})), "cpu-features": fmt.Errorf("x: %w", New(ErrMisfit, "", "y").By("cpu-features").Doing("z")),
		"not found": fmt.Errorf("mounts: %w", errdefs.ErrNotFound), "lost": fmt.Errorf("x: %w", ErrLost), "busy": ErrBusy, "unknown": errors.New("mounts: x"),
	} {
		data, marshal := json.Marshal(Of(err))
		var got *Error
		if err := errors.Join(marshal, json.Unmarshal(data, &got)); err != nil {
			t.Fatal(err)
		}
		if Class(err) != want || Class(got) != want {
			t.Errorf("%v is of class %q, and %q on the other side; want %q", err, Class(err), Class(got), want)
		}
	}
	if e := New(errdefs.ErrAborted, "try again", "%d bytes", 7).Doing("write"); e.Error() != "write: 7 bytes" || !errdefs.IsAborted(e) || e.Hint() != "try again" {
		t.Errorf("%+v", e)
	}
}

// TestOwnKind makes errors of a kind that a package has for itself: it is found here, and the kind that it wraps crosses.
func TestOwnKind(t *testing.T) {
	gone := fmt.Errorf("gone: %w", errdefs.ErrAborted)
	none := errors.New("no kind")
	for name, test := range map[string]struct {
		err, kind, crosses error
	}{
		"wraps one":       {New(gone, "", "move: it is away").Doing("load"), gone, errdefs.ErrAborted},
		"wraps a special": {New(fmt.Errorf("x: %w", ErrBusy), "", "y"), ErrBusy, ErrBusy},
		"wraps none":      {New(none, "", "read: %w", errdefs.ErrDataLoss), none, errdefs.ErrDataLoss},
		"has none":        {New(none, "", "read: %v", errdefs.ErrDataLoss), none, errdefs.ErrUnknown},
	} {
		crossed := *Of(test.err)
		if !errors.Is(test.err, test.kind) || !errors.Is(&crossed, test.crosses) || !errors.Is(errdefs.Resolve(test.err), errdefs.Resolve(test.crosses)) || strings.Contains(test.err.Error(), test.kind.Error()) {
			t.Errorf("%s: %v of kind %v, on the other side %+v", name, test.err, errdefs.Resolve(test.err), crossed)
		}
	}
}

// TestPassed reads what a shim has sent from what containerd has made of it.
func TestPassed(t *testing.T) {
	for text, want := range map[string]Error{
		"failed to start: rpc error: code = Unknown desc = restore a: no\nunknown\nand why\nrule: mounts\nhint: mount it\n  or not\naborted": {Message: "failed to start: restore a: no\nand why", Rule: "mounts", Advice: "mount it\n  or not"},
		"boom\nrule: two words": {Message: "boom\nrule: two words"},
		"boom":                  {Message: "boom"},
	} {
		sent := fmt.Errorf("%s: %w", text, errdefs.ErrAborted)
		got := Passed(sent)
		if got.Message != want.Message || got.Rule != want.Rule || got.Advice != want.Advice || got.Kind != "aborted" || !errors.Is(got, sent) {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
