package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/shim/restorer"
)

// forCommand restores for a command, which makes the container. If the command ends before the container runs, what it has made is removed.
func (v *serving) forCommand(asked *restorer.Conversation) error {
	asked.Hear(v.left)
	if c := v.request.Choices; c.Debug {
		_ = errors.Join(log.SetFormat(log.TextFormat), log.SetLevel("debug")) // which it knows
		log.L.Logger.SetOutput(lines{asked})
	}
	planned, err := v.commanded(asked)
	if err == nil {
		return nil
	}
	m := restorer.Message{Failed: failure.Of(err)}
	var images *ImagesError
	var ran *ranError
	switch {
	case errors.As(err, &ran), planned && !errors.Is(err, failure.ErrMisfit):
		m.Container = v.prepared.Name
		m.RunsOn = ran != nil && ran.runsOn
	case errors.As(err, &images):
		m.Container = images.Name
	}
	asked.Tell(m)
	if ran == nil {
		asked.Left() // it undoes what it can
		if planned {
			v.settle(undo)
			v.clear()
		}
	}
	return err
}

// clear removes what CRIU was given and has made, which may still be at it.
func (v *serving) clear() {
	for deadline := time.Now().Add(undoTime); time.Now().Before(deadline); time.Sleep(pollTime) {
		if errors.Join(os.RemoveAll(v.prepared.Images), os.RemoveAll(v.criu())) == nil {
			return
		}
	}
}

// lines tells a command what is logged.
type lines struct{ asked *restorer.Conversation }

func (l lines) Write(p []byte) (int, error) {
	l.asked.Tell(restorer.Message{Log: string(p)})
	return len(p), nil
}

// commanded restores for a command. planned tells whether the command may have made something by then.
func (v *serving) commanded(asked *restorer.Conversation) (planned bool, err error) {
	o, err := v.chosen(asked)
	if err != nil {
		return false, err
	}
	if _, err := v.open(); err != nil {
		return false, err
	}
	asked.Tell(restorer.Message{Begun: v.work.Dir})
	socket, err := restorer.Listen(v.work.Dir)
	if err != nil {
		return false, err
	}
	defer socket.Close()
	if err := v.prepare(o, v.request.Choices.RequireSignature); err != nil {
		return false, err
	}
	p := v.prepared
	_, rootfs := p.Snapshot.RootFS()
	plan := &restorer.Plan{
		Name: p.Name, Ref: p.Ref, Digest: p.Descriptor.Digest, Spec: p.Spec, Etc: p.Etc, Images: p.Images, Work: v.criu(), RootFS: rootfs, Warnings: p.Warnings,
		Since: p.Since, Eager: p.Eager, PullFirst: p.PullFirst, Pulled: p.Pulled, Arrives: p.pull != nil && !p.pull.whole,
	}
	asked.Tell(restorer.Message{Planned: plan})
	both, group := v.unpack(o.Registry.Progress)
	if rootfs {
		group.Go(func() error {
			m, ok, err := asked.Next(both)
			if err == nil && (!ok || len(m.Apply) == 0) {
				err = errCalledOff
			}
			if err == nil {
				err = v.apply(both, m.Apply)
			}
			if err == nil {
				asked.Tell(restorer.Message{Applied: true})
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return true, v.suspect(p.pull.cause(err))
	}
	for {
		err := v.serveShim(socket, asked)
		if !errors.Is(err, errGone) || v.mayRun() {
			return true, err
		}
		// containerd was restarted and starts another shim, which connects again.
	}
}

// serveShim waits for the shim to connect, and answers it until all memory is in the local store.
func (v *serving) serveShim(socket *restorer.Listener, asked *restorer.Conversation) error {
	shim, of, err := socket.Accept(v.ctx)
	if err != nil {
		return err
	}
	defer shim.Close()
	shim.Hear(func() {
		if v.mayRun() {
			v.cancel(errGone) // nobody needs what is pulled
		}
	})
	if p := v.prepared; of.ID != p.Name || of.Namespace != v.request.Namespace {
		err := fmt.Errorf("the restore process is for the container %s in %s, not for %s in %s: %w", p.Name, v.request.Namespace, of.ID, of.Namespace, errdefs.ErrPermissionDenied)
		shim.Tell(restorer.Message{Failed: failure.Of(err)})
		return err
	}
	return v.attend(shim, asked)
}

// chosen are the options that the command's flags say.
func (v *serving) chosen(asked *restorer.Conversation) (Options, error) {
	c := v.request.Choices
	o := Options{
		Config: v.config, Name: v.request.ID, Namespace: v.request.Namespace, Address: v.request.Address, Choices: *c, GPUs: GPUOptions{Devices: c.Devices},
		Registry: registry.Options{
			PlainHTTP: c.Registry.PlainHTTP, Insecure: c.Registry.Insecure, CAFile: c.Registry.CAFile, Username: c.Registry.Username, Password: c.Registry.Password,
			Concurrency: c.Registry.Concurrency,
		},
	}
	o.Policy.Devices = c.Devices
	var err error
	if o.Policy.Allow, err = Grants(c.Allow); err != nil {
		return o, err
	}
	for _, text := range c.GPUs {
		pair, err := ParseGPUPair(text)
		if err != nil {
			return o, fmt.Errorf("--gpu %s: %w: %w", text, err, errdefs.ErrInvalidArgument)
		}
		o.GPUs.Pairs = append(o.GPUs.Pairs, pair)
	}
	if c.Progress {
		o.Registry.Progress = func(what string, done, total int64) {
			asked.Tell(restorer.Message{Progress: &restorer.Progress{What: what, Done: done, Total: total}})
		}
	}
	if c.Debug {
		o.Registry.Trace = func(r registry.Request) { TraceRequest(v.ctx, r) }
	}
	o.Check = func(c image.Config, name string, spec *specs.Spec) error {
		asked.Tell(restorer.Message{Considered: &restorer.Considered{Name: name, Container: c.Container, Terminal: spec.Process != nil && spec.Process.Terminal}})
		m, ok, err := asked.Next(v.ctx)
		if err == nil && (!ok || !m.Admitted) {
			err = errCalledOff
		}
		return err
	}
	return o, nil
}

// TraceRequest tells who debugs of a request to a registry.
func TraceRequest(ctx context.Context, r registry.Request) {
	e := log.G(ctx).WithFields(log.Fields{"method": r.Method, "url": r.URL, "took": r.Took.Round(time.Microsecond)})
	if r.Err != nil {
		e.WithError(r.Err).Debug("request to the registry")
		return
	}
	e.WithField("status", r.Status).Debug("request to the registry")
}
