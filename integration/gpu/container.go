package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// container is one that answers through files, see workloads/ask.py.
type container struct {
	b       *bench
	id      string
	program []string
	flags   []string // of ctr, further ones
	devices []int    // numbers of its GPUs
	members int      // processes that answer
	lives   []string // of its processes, once they have answered: no other may come in their place
	slow    time.Duration
}

// answer is what a process says of itself; ok means that its state is what it must be.
type answer struct {
	Seq   int64  `json:"seq"`
	OK    bool   `json:"ok"`
	Life  string `json:"life"`
	State map[string]any
	text  string
}

// container describes one; it has one process that answers, and the first GPU, unless the caller says otherwise.
func (b *bench) container(id string, program ...string) *container {
	return &container{b: b, id: id, program: program, devices: []int{0}, members: 1, slow: 3 * time.Minute}
}

// flags are those of ctr with which a container gets this machine's programs and some of its GPUs.
func (b *bench) flags(devices []int) []string {
	flags := append(append([]string{}, b.mounts...), b.env...)
	for _, n := range devices {
		flags = append(flags, "--device", "nvidia.com/gpu="+strconv.Itoa(n))
	}
	return flags
}

// run has ctr run it on a host; the flags are further ones.
func (c *container) run(ctx context.Context, h *lab.Host, flags ...string) error {
	args := []string{"run", "--detach", "--runtime", runtimeName, "--log-uri", "file://" + c.log(h)}
	args = slices.Concat(args, c.b.flags(c.devices), c.flags, flags)
	r := h.Ctr(ctx, append(append(args, c.b.image, c.id), c.program...)...)
	if r.Code != 0 { // the command itself is long
		return fmt.Errorf("start %s: %s", c.id, strings.TrimSpace(r.Stderr))
	}
	return nil
}

// start runs it on the first host and waits until all its processes are ready.
func (c *container) start(ctx context.Context) error {
	if err := c.run(ctx, c.b.a); err != nil {
		return err
	}
	for member := range c.members {
		a, err := c.await(ctx, c.b.a, member, 0)
		if err != nil {
			return fmt.Errorf("start %s: %w\n%s", c.id, err, end(c.log(c.b.a), 3000))
		}
		c.lives = append(c.lives, a.Life)
	}
	return nil
}

func (c *container) log(h *lab.Host) string { return filepath.Join(h.Dir, "logs", c.id) }

// work is where its processes find questions and leave answers, as seen from here.
func (c *container) work(ctx context.Context, h *lab.Host) (string, error) {
	pid, status, err := h.Task(ctx, c.id)
	if err != nil {
		return "", err
	}
	switch status {
	case "RUNNING":
		return filepath.Join("/proc", strconv.Itoa(pid), "root/srv"), nil
	case "PAUSED", "PAUSING": // a checkpoint that failed is being undone
		return "", errPaused
	case "STOPPED": // ctr ends with the task's own exit status
		return "", fmt.Errorf("%s on %s is %q, exit status %d", c.id, h.Name, status, h.Ctr(ctx, "tasks", "delete", c.id).Code)
	}
	return "", fmt.Errorf("%s on %s is %q", c.id, h.Name, status)
}

var errPaused = errors.New("paused")

// running waits until the container runs, as it does at once unless something is being undone.
func (c *container) running(ctx context.Context, h *lab.Host) (dir string, err error) {
	for deadline := time.Now().Add(c.slow); ; time.Sleep(100 * time.Millisecond) {
		dir, err = c.work(ctx, h)
		if !errors.Is(err, errPaused) || time.Now().After(deadline) || ctx.Err() != nil {
			return dir, err
		}
	}
}

// ask puts a question to one of its processes and waits for the answer.
func (c *container) ask(ctx context.Context, h *lab.Host, member int, question string) (answer, error) {
	dir, err := c.running(ctx, h)
	if err != nil {
		return answer{}, err
	}
	c.b.asked++
	path := filepath.Join(dir, "ask-"+strconv.Itoa(member))
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, "%d %s\n", c.b.asked, question), 0o666); err != nil {
		return answer{}, fmt.Errorf("ask %s: %w", c.id, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return answer{}, fmt.Errorf("ask %s: %w", c.id, err)
	}
	return c.await(ctx, h, member, c.b.asked)
}

// await waits for an answer. It ends when the process has failed by its own account, when the container has ended, and in time.
func (c *container) await(ctx context.Context, h *lab.Host, member int, seq int64) (answer, error) {
	deadline := time.Now().Add(c.slow)
	for n := 0; ; n++ {
		var a answer
		dir, err := c.work(ctx, h)
		if err == nil {
			a, err = read(dir, member)
		}
		switch {
		case err == nil && a.Seq == seq:
			return a, nil
		case err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errPaused):
			return a, err
		case time.Now().After(deadline):
			return a, fmt.Errorf("%s on %s: process %d does not answer within %s", c.id, h.Name, member, c.slow)
		case ctx.Err() != nil:
			return a, fmt.Errorf("%s on %s: no answer: %w", c.id, h.Name, ctx.Err())
		}
		time.Sleep(min(time.Second, time.Duration(10+n*5)*time.Millisecond))
	}
}

// read reads the latest answer of a process.
func read(dir string, member int) (a answer, err error) {
	if text, err := os.ReadFile(filepath.Join(dir, "failed-"+strconv.Itoa(member))); err == nil {
		return a, fmt.Errorf("process %d: %s", member, text)
	}
	text, err := os.ReadFile(filepath.Join(dir, "answer-"+strconv.Itoa(member)))
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("read answer %q: %w", text, err)
	}
	a.text = strings.TrimSpace(string(text))
	return a, json.Unmarshal(text, &a.State)
}

// check makes sure that all its processes are those they were, and that their state is what it must be.
func (c *container) check(ctx context.Context, h *lab.Host, r *result, when string) (last answer, err error) {
	for member := range c.members {
		a, err := c.ask(ctx, h, member, "check")
		if err != nil {
			return a, fmt.Errorf("%s: %w", when, err)
		}
		if a.Life != c.lives[member] {
			return a, fmt.Errorf("%s: process %d is another than before: %s", when, member, a.text)
		}
		if !a.OK {
			return a, fmt.Errorf("%s: the state of process %d is damaged: %s", when, member, a.text)
		}
		r.checked("%s: process %d answers %s", when, member, short(a.text))
		last = a
	}
	return last, nil
}

// remove ends it on a host, if it is there.
func (c *container) remove(ctx context.Context, h *lab.Host) {
	h.Ctr(ctx, "tasks", "delete", "--force", c.id)
	h.Ctr(ctx, "containers", "delete", c.id)
}

// short is the beginning of a long text.
func short(text string) string {
	if len(text) > 400 {
		return text[:400] + "..."
	}
	return text
}
