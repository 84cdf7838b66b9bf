package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// WorkloadSocket is where the workload program answers inside a container.
const WorkloadSocket = "/srv/ask.sock"

// Answer is what the workload program says of itself, see integration/workload.
type Answer struct {
	Kind  string         `json:"kind"`
	Life  string         `json:"life"` // differs after every start of the program
	PID   int            `json:"pid"`  // inside the container
	Count int64          `json:"count"`
	OK    bool           `json:"ok"`
	Error string         `json:"error"`
	State map[string]any `json:"state"`
}

// Task says what containerd says of a container's task, in the words of ctr tasks ls; status "" where it has none.
func (h *Host) Task(ctx context.Context, id string) (pid int, status string, err error) {
	all, err := h.tasks(ctx)
	if err != nil {
		return 0, "", err
	}
	for _, t := range all {
		if t.ID == id {
			return int(t.Pid), t.Status.String(), nil
		}
	}
	return 0, "", nil
}

// tasks are all tasks of the host. It is asked for them very often, and so without a process of ctr.
func (h *Host) tasks(ctx context.Context) ([]*task.Process, error) {
	c, err := h.Client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.TaskService().List(namespaces.WithNamespace(ctx, "default"), &tasks.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the tasks of %s: %w", h.Name, errgrpc.ToNative(err))
	}
	return all.Tasks, nil
}

// Remove removes a container, its task and its snapshot, whatever there is of them, as ctr tasks delete --force and ctr containers delete do.
func (h *Host) Remove(ctx context.Context, id string) error {
	c, err := h.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx = namespaces.WithNamespace(ctx, "default")
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	if t, err := container.Task(ctx, nil); err == nil {
		got, _ := c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id}) // its shim may be dead
		if _, err := t.Delete(ctx, containerd.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the task of %s: %w", id, err)
		}
		// The directory of FIFOs is the client's, and named as the host's programs see it.
		if fifos := filepath.Dir(got.GetProcess().GetStdout()); strings.HasPrefix(fifos, "/run/containerd/fifo/") {
			if err := os.RemoveAll(filepath.Join(h.Dir, fifos)); err != nil {
				return err
			}
		}
	}
	if err := container.Delete(ctx, containerd.WithSnapshotCleanup); err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	return nil
}

// Ask asks the workload in a running container, through its file system and not through exec. The words are a command of
// the workload's; none means "check", whose answer is not OK where state is damaged (err is nil then).
func (h *Host) Ask(ctx context.Context, id string, words ...string) (Answer, error) {
	var a Answer
	pid, status, err := h.Task(ctx, id)
	if err != nil {
		return a, err
	}
	if status != "RUNNING" {
		return a, &notRunningError{id, status}
	}
	return askPID(ctx, pid, words)
}

// notRunningError is an answer that will never come.
type notRunningError struct{ id, status string }

func (e *notRunningError) Error() string {
	if e.status == "" {
		return fmt.Sprintf("ask %s: it has no task", e.id)
	}
	return fmt.Sprintf("ask %s: it is %s", e.id, e.status)
}

func askPID(ctx context.Context, pid int, words []string) (a Answer, err error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	path := filepath.Join("/proc", strconv.Itoa(pid), "root", WorkloadSocket)
	c, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return a, fmt.Errorf("ask workload: %w", err)
	}
	defer c.Close()
	deadline := time.Now().Add(2 * time.Minute)
	if d, ok := ctx.Deadline(); ok {
		deadline = d
	}
	if err := c.SetDeadline(deadline); err != nil {
		return a, fmt.Errorf("ask workload: %w", err)
	}
	if _, err := fmt.Fprintln(c, strings.Join(words, " ")); err != nil {
		return a, fmt.Errorf("ask workload: %w", err)
	}
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return a, fmt.Errorf("read workload's answer: %w", err)
	}
	return a, nil
}

// AwaitAnswer asks until the workload answers, which a container does shortly after its start, or until it has stopped.
func (h *Host) AwaitAnswer(ctx context.Context, id string, words ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		a, err := h.Ask(ctx, id, words...)
		var stopped *notRunningError
		if err == nil || ctx.Err() != nil || errors.As(err, &stopped) && stopped.status == "STOPPED" {
			return a, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
