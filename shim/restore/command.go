package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restorer"
)

// forCommand makes a container for a command. If the command ends before the container runs, all is undone.
func (v *serving) forCommand(asked *restorer.Conversation) error {
	m := &making{serving: v, asked: asked}
	defer m.disconnect()
	asked.Hear(v.left)
	v.say = m.say
	if v.request.Choices.Debug {
		_ = errors.Join(log.SetFormat(log.TextFormat), log.SetLevel("debug")) // which it knows
		log.L.Logger.SetOutput(lines{asked})
	}
	err := m.restore()
	if err == nil {
		return nil
	}
	var ran *ranError
	if errors.As(err, &ran) {
		err = ran.err
		if !ran.runsOn {
			err = m.failed(err)
		}
		asked.Tell(restorer.Message{Failed: failure.Of(err), Container: v.prepared.Name, RunsOn: ran.runsOn})
		return err
	}
	if cause := context.Cause(m.ctx); errors.Is(cause, errCalledOff) {
		err = cause
	}
	left := m.undo()
	if left != nil {
		m.warn("%v", left)
	}
	asked.Tell(m.refused(err))
	if left != nil {
		v.settle(undo) // as soon as containerd is back
	}
	return err
}

// refused says why there is no container.
func (m *making) refused(err error) restorer.Message {
	var images *ImagesError
	switch {
	case m.planned && !errors.Is(err, failure.ErrMisfit): // else it is nothing about the container
		return restorer.Message{Failed: failure.Of(m.failed(err)), Container: m.prepared.Name}
	case errors.As(err, &images):
		return restorer.Message{Failed: failure.Of(job.Failed(m.ctx, "restore", images.Name, tryAgain, err)), Container: images.Name}
	}
	return restorer.Message{Failed: failure.Of(err)}
}

const tryAgain = "try again; containerd's log tells more"

// failed is the error of a restore that did not come about. All is as before.
func (m *making) failed(err error) error {
	return job.Failed(m.ctx, "restore", m.prepared.Name, tryAgain, err)
}

// undo undoes all that was made.
func (m *making) undo() (err error) {
	if !m.planned {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	err = m.tryToSettle(ctx, undo)
	if m.etc != "" {
		err = errors.Join(err, os.RemoveAll(m.etc))
	}
	if m.unget != nil {
		err = errors.Join(err, m.unget(ctx))
	}
	m.clear(ctx)
	return err
}

func (m *making) disconnect() {
	if m.client != nil {
		_ = m.client.Close()
	}
}

// clear removes what CRIU was given and has made, which may still be at it.
func (v *serving) clear(ctx context.Context) {
	for ctx.Err() == nil && errors.Join(os.RemoveAll(v.prepared.Images), os.RemoveAll(v.criu())) != nil {
		time.Sleep(pollTime)
	}
}

// lines tells a command what is logged.
type lines struct{ asked *restorer.Conversation }

func (l lines) Write(p []byte) (int, error) {
	l.asked.Tell(restorer.Message{Log: string(p)})
	return len(p), nil
}

// restore makes the container, and brings its memory while it runs.
func (m *making) restore() error {
	o, err := m.chosen()
	if err != nil {
		return err
	}
	ctx, client, err := m.connect(m.ctx)
	if err != nil {
		return err
	}
	m.client, m.ctx = client, ctx
	if _, err := m.open(); err != nil {
		return err
	}
	m.asked.Tell(restorer.Message{Begun: m.work.Dir})
	if err := errors.Join(RemoveAbandoned(ctx, client, m.work.Dir), m.sweepEtcFiles(ctx)); err != nil && ctx.Err() == nil {
		m.warn("%v", err)
	}
	if name := m.request.ID; name != "" {
		if err := m.checkName(name); err != nil {
			return err // before anything is fetched
		}
	}
	socket, err := restorer.Listen(m.work.Dir)
	if err != nil {
		return err
	}
	if err := m.prepare(o, m.request.Choices.RequireSignature); err != nil {
		return errors.Join(err, socket.Close())
	}
	log.G(ctx).Debug("the snapshot is found, fits, and is allowed")
	m.planned = true
	m.asked.Tell(restorer.Message{Container: m.prepared.Name})
	for _, w := range m.prepared.Warnings {
		m.warn("%s", w)
	}
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { m.prepared.pull.end(context.Cause(ctx)) })() // who reads what does not come is not waited for
	unpacked := make(chan struct{})
	group.Go(func() error {
		defer close(unpacked)
		return m.blame(m.unpack(ctx, o.Registry.Progress))
	})
	group.Go(func() error { return m.make(ctx, o.Registry) })
	group.Go(func() error {
		defer socket.Close() // a shim that comes too late is not let wait
		<-unpacked
		for {
			err := m.serveShim(ctx, socket)
			if !errors.Is(err, errGone) || m.isRunning() {
				return err
			}
			// containerd was restarted and starts another shim, which connects again.
		}
	})
	return group.Wait()
}

// blame gives the reason why something of a snapshot could not be read, where err is not it.
func (v *serving) blame(err error) error {
	if err == nil {
		return nil
	}
	return v.suspect(v.prepared.pull.cause(err))
}

// serveShim waits for the shim to connect, and answers it until all memory is in the local store.
func (v *serving) serveShim(ctx context.Context, socket *restorer.Listener) error {
	shim, of, err := socket.Accept(ctx)
	if err != nil {
		return err
	}
	defer shim.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	shim.Hear(func() {
		if v.isRunning() { // nobody needs what is missing
			cancel(errGone)
			v.prepared.pull.end(errGone)
		}
	})
	if p := v.prepared; of.ID != p.Name || of.Namespace != v.request.Namespace {
		err := fmt.Errorf("the restore process is for the container %s in %s, not for %s in %s: %w", p.Name, v.request.Namespace, of.ID, of.Namespace, errdefs.ErrPermissionDenied)
		shim.Tell(restorer.Message{Failed: failure.Of(err)})
		return err
	}
	return v.attend(ctx, shim)
}

// chosen are the options that the command's flags say.
func (m *making) chosen() (Options, error) {
	c := m.request.Choices
	o := Options{
		Config: m.config, Name: m.request.ID, Namespace: m.request.Namespace, Address: m.request.Address, Choices: *c, GPUs: GPUOptions{Devices: c.Devices},
		Registry: registry.Options{
			PlainHTTP: c.Registry.PlainHTTP, Insecure: c.Registry.Insecure, CAFile: c.Registry.CAFile, Username: c.Registry.Username, Password: c.Registry.Password,
			Concurrency: c.Registry.Concurrency,
		},
		Check: m.admit,
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
			m.asked.Tell(restorer.Message{Progress: &restorer.Progress{What: what, Done: done, Total: total}})
		}
	}
	if c.Debug {
		o.Registry.Trace = func(r registry.Request) { TraceRequest(m.ctx, r) }
	}
	return o, nil
}

// warn and say tell the command's user.
func (m *making) warn(format string, args ...any) {
	m.asked.Tell(restorer.Message{Warning: fmt.Sprintf(format, args...)})
}

func (m *making) say(format string, args ...any) {
	m.asked.Tell(restorer.Message{Said: fmt.Sprintf(format, args...)})
}

// tell tells the command that the container runs.
func (m *making) tell(r *Result) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("tell the command that the container runs: %w", err)
	}
	m.asked.Tell(restorer.Message{Result: data})
	return nil
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
