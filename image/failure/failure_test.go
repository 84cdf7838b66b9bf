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
