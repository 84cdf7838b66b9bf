package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/worker"
)

// reports begins to report to the command, and calls the restore off where that ends before the container runs.
func (v *serving) reports() {
	var err error
	if v.report, err = worker.OpenReport(v.request.Order.Report); err != nil {
		v.cancel(errCalledOff)
		return
	}
	go v.follow(errCalledOff)
	if v.request.Order.Choices.Debug {
		LogTo(v.report)
	}
}

// LogTo has this process report what it logs, for debugging.
func LogTo(report *worker.Report) {
	_ = log.SetFormat(log.TextFormat) // which it knows
	_ = log.SetLevel("debug")
	log.L.Logger.SetOutput(lines{report})
}

// lines reports what is logged.
type lines struct{ to *worker.Report }

func (l lines) Write(p []byte) (int, error) {
	l.to.Tell(worker.News{Log: string(p)})
	return len(p), nil
}

// fails reports why the restore has failed. If a trial was restored, it reports success instead. If the shim has called the restore off, it reports nothing: containerd's error says
// why.
func (v *serving) fails(err error) {
	switch {
	case v.tried.Load():
		v.tell(&Result{Complete: true})
	case !errors.Is(err, errGone) && !errors.Is(context.Cause(v.ctx), errGone):
		v.report.Tell(worker.News{Failed: failure.Of(err)})
	}
}

// tell reports a result.
func (v *serving) tell(r *Result) {
	if data, err := json.Marshal(r); err == nil { // of strings and numbers
		v.report.Tell(worker.News{Result: data})
	}
}

// reportRunning reports that the container runs.
func (v *serving) reportRunning(loaded gpu.Loaded) *Result {
	p := v.prepared
	arrives := p.pull != nil && (!p.pull.whole || p.pull.source.IsUnstored())
	r := &Result{
		Seconds: time.Since(p.Since).Seconds(), PullFirst: p.PullFirst, Lazy: p.Lazy(), Eager: p.Eager,
		GPUPrewarmed: loaded.Prewarmed, GPUs: loaded.GPUs, Complete: !arrives, Pull: v.pulled(), Arrives: arrives && !p.pull.whole,
	}
	v.tell(r)
	return r
}

// reportComplete reports that all memory is in the local store, unless the first result did.
func (v *serving) reportComplete(r *Result) {
	if r.Complete {
		return
	}
	log.G(v.ctx).Debug("all of its memory is in the local store")
	r.Complete, r.Pull = true, v.pulled()
	v.tell(r)
}

// pulled is what was fetched until now; nil: nothing was missing.
func (v *serving) pulled() *Transfer {
	if !v.prepared.Pulled {
		return nil
	}
	return Transferred(&v.counts, v.began)
}

// ordered returns the options of a restore that a command has decided on. The specification is the one that it has given the container.
func (v *serving) ordered() (Options, error) {
	r, order := v.request, v.request.Order
	o := Options{
		Config: v.config, Name: r.ID, Namespace: r.Namespace, Address: r.Address, Choices: order.Choices, Digest: order.Digest, Policy: order.Policy,
		Registry: RegistryOptions(order.Choices.Registry, v.config), Ordered: true,
	}
	if o.Choices.Progress {
		o.Registry.Progress = func(what string, done, total int64) {
			v.report.Tell(worker.News{Progress: &worker.Progress{What: what, Done: done, Total: total}})
		}
	}
	if o.Choices.Debug {
		o.Registry.Trace = func(r registry.Request) { TraceRequest(v.ctx, r) }
	}
	var err error
	o.Spec, err = readSpec(r.Bundle)
	return o, err
}

// readSpec reads the specification of a container that exists.
func readSpec(bundle string) (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's specification: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("read the container's specification: %w", err)
	}
	return &spec, nil
}

// moved returns the error that a name stands for another snapshot than a moment ago.
func moved(ref string) error {
	return failure.New(errdefs.ErrUnavailable, "try again", "%s stands for another snapshot than when the container was made", ref)
}
