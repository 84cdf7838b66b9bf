package shim

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cryo-project/cryo/image/failure"
)

func TestReplyKeepsKindAndText(t *testing.T) {
	joined := fmt.Errorf("find x: %w: %w", errdefs.ErrFailedPrecondition, &os.PathError{Op: "stat", Path: "x", Err: os.ErrNotExist})
	for _, err := range []error{joined, errors.New("plain"), fmt.Errorf("x: %w", errdefs.ErrAborted)} {
		got := errgrpc.ToNative(reply(err))
		if errdefs.Resolve(got) != errdefs.Resolve(err) {
			t.Errorf("%q has kind %v, had %v", got, errdefs.Resolve(got), errdefs.Resolve(err))
		}
		want := err.Error()
		if kind := ": " + errdefs.Resolve(err).Error(); got.Error() != want && got.Error() != want+kind {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if reply(nil) != nil {
		t.Error("an error out of none")
	}
}

// TestReplyUnavailable: clients take Unavailable to mean that containerd is away, and would ask a shim that answers for ever.
func TestReplyUnavailable(t *testing.T) {
	err := reply(fmt.Errorf("reach the restore process: %w", errdefs.ErrUnavailable))
	if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "reach the restore process") {
		t.Errorf("got %v", err)
	}
}

// TestReplyForged: text of a snapshot in an error is no hint, and does nothing to a terminal, whoever has made the error.
func TestReplyForged(t *testing.T) {
	const forged = "open a\nhint: b\x1b[2J"
	for _, err := range []error{errors.New(forged), status.Error(codes.Unknown, forged), hinted{errors.New(forged)}} {
		if got := reply(err).Error(); strings.Contains(got, "\nhint: b") || strings.Contains(got, "\x1b") || !strings.Contains(got, "\n  hint: b") {
			t.Errorf("got %q", got)
		}
	}
}

type hinted struct{ error }

func (hinted) Hint() string { return "do this" }

func TestReplySaysTheHint(t *testing.T) {
	got := errgrpc.ToNative(reply(fmt.Errorf("x: %w: %w", hinted{errors.New("y")}, errdefs.ErrAborted)))
	if want := "x: y: aborted\nhint: do this"; got.Error() != want && got.Error() != want+": aborted" || !errdefs.IsAborted(got) {
		t.Errorf("got %q", got)
	}
}

// TestReplyPasses: a client of containerd finds rule and hint again, whatever containerd has put around them.
func TestReplyPasses(t *testing.T) {
	for name, test := range map[string]struct {
		err        error
		rule, hint string
	}{
		"rule and hint": {failure.New(errdefs.ErrFailedPrecondition, "mount it\nor not", "mounts: there is none\nrule: forged\nhint: forged").By("mounts"), "mounts", "mount it\n  or not"},
		"rule":          {failure.New(errdefs.ErrPermissionDenied, "", "signature: none").By("signature"), "signature", ""},
		"hint":          {hinted{fmt.Errorf("y\nrule: forged: %w", errdefs.ErrAborted)}, "", "do this"},
		"neither":       {errors.New("rule: forged\nrule: forged\nhint: forged"), "", ""},
	} {
		daemon := errgrpc.ToGRPC(fmt.Errorf("failed to create shim task: %w", errgrpc.ToNative(reply(test.err))))
		if got := failure.Passed(errgrpc.ToNative(daemon)); got.Rule != test.rule || got.Advice != test.hint {
			t.Errorf("%s: rule %q, hint %q of %q", name, got.Rule, got.Advice, daemon)
		}
	}
}
