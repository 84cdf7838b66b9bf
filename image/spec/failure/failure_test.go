package failure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

type hinted struct{ error }

func (hinted) Hint() string { return "do this" }

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
	if e := New(errdefs.ErrAborted, "try again", "%d bytes", 7).Doing("write"); e.Error() != "write: 7 bytes" || !errdefs.IsAborted(e) || e.Hint() != "try again" {
		t.Errorf("%+v", e)
	}
}
