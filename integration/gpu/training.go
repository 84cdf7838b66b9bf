package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

const trainingProgram = "torch_training.py"

// runTraining compares the losses of a container that was moved while it trained with those of a process that nobody disturbed.
func runTraining(ctx context.Context, b *bench, r *result) error {
	c := b.python(r.Case, trainingProgram)
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	const each = 100 // steps between two events
	if err := c.train(ctx, b.a, each); err != nil {
		return err
	}
	if _, err := b.leaveRunning(ctx, r, c, "live"); err != nil {
		return err
	}
	if err := c.train(ctx, b.a, 2*each); err != nil {
		return err
	}
	if err := b.move(ctx, r, c, route{}); err != nil {
		return err
	}
	if err := c.train(ctx, b.b, 3*each); err != nil {
		return err
	}
	return b.undisturbed(ctx, r, c, b.b, 3*each)
}

// undisturbed stops a container on a host, and compares its losses, of so many steps at least, with those of a process that nobody disturbed.
func (b *bench) undisturbed(ctx context.Context, r *result, c *container, h *lab.Host, least int) error {
	a, err := c.ask(ctx, h, 0, "stop")
	if err != nil {
		return err
	}
	var losses []string
	if list, ok := a.State["losses"].([]any); ok {
		for _, loss := range list {
			losses = append(losses, fmt.Sprint(loss))
		}
	}
	c.remove(ctx, h)
	if len(losses) < least {
		return fmt.Errorf("only %d steps were made", len(losses))
	}
	run := exec.CommandContext(ctx, python3(), filepath.Join(b.programs, trainingProgram), strconv.Itoa(len(losses)))
	run.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	reference := lab.Finish(run)
	if reference.Err() != nil {
		return reference.Err()
	}
	expected := strings.Fields(reference.Stdout)
	if len(expected) != len(losses) {
		return fmt.Errorf("the undisturbed run made %d steps, not %d", len(expected), len(losses))
	}
	for i := range losses {
		if losses[i] != expected[i] {
			return fmt.Errorf("the loss of step %d of %d is %s, undisturbed %s", i+1, len(losses), losses[i], expected[i])
		}
	}
	r.checked("%d losses, from %s to %s, are bit for bit those of an undisturbed run", len(losses), losses[0], losses[len(losses)-1])
	return nil
}

// train waits until so many steps have been made.
func (c *container) train(ctx context.Context, h *lab.Host, steps int) error {
	for {
		if made, err := c.steps(ctx, h); err != nil || made >= steps {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// steps is how many have been made.
func (c *container) steps(ctx context.Context, h *lab.Host) (int, error) {
	a, err := c.ask(ctx, h, 0, "check")
	if err != nil {
		return 0, err
	}
	made, ok := a.State["steps"].(float64)
	if !ok {
		return 0, fmt.Errorf("it does not say how many steps it has made: %s", a.text)
	}
	return int(made), nil
}
