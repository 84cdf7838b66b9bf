package save

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/worker"
)

// TestFailed: the error of a checkpoint without a snapshot says once what was done, what became of the container, and what to do.
func TestFailed(t *testing.T) {
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(interrupted)
	for name, test := range map[string]struct {
		ctx        context.Context
		err        error
		text, hint string
		is         func(error) bool
		lost       bool
	}{
		"of no kind":    {t.Context(), errors.New("boom"), "checkpoint web: boom", "CRIU's log", errdefs.IsAborted, false},
		"says it":       {t.Context(), errors.New("checkpoint abc: boom"), "checkpoint abc: boom", "CRIU's log", errdefs.IsAborted, false},
		"with a hint":   {t.Context(), failure.New(errdefs.ErrFailedPrecondition, "wait", "busy"), "checkpoint web: busy", "wait", errdefs.IsFailedPrecondition, false},
		"containerd":    {t.Context(), fmt.Errorf("dial: %w", errdefs.ErrUnavailable), "checkpoint web: dial: unavailable", "see that containerd runs", errdefs.IsUnavailable, false},
		"interrupted":   {ctx, interrupted, "checkpoint web: interrupted", "", errdefs.IsAborted, false},
		"lost":          {t.Context(), (&candidate{name: "web"}).is(ended, errors.New("boom")), "checkpoint web: the container is lost: its process is gone: boom", "cryo ls", errdefs.IsInternal, true},
		"lost, told so": {t.Context(), failure.New(failure.ErrLost, "", "checkpoint abc: the container is lost: boom"), "checkpoint abc: the container is lost: boom", "cryo ls", errdefs.IsInternal, true},
	} {
		err := failed(test.ctx, "web", test.err)
		hint := failure.Hint(err)
		if err.Error() != test.text || !strings.Contains(hint, test.hint) || (hint == "") != (test.hint == "") || !test.is(err) || isLost(err) != test.lost || err.Running == test.lost || err.Container != "web" {
			t.Errorf("%s: %q, hint %q, %+v", name, err, hint, err)
		}
	}
}

// TestKept: what the cause's hint says comes first, then what there is and how to go on.
func TestKept(t *testing.T) {
	r := &Result{Digest: "sha256:1", Running: true, asked: Options{Container: "web", Ref: "web:1"}}
	err := r.kept("push it with cryo push web:1", failure.New(errdefs.ErrUnauthenticated, "docker login", "push web:1: no"))
	if want := "docker login\nweb runs on; the snapshot is safe as web:1 (sha256:1); push it with cryo push web:1"; err.Hint() != want || !errdefs.IsUnauthorized(err) || err.Error() != "push web:1: no" {
		t.Errorf("%q, hint %q", err, err.Hint())
	}
	if err := r.kept("x", errors.New("y")); errdefs.IsAborted(err) {
		t.Error("aborted, though there is a snapshot")
	}
}

// TestExplain: the shim's own word counts, with its kind, and names the container as the caller does where another is at it.
func TestExplain(t *testing.T) {
	for name, test := range map[string]struct {
		told    error // by the shim; nil: it has died
		is      func(error) bool
		refused bool
	}{
		"nothing": {nil, errdefs.IsUnavailable, false},
		"refused": {failure.New(errdefs.ErrFailedPrecondition, "", "not now"), errdefs.IsFailedPrecondition, true},
		"failed":  {errdefs.ErrAborted, errdefs.IsAborted, false},
		"busy": {checkpoint.Busy("abc"), func(err error) bool {
			return errors.Is(err, failure.ErrBusy) && strings.Contains(err.Error(), "web")
		}, true},
		"was lost": {checkpoint.Lost("checkpoint", "abc", errors.New("boom")), isLost, false},
	} {
		shim, other := shimOf(t)
		if test.told == nil {
			other.Close()
		} else if err := other.Send(worker.Message{Ended: true, Failed: failure.Of(test.told)}); err != nil {
			t.Fatal(err)
		}
		h := &heldContainer{sub: &candidate{name: "web", asked: true, process: firstProcess{pid: 1 << 30}}, shim: shim, released: true}
		err := h.settle()
		if !test.is(err) || shim.Silent() != (test.told == nil) {
			t.Errorf("%s: got %v", name, err)
		}
		// The process is gone: that is the checkpoint's doing unless it was refused.
		if lost := h.sub.lost(err); isLost(lost) == test.refused {
			t.Errorf("%s: %v", name, lost)
		}
	}
}
