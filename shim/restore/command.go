package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/worker"
)

// Command is cryo restore as its user sees it: it makes a container as any client of containerd does, whose shim restores it, and shows how far that is.
type Command struct {
	Config config.Config
	Store  *store.Store
	Client *containerd.Client
	// Environment is where the restore process looks for credentials and proxies, and for cryo's root and configuration.
	Environment []string
	Ref         string // of the snapshot
	Name        string // of the container; empty: the one that the snapshot's had
	Namespace   string // of containerd
	Address     string // of containerd's socket
	Choices     worker.Choices
	// Place returns what the container, with the specification spec, has to know of the group that it is a member of. It is called before the container is made. If it is nil, the container is no member.
	Place func(ctx context.Context, spec *specs.Spec) (*worker.Together, error)
	// Refilling is called when the pool of the snapshot ref is to be filled again, by a process of its own. If it is nil, the pool is not filled.
	Refilling func(ref string)
	// Debug receives each line that the restore process logs for debugging. If it is nil, the process logs none.
	Debug func(line string)

	member bool // of a pool: it stands still until it is taken

	Hooks
}

// Environment returns that of this process for the restore process, with a store, and a configuration file where that is not empty.
func Environment(s *store.Store, config string) ([]string, error) {
	all := append(os.Environ(), "CRYO_ROOT="+s.Root())
	if config == "" {
		return all, nil
	}
	path, err := filepath.Abs(config)
	if err != nil {
		return nil, fmt.Errorf("find the configuration: %w", err)
	}
	return append(all, "CRYO_CONFIG="+path), nil
}

// making is a restore of a command's that is under way.
type making struct {
	Command
	began    time.Time
	here     *Looking
	work     *store.Work
	puller   *registry.Puller // nil: the snapshot is in the local store, or is a file
	counts   registry.Counts  // of the puller
	plan     *Plan            // nil: nothing of the container was made
	snapshot ocispec.Descriptor
	listener *Listener[Result]

	etc                  string   // directory of files for /etc that were made; empty: none
	runtime, snapshotter string   // containerd's names
	log                  *url.URL // where output goes; nil: the shim keeps some of it
	img                  containerd.Image
	unget                func(context.Context) error // removes what img has brought to containerd; nil: nothing
	releasing            sync.WaitGroup              // the lease is being deleted
	container            containerd.Container        // nil: there is none
	task                 containerd.Task
	pool                 *FromPool // why none was taken out of the snapshot's pool; nil: it has none
}

const tryAgain = "try again; containerd's log tells more"

// Run makes a running container of a snapshot. ctx carries containerd's namespace. After an error nothing is left of the container, with two exceptions. A [*JobError] whose Running is true says that it runs.
// With [worker.Choices.Wait], a container that ran, and was ended since its memory did not come, is not removed.
func (c Command) Run(ctx context.Context) (*Result, error) {
	c.Hooks = c.OrNobody()
	c.WaitsFor("pull", func() string { return "the registry" })
	c.Choices.Progress, c.Choices.Debug = c.Progress != nil, c.Debug != nil
	m := &making{Command: c, began: time.Now()}
	defer m.close()
	r, err := m.restore(ctx)
	if r != nil && err == nil {
		return r, nil
	}
	if ran := (*JobError)(nil); errors.As(err, &ran) {
		return nil, ran
	}
	if left := m.undo(ctx, errdefs.IsPermissionDenied(err) || errdefs.IsDataLoss(err) || errdefs.IsFailedPrecondition(err)); left != nil {
		m.Warn("%v", left)
	}
	if err == nil { // a trial
		return &Result{Container: m.plan.Name, Complete: true, Warnings: m.plan.Warnings}, nil
	}
	return nil, m.failed(ctx, err)
}

// failed returns why there is no container.
func (m *making) failed(ctx context.Context, err error) error {
	switch {
	case m.plan == nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case m.plan == nil:
		return err // it is nothing about the container
	case ctx.Err() != nil:
		return JobFailed(ctx, "restore", m.plan.Name, "", context.Cause(ctx))
	case errors.Is(err, failure.ErrMisfit):
		return err
	}
	return JobFailed(ctx, "restore", m.plan.Name, tryAgain, err)
}

// close ends what runs for the command, and removes its working directory.
func (m *making) close() {
	m.listener.Close()
	m.releasing.Wait()
	if m.here != nil {
		m.here.End()
	}
	if m.puller != nil {
		m.puller.Close()
	}
	if m.work != nil {
		_ = m.work.Close() // the next process does it
	}
}

// undo undoes all that was made. What was fetched of a snapshot that is refused goes again.
func (m *making) undo(ctx context.Context, refused bool) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	m.listener.Close() // the restore process hears it, and ends
	if m.container != nil {
		if err = Remove(ctx, m.container); err != nil {
			err = failure.New(failure.KindOf(err, errdefs.ErrUnknown), "remove it when containerd is back: ctr containers rm "+m.container.ID(), "remove the container %s: %w", m.container.ID(), err)
		}
	}
	if m.etc != "" {
		err = errors.Join(err, os.RemoveAll(m.etc))
	}
	if m.unget != nil {
		err = errors.Join(err, m.unget(ctx))
	}
	if refused && m.puller != nil {
		err = errors.Join(err, m.puller.Abandon())
		m.puller = nil
	}
	return err
}

// restore makes the container, and waits until it runs. A trial has no result.
func (m *making) restore(ctx context.Context) (*Result, error) {
	o, err := m.chosen(ctx)
	if err != nil {
		return nil, err
	}
	if taken, err := m.take(ctx); taken != nil || err != nil {
		return taken, err
	}
	o.Name = m.Name
	m.here = Look(ctx, m.Config)
	if m.work, err = m.Store.Work(ctx); err != nil {
		return nil, err
	}
	if err := errors.Join(RemoveAbandoned(ctx, m.Client, m.work.Dir), m.sweepEtcFiles(ctx)); err != nil && ctx.Err() == nil {
		m.Warn("%v", err)
	}
	if m.Name != "" {
		if err := m.checkName(ctx, m.Name); err != nil {
			return nil, err // before anything is fetched
		}
	}
	request, err := m.decide(ctx, o)
	if err != nil {
		return nil, err
	}
	log.G(ctx).Debug("the snapshot is found, fits, and is allowed")
	for _, w := range m.plan.Warnings {
		m.Warn("%s", w)
	}
	if m.listener, err = Listen[Result](m.work.Dir, m.Hooks, m.Debug); err != nil {
		return nil, err
	}
	request.Order.Report = m.work.Dir
	if m.Place != nil {
		if request.Order.Together, err = m.Place(ctx, m.plan.Spec); err != nil {
			return nil, err
		}
	}
	if err := m.make(ctx, o.Registry); err != nil {
		return nil, err
	}
	log.G(ctx).Debug("the container is created")
	err = m.start(ctx, request)
	if m.Choices.Trial != nil {
		if tried, _, _ := m.listener.Last(); tried != nil {
			return nil, nil
		}
		return nil, cmp.Or(err, errRan)
	}
	if err != nil {
		return nil, err
	}
	log.G(ctx).Debug("the container runs")
	return m.result(ctx)
}

// decide finds the snapshot, decides whether and how it is restored, and returns what the shim is to be told.
func (m *making) decide(ctx context.Context, o Options) (request worker.Request, err error) {
	j, err := NewJudging(m.Config.Trust, config.Person, m.Choices.RequireSignature)
	if err != nil {
		return request, err
	}
	ref := m.Ref
	var desc ocispec.Descriptor
	if o.Trial != nil {
		desc, err = *o.Trial, j.local(ctx, m.Store, ref, o.Trial.Digest)
	} else {
		ref, desc, m.puller, err = Locate(ctx, m.Store, ref, o.Pull, o.Registry, j)
	}
	if err != nil {
		return request, err
	}
	var from image.Fetcher = m.Store
	if m.puller != nil {
		from = m.puller
	} else {
		o.Choices.Pull = PullNever
	}
	o.GPUs.LeaveToShim = m.puller == nil // else nothing is fetched that the shim would refuse
	snapshot, err := image.Open(ctx, from, desc)
	if err == nil {
		m.plan, err = newPlan(ctx, snapshot, ref, m.here, o)
	}
	if m.puller != nil {
		if err != nil { // what was fetched goes again
			err = errors.Join(err, m.puller.Abandon())
			m.puller = nil
			return request, err
		}
		err = m.puller.Settle(ctx)
	}
	if err != nil {
		return request, err
	}
	m.snapshot = desc
	p := m.plan
	p.Warnings = append(j.warning(), p.Warnings...)
	order := &worker.Order{Choices: o.Choices, Digest: desc.Digest, Policy: p.Policy, Environment: m.Environment, Annotations: map[string]string{}, Pool: m.member}
	for _, name := range []string{gpu.DevicesAnnotation, gpu.MapAnnotation} {
		if value, told := p.Spec.Annotations[name]; told {
			order.Annotations[name] = value
		}
	}
	Forget(p.Spec)
	return worker.Request{Ref: ref, ID: p.Name, Namespace: m.Namespace, Address: m.Address, Order: order}, nil
}

// result waits until the restore process has said how the container was restored, and with [worker.Choices.Wait] until all memory is in the local store.
func (m *making) result(ctx context.Context) (*Result, error) {
	r, err := m.listener.Await(ctx, func(*Result) bool { return true })
	if err != nil {
		return nil, err
	}
	if r.GPUPrewarmed {
		m.Say("the device memory of %s was prewarmed", m.plan.Name)
	}
	if m.Choices.Wait && !r.Complete {
		if r.Arrives {
			m.Say("%s runs, and its memory is on its way", m.plan.Name)
		}
		if r, err = m.listener.Await(ctx, func(r *Result) bool { return r.Complete }); err != nil {
			return nil, m.ran(ctx, err)
		}
	}
	r.Container, r.Namespace, r.PID, r.Reference, r.Digest = m.plan.Name, m.Namespace, m.task.Pid(), m.plan.Ref, m.snapshot.Digest.String()
	r.Image, r.Warnings, r.Arrives, r.Pool = m.img.Name(), m.plan.Warnings, false, m.pool
	running, pulled := m.listener.Since(m.began)
	r.Running = running
	if r.Pull != nil {
		r.Pull.Seconds = pulled
		r.Pull.Moved, r.Pull.Retries = r.Pull.Moved+m.counts.Moved(), r.Pull.Retries+m.counts.Repeated()
		r.Pull.There = max(0, r.Pull.There-m.counts.Moved())
	}
	return r, nil
}

// ran returns the error of a container that has run. Interrupting a wait for its memory does not end it.
func (m *making) ran(ctx context.Context, err error) *JobError {
	name := m.plan.Name
	if ctx.Err() != nil {
		return m.runsOn(name+" runs on, and its memory still comes", fmt.Errorf("wait for the memory of %s: %w", name, context.Cause(ctx)))
	}
	if m.listener.IsHarmless() {
		return m.runsOn("", err)
	}
	if errors.Is(err, worker.ErrDied) { // without a word of what becomes of the container
		ends, unknown := m.ends(ctx)
		switch {
		case unknown != nil:
			err = errors.Join(err, unknown)
		case !ends:
			return m.runsOn("", cutOff(name, true, true, err))
		default:
			err = cutOff(name, true, false, err)
		}
	}
	return JobFailed(ctx, "restore", name, tryAgain, err)
}

// endingTime is how long a shim may take to end a container whose memory does not come.
const endingTime = 10 * time.Second

// ends reports whether the container ends: its shim ends it unless all of its memory is there.
func (m *making) ends(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, endingTime)
	defer cancel()
	exit, err := m.task.Wait(ctx)
	if err != nil {
		return false, err
	}
	select {
	case status := <-exit:
		if ctx.Err() == nil {
			return true, status.Error()
		}
	case <-ctx.Done():
	}
	return false, nil
}

// runsOn returns the error of a container that runs.
func (m *making) runsOn(advice string, err error) *JobError {
	return &JobError{Container: m.plan.Name, Running: true, Restored: true, Advice: advice, Err: err}
}

// chosen are the options that the command's flags say.
func (m *making) chosen(ctx context.Context) (Options, error) {
	c := m.Choices
	o := Options{
		Config: m.Config, Name: m.Name, Namespace: m.Namespace, Address: m.Address, Choices: c, GPUs: GPUOptions{Devices: c.Devices},
		Registry: RegistryOptions(c.Registry, m.Config),
		Check:    func(c image.Config, name string, spec *specs.Spec) error { return m.admit(ctx, c, name, spec) },
	}
	o.Policy.Devices = c.Devices
	var err error
	if o.Policy.Allow, err = Grants(c.Allow); err != nil {
		return o, err
	}
	for _, text := range c.GPUs {
		pair, err := ParseGPUPair(text)
		if err != nil {
			return o, Wrong("--gpu %s: %v", text, err)
		}
		o.GPUs.Pairs = append(o.GPUs.Pairs, pair)
	}
	o.Registry.Progress, o.Registry.Counts = m.Progress, &m.counts
	if file := c.Registry.CAFile; file != "" {
		if o.Choices.Registry.CAFile, err = filepath.Abs(file); err != nil {
			return o, fmt.Errorf("find the certificate authorities: %w", err)
		}
	}
	if c.Debug {
		o.Registry.Trace = func(r registry.Request) { TraceRequest(ctx, r) }
	}
	return o, nil
}

// RegistryOptions returns what a command and the host's configuration say of a registry.
func RegistryOptions(r worker.Registry, c config.Config) registry.Options {
	return registry.Options{
		PlainHTTP: r.PlainHTTP, Insecure: r.Insecure, CAFile: r.CAFile, Username: r.Username, Password: r.Password, Concurrency: r.Concurrency, DockerConfig: r.Credentials,
		Hosts: c.Registry.Hosts,
	}
}

// TraceRequest logs a request for debugging to a registry.
func TraceRequest(ctx context.Context, r registry.Request) {
	e := log.G(ctx).WithFields(log.Fields{"method": r.Method, "url": r.URL, "took": r.Took.Round(time.Microsecond)})
	if r.Err != nil {
		e.WithError(r.Err).Debug("request to the registry")
		return
	}
	e.WithField("status", r.Status).Debug("request to the registry")
}
