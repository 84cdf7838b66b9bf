package shim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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
		stays  bool
		says   string
	}{
		{name: "not parked", want: "resume"},
		{name: "parked", parked: true, want: "resume load"},
		{name: "no memory", parked: true, err: errors.New("no memory"), want: "resume load pause", stays: true, says: "it is paused still"},
		{name: "lost", parked: true, err: &checkpoint.LossError{Err: errors.New("999")}, want: "resume load wait", says: "the container is lost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stock := &stockTask{}
			c := &container{
				request: &taskAPI.CreateTaskRequest{ID: "c"}, gpus: gpus{nvidia: true},
				runtime: runc.Container{ID: "c", Runtime: &gorunc.Runc{Command: "/no/runc"}},
			}
			if test.parked {
				c.parked = parkedDevices{s: stock, err: test.err}
			}
			s := &service{TTRPCTaskService: stock, containers: map[string]*container{"c": c}}
			_, err := s.Resume(t.Context(), &taskAPI.ResumeRequest{ID: "c"})
			if (err != nil) != (test.err != nil) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
			if got := strings.Join(stock.did, " "); got != test.want {
				t.Errorf("did %s, want %s", got, test.want)
			}
			if (c.parked != nil) != test.stays {
				t.Errorf("parked: %v", c.parked)
			}
		})
	}
}

func TestGateAwaits(t *testing.T) {
	var g gate
	_, open, _, _ := g.close(t.Context())
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := g.await(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	got := make(chan error)
	go func() {
		_, open, err := g.await(context.Background())
		if err == nil {
			open()
		}
		got <- err
	}()
	time.Sleep(5 * time.Millisecond)
	open()
	if err := <-got; err != nil {
		t.Error(err)
	}
}
