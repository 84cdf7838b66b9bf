package shim

import (
	"context"
	"errors"
	"strings"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/runc"

	gorunc "github.com/containerd/go-runc"
)

// stockTask is a paused task of the stock service.
type stockTask struct {
	taskAPI.TTRPCTaskService
	did []string
}

func (s *stockTask) Resume(context.Context, *taskAPI.ResumeRequest) (*ptypes.Empty, error) {
	s.did = append(s.did, "resume")
	return &ptypes.Empty{}, nil
}

func (s *stockTask) Pause(context.Context, *taskAPI.PauseRequest) (*ptypes.Empty, error) {
	s.did = append(s.did, "pause")
	return &ptypes.Empty{}, nil
}

func (s *stockTask) Wait(context.Context, *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	s.did = append(s.did, "wait")
	return &taskAPI.WaitResponse{}, nil
}

// parkedDevices are loaded as ordered.
type parkedDevices struct {
	checkpoint.Devices
	s   *stockTask
	err error
}

func (d parkedDevices) Stop(context.Context) error {
	d.s.did = append(d.s.did, "stop")
	return nil
}

func (d parkedDevices) Load(context.Context) error {
	d.s.did = append(d.s.did, "load")
	return d.err
}

func TestResumeOfTheParked(t *testing.T) {
	for _, test := range []struct {
		name   string
		parked bool
		err    error
		want   string
		next   phase
		says   string
	}{
		{name: "not parked", want: "resume", next: running},
		{name: "parked", parked: true, want: "stop resume load", next: running},
		{name: "no memory", parked: true, err: errors.New("no memory"), want: "stop resume load pause", next: parked, says: "it is paused still"},
		{name: "lost", parked: true, err: &checkpoint.LossError{Err: errors.New("999")}, want: "stop resume load wait", next: ended, says: "the container is lost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stock := &stockTask{}
			c := &container{
				request: &taskAPI.CreateTaskRequest{ID: "c"}, gpus: gpus{nvidia: true},
				runtime: runc.Container{ID: "c", Runtime: &gorunc.Runc{Command: "/no/runc"}},
			}
			c.life.phase = running
			if test.parked {
				c.life.phase, c.saved = parked, parkedDevices{s: stock, err: test.err}
			}
			s := &service{TTRPCTaskService: stock, containers: map[string]*container{"c": c}}
			_, err := s.Resume(t.Context(), &taskAPI.ResumeRequest{ID: "c"})
			if (err != nil) != (test.err != nil) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
			if got := strings.Join(stock.did, " "); got != test.want {
				t.Errorf("did %s, want %s", got, test.want)
			}
			if p := c.life.now(); p != test.next || (c.saved != nil) != (p == parked) {
				t.Errorf("phase %d, want %d; GPUs saved: %v", p, test.next, c.saved)
			}
		})
	}
}
