package daemon

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// away waits for a containerd that goes away while a command has begun, as it does when it is restarted, and asks it again. What was
// asked and not answered may have been done: that is looked at then.
type away struct {
	socket   string
	patience time.Duration
	say      func(format string, args ...any)
}

// harmless are calls that change nothing when they are made twice, by the last part of their names.
var harmless = []string{"Get", "List", "Stat", "Status", "Info", "Usage", "Mounts", "Version", "Plugins", "Server", "ListPids", "Update", "Delete", "Remove", "DeleteProcess", "AddResource", "Kill"}

// unary is a [grpc.UnaryClientInterceptor].
func (w away) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, o...)
	made := w.made(method, req, reply, cc)
	if !Gone(err) || made == nil && !slices.Contains(harmless, path.Base(method)) {
		return err
	}
	if w.say != nil {
		w.say("containerd is away; waiting for it, for up to %s", w.patience)
	}
	for deadline := time.Now().Add(w.patience); Gone(err) && time.Now().Before(deadline) && w.back(ctx, deadline); {
		if made != nil {
			if done, asked := made(ctx); done || Gone(asked) {
				err = asked
				continue
			}
		}
		err = invoke(ctx, method, req, reply, cc, o...)
		time.Sleep(pollTime) // the connection is not made anew at once
	}
	return err
}

// pollTime is between two looks at what will change soon.
const pollTime = 50 * time.Millisecond

// Gone tells whether an error, of gRPC or of errdefs, says that containerd has gone away during a call: what it has passed on to a shim goes on. A shim
// that has gone away is another matter.
func Gone(err error) bool {
	return (grpcstatus.Code(err) == codes.Unavailable || errdefs.IsUnavailable(err)) && !strings.Contains(err.Error(), "ttrpc: closed")
}

// back waits until containerd takes connections again.
func (w away) back(ctx context.Context, deadline time.Time) bool {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
		if err == nil {
			return conn.Close() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pollTime):
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// made returns nil for calls that create nothing. For a call that creates something it returns a function that asks containerd whether the thing exists. If
// it does, the function fills in the call's reply and returns done.
func (w away) made(method string, req, reply any, cc *grpc.ClientConn) func(context.Context) (done bool, _ error) {
	switch req := req.(type) {
	case *leasesapi.CreateRequest:
		return func(ctx context.Context) (bool, error) {
			all, err := leasesapi.NewLeasesClient(cc).List(ctx, &leasesapi.ListRequest{Filters: []string{"id==" + req.GetID()}})
			if err != nil || len(all.GetLeases()) == 0 {
				return false, err
			}
			reply.(*leasesapi.CreateResponse).Lease = all.GetLeases()[0]
			return true, nil
		}
	case *containersapi.CreateContainerRequest:
		return func(ctx context.Context) (bool, error) {
			got, err := containersapi.NewContainersClient(cc).Get(ctx, &containersapi.GetContainerRequest{ID: req.GetContainer().GetID()})
			// One of this name that is not marked as this command's is another's.
			if err != nil || got.GetContainer().GetLabels()[WorkLabel] != req.GetContainer().GetLabels()[WorkLabel] {
				return false, err
			}
			reply.(*containersapi.CreateContainerResponse).Container = got.GetContainer()
			return true, nil
		}
	case *snapshotsapi.PrepareSnapshotRequest:
		return func(ctx context.Context) (bool, error) {
			got, err := snapshotsapi.NewSnapshotsClient(cc).Mounts(ctx, &snapshotsapi.MountsRequest{Snapshotter: req.GetSnapshotter(), Key: req.GetKey()})
			if err != nil {
				return false, err
			}
			reply.(*snapshotsapi.PrepareSnapshotResponse).Mounts = got.GetMounts()
			return true, nil
		}
	case *tasksapi.CreateTaskRequest:
		return func(ctx context.Context) (bool, error) {
			got, err := tasksapi.NewTasksClient(cc).Get(ctx, &tasksapi.GetRequest{ContainerID: req.GetContainerID()})
			if err != nil {
				return false, err
			}
			answer := reply.(*tasksapi.CreateTaskResponse)
			answer.ContainerID, answer.Pid = req.GetContainerID(), got.GetProcess().GetPid()
			return true, nil
		}
	case *tasksapi.StartRequest:
		return func(ctx context.Context) (bool, error) {
			return w.started(ctx, req, reply.(*tasksapi.StartResponse), cc)
		}
	}
	return nil
}

// started looks what has become of a task whose start was not answered. The shim goes on with it alone, and refuses to begin twice.
func (w away) started(ctx context.Context, req *tasksapi.StartRequest, reply *tasksapi.StartResponse, cc *grpc.ClientConn) (bool, error) {
	tasks := tasksapi.NewTasksClient(cc)
	for {
		got, err := tasks.Get(ctx, &tasksapi.GetRequest{ContainerID: req.GetContainerID()})
		if err != nil {
			return false, err
		}
		switch p := got.GetProcess(); p.GetStatus() {
		case tasktypes.Status_RUNNING, tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
			reply.Pid = p.GetPid()
			return true, nil
		case tasktypes.Status_STOPPED:
			return true, grpcstatus.Error(codes.Aborted, fmt.Sprintf("%s has ended while containerd was away, with exit status %d", req.GetContainerID(), p.GetExitStatus()))
		}
		again, err := tasks.Start(ctx, req)
		if err == nil {
			reply.Pid = again.GetPid()
			return true, nil
		}
		if grpcstatus.Code(err) != codes.FailedPrecondition { // else it is being started
			return true, err
		}
		select {
		case <-time.After(pollTime):
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}
