package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

func TestGone(t *testing.T) {
	for _, test := range []struct {
		err  error
		gone bool
	}{
		{nil, false},
		{errors.New("EOF"), false},
		{grpcstatus.Error(codes.NotFound, "no such container"), false},
		{grpcstatus.Error(codes.Unavailable, "error reading from server: EOF"), true},
		{grpcstatus.Error(codes.Unavailable, "ttrpc: closed: unavailable"), false}, // the shim
	} {
		for _, err := range []error{test.err, errgrpc.ToNative(test.err)} {
			if test.err != nil {
				err = fmt.Errorf("get the task: %w", err)
			}
			if Gone(err) != test.gone {
				t.Errorf("%v: %t", err, !test.gone)
			}
		}
	}
}

// TestConnectCancelled: a command that is interrupted while it reaches containerd says that, and not that containerd is away.
func TestConnectCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errdefs.ErrAborted)
	if _, _, err := Connect(ctx, Options{Address: filepath.Join(t.TempDir(), "socket")}); !errdefs.IsAborted(err) {
		t.Errorf("got %v", err)
	}
}
