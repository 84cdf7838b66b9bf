package restore

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/fit"
)

// Late is the rest of a plan, by what the driver of its GPUs says, which is heard while the container is made.
type Late struct {
	done   chan struct{}
	err    error // what stands in the way; this and memory are there when done is closed
	memory bool  // err is nothing but want of free memory
}

// Late hears the driver. The context that it gives ends when what it says stands in the way.
func (p *Plan) Late(ctx context.Context) (context.Context, *Late) {
	l := &Late{done: make(chan struct{})}
	if p.GPUs.asked == nil {
		close(l.done)
		return ctx, l
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		defer close(l.done)
		if l.err = p.GPUs.decide(); l.err == nil {
			l.err, l.memory = p.fitsGPUs()
		}
		if l.err != nil && !l.memory {
			cancel(l.err)
		}
	}()
	return ctx, l
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
func (l *Late) Said() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// Judge waits for the driver's words, and gives what has kept the container from being made: err, or these where they stand in the way. What was free when the
// driver was asked, the container itself may have taken: that stands in the way only of one that the shim has refused too.
func (l *Late) Judge(err error) error {
	<-l.done
	var gone *unaskedError
	switch {
	case l.err == nil, l.memory && !errdefs.IsFailedPrecondition(err), errors.As(l.err, &gone) && err != nil:
		return err
	}
	return l.err
}
