package shim

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
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

type hinted struct{ error }

func (hinted) Hint() string { return "do this" }

func TestReplySaysTheHint(t *testing.T) {
	got := errgrpc.ToNative(reply(fmt.Errorf("x: %w: %w", hinted{errors.New("y")}, errdefs.ErrAborted)))
	if want := "x: y: aborted\nhint: do this"; got.Error() != want && got.Error() != want+": aborted" || !errdefs.IsAborted(got) {
		t.Errorf("got %q", got)
	}
}
