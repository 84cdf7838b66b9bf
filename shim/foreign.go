package shim

import (
	"context"
	"errors"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
)

// Two containerds on one machine that have a namespace of one name share runc's directory for it. What runc has by a container's name may then be the other
// one's. It is looked at ([runc.Container.Foreign]) before runc is asked to make, kill or delete anything, and if it is foreign, runc is not asked.

// deleteForeign has the stock service forget a container that was not restored since its name is another's.
func (s *service) deleteForeign(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	return s.TTRPCTaskService.Delete(withoutRunc{ctx}, r)
}

// withoutRunc is a context that has ended already, so that no program is started with it: os/exec gives Err as the reason. The stock service takes the text for runc's,
// which knows no such container, and goes on to unmount and to forget. Source: containerd, cmd/containerd-shim-runc-v2/process, Init.delete.
type withoutRunc struct{ context.Context }

var (
	errNotAsked = errors.New("the container does not exist: it is another containerd's")
	closed      = make(chan struct{})
)

func init() { close(closed) }

// Done implements [context.Context].
func (withoutRunc) Done() <-chan struct{} { return closed }

// Err implements [context.Context].
func (withoutRunc) Err() error { return errNotAsked }
