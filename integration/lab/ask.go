package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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

// Task says what "ctr task ls" says of a container's task; status "" where it has none.
func (h *Host) Task(ctx context.Context, id string) (pid int, status string, err error) {
	r := h.Ctr(ctx, "tasks", "ls")
	if r.Err() != nil {
		return 0, "", r.Err()
	}
	for line := range strings.Lines(r.Stdout) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == id {
			pid, err = strconv.Atoi(f[1])
			return pid, f[2], err
		}
	}
	return 0, "", nil
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
