package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
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

// mortal is a containerd's service that goes away when it is called first.
type mortal struct {
	containersapi.UnimplementedContainersServer
	calls atomic.Int32
	dies  func()
}

func (m *mortal) call() {
	if m.calls.Add(1) == 1 {
		m.dies()
	}
}

func (m *mortal) Delete(context.Context, *containersapi.DeleteContainerRequest) (*emptypb.Empty, error) {
	m.call()
	return &emptypb.Empty{}, nil
}

func (m *mortal) Create(context.Context, *containersapi.CreateContainerRequest) (*containersapi.CreateContainerResponse, error) {
	m.call()
	return &containersapi.CreateContainerResponse{}, nil
}

// TestRetries: a containerd that goes away during a call and comes back is asked again where that changes nothing, and only there.
func TestRetries(t *testing.T) {
	for name, test := range map[string]struct {
		call     func(containersapi.ContainersClient) error
		patience time.Duration
		calls    int32 // 1: the error is that of a containerd that is gone
	}{
		"repeated": {func(c containersapi.ContainersClient) error {
			_, err := c.Delete(t.Context(), &containersapi.DeleteContainerRequest{ID: "a"})
			return err
		}, 10 * time.Second, 2},
		"not repeated": {func(c containersapi.ContainersClient) error {
			_, err := c.Create(t.Context(), &containersapi.CreateContainerRequest{})
			return err
		}, 10 * time.Second, 1},
		"no patience": {func(c containersapi.ContainersClient) error {
			_, err := c.Delete(t.Context(), &containersapi.DeleteContainerRequest{ID: "a"})
			return err
		}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "socket")
			m := &mortal{}
			serve := func() *grpc.Server {
				l, err := net.Listen("unix", socket)
				if err != nil {
					t.Error(err)
					return nil
				}
				s := grpc.NewServer()
				containersapi.RegisterContainersServer(s, m)
				go func() { _ = s.Serve(l) }()
				return s
			}
			first := serve()
			back := make(chan *grpc.Server, 1)
			m.dies = func() {
				go first.Stop() // it waits for the call
				time.Sleep(50 * time.Millisecond)
				go func() {
					time.Sleep(200 * time.Millisecond)
					back <- serve()
				}()
			}
			_, client, err := Connect(t.Context(), Options{Address: socket, Namespace: "n", Patience: test.patience})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			err = test.call(containersapi.NewContainersClient(client.Conn().(grpc.ClientConnInterface)))
			defer (<-back).Stop()
			if Gone(err) != (test.calls == 1) || m.calls.Load() != test.calls {
				t.Errorf("%d calls, %v", m.calls.Load(), err)
			}
		})
	}
}
