package restore

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/fit"
)

// DriverCheck is the rest of a plan, by what the driver of its GPUs says, which is heard while the container is made.
type DriverCheck struct {
	done   chan struct{}
	err    error // what stands in the way; this and memory are there when done is closed
	memory bool  // err is nothing but want of free memory
}

// CheckDriver waits for what the driver says, in the background. The context that it gives ends when that stands in the way.
func (p *Plan) CheckDriver(ctx context.Context) (context.Context, *DriverCheck) {
	c := &DriverCheck{done: make(chan struct{})}
	if p.GPUs.asked == nil {
		close(c.done)
		return ctx, c
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		defer close(c.done)
		if c.err = p.GPUs.decide(); c.err == nil {
			c.err, c.memory = p.fitsGPUs()
		}
		if c.err != nil && !c.memory {
			cancel(c.err)
		}
	}()
	return ctx, c
}

// fitsGPUs compares the snapshot with the GPUs that the driver knows, as [Plan.fits] has not.
func (p *Plan) fitsGPUs() (err error, memory bool) {
	v := fit.Check(p.compared, fit.Target{PathExists: exists, GPUs: p.GPUs.Facts})
	v.Findings = slices.DeleteFunc(v.Findings, func(f fit.Finding) bool { return !strings.HasPrefix(f.Rule, "gpu-") })
	for _, w := range v.Warnings() {
		p.Warnings = append(p.Warnings, w.Problem)
	}
	return v.Err(), !slices.ContainsFunc(v.Findings, func(f fit.Finding) bool { return f.Fatal && f.Rule != "gpu-memory" })
}

// Said gives what stands in the way as far as it is known, before the container has taken anything.
func (c *DriverCheck) Said() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Judge waits for the driver's words, and gives what has kept the container from being made: err, or these where they stand in the way. What was free when the
// driver was asked, the container itself may have taken: that stands in the way only of one that the shim has refused too.
func (c *DriverCheck) Judge(err error) error {
	<-c.done
	var gone *unaskedError
	switch {
	case c.err == nil, c.memory && !errdefs.IsFailedPrecondition(err), errors.As(c.err, &gone) && err != nil:
		return err
	}
	return c.err
}
