package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// How often the warmer looks. A ConfigMap's file is replaced by a symlink to another directory, which reading it again follows.
const (
	fileTime = 2 * time.Second  // at the file
	lookTime = 10 * time.Second // at what is prewarmed: others remove it, and a restore uses up device memory
)

// States of a snapshot that is to be kept prewarmed.
const (
	ready   = "ready"
	pending = "pending"
	failed  = "failed"
)

var states = []string{ready, pending, failed}

// State is what has become of a snapshot that the file lists.
type State struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest,omitempty"` // unless it is not known yet
	State     string `json:"state"`
	OnGPU     bool   `json:"onGPU,omitempty"` // its device memory is loaded
	Error     string `json:"error,omitempty"`
	Hint      string `json:"hint,omitempty"`
}

// warmer keeps prewarmed what the file lists, one snapshot after the other.
type warmer struct {
	o       Options
	store   *store.Store
	record  *record
	metrics *metrics
	retry   *flowcontrol.Backoff
	changed chan struct{} // the file has; of capacity 1
	used    chan struct{} // a container was restored; of capacity 1
	// tell is called with the digests that are ready, and whether their device memory is loaded, when that has changed.
	tell func(map[string]bool)

	parked map[string]error // by reference: there is no room for it, until the file changes
	told   map[string]bool

	mu      sync.Mutex
	want    Wanted           // guarded by mu
	fileErr error            // guarded by mu: why the file is not what is wanted
	states  map[string]State // guarded by mu: by reference
	failed  map[string]error // guarded by mu: by reference, the last attempt's
}

func newWarmer(o Options, s *store.Store, r *record, m *metrics, tell func(map[string]bool)) *warmer {
	return &warmer{
		o: o, store: s, record: r, metrics: m, tell: tell, retry: flowcontrol.NewBackOff(5*time.Second, 5*time.Minute),
		changed: make(chan struct{}, 1), used: make(chan struct{}, 1), parked: map[string]error{}, states: map[string]State{}, failed: map[string]error{},
	}
}

// watch reads the file again and again. What was read last that made sense stays wanted.
func (k *warmer) watch(ctx context.Context, last []byte) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(fileTime):
		}
		w, data, err := Read(k.o.File)
		k.mu.Lock()
		news := err != nil && (k.fileErr == nil || k.fileErr.Error() != err.Error())
		k.fileErr = err
		if err == nil && !bytes.Equal(data, last) {
			k.want, last = w, data
			wake(k.changed)
		}
		k.mu.Unlock()
		if news {
			k.o.Log(Entry{What: "what is wanted stays as it was", Err: err})
		}
	}
}

// wake has the goroutine that waits for c look once more.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run goes through all that is wanted until ctx ends. A change of the file calls off what is under way; a pull goes on later where it was.
func (k *warmer) run(ctx context.Context) {
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := k.round(round); err != nil && round.Err() == nil {
				k.o.Log(Entry{What: "look at what is prewarmed", Err: err})
			}
		}()
		select {
		case <-done:
		case <-k.changed:
			cancel()
			wake(k.changed) // for below
			<-done
		}
		cancel()
		select {
		case <-ctx.Done():
		case <-k.changed:
			clear(k.parked)
		case <-k.used:
		case <-time.After(lookTime):
		}
	}
}

// round removes what is not wanted any more, and prewarms what is missing.
func (k *warmer) round(ctx context.Context) error {
	want := k.wanted()
	all, err := k.look(ctx)
	if err != nil {
		return err
	}
	for _, o := range slices.Clone(k.record.Own) {
		if !want.has(o.Ref) {
			err = errors.Join(err, k.remove(ctx, all, o))
		}
	}
	for _, l := range all {
		if l.Stale && k.record.has(l.Reference) { // only its device memory is kept
			err = errors.Join(err, restore.RemovePrewarmed(ctx, k.store, l))
		}
	}
	for i, w := range want.Snapshots {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l := k.find(ctx, all, w.Ref)
		if l != nil && !w.GPU && len(l.GPUs) > 0 && k.record.has(w.Ref) {
			err = errors.Join(err, restore.ReleasePrewarmed(ctx, k.store.Root(), l.Digest))
		}
		if isReady(l, w) || k.parked[w.Ref] != nil || k.retry.IsInBackOffSinceUpdate(w.Ref, time.Now()) {
			continue
		}
		k.prewarm(ctx, want, i, all)
		if all, err = k.look(ctx); err != nil {
			return err
		}
	}
	_, lookErr := k.look(ctx)
	return errors.Join(err, lookErr)
}

func (k *warmer) wanted() Wanted {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.want
}

// find returns the prewarmed snapshot that the store has by a name; nil: there is none. Its record may be by another name.
func (k *warmer) find(ctx context.Context, all []restore.PrewarmedSnapshot, ref string) *restore.PrewarmedSnapshot {
	desc, err := k.store.Resolve(ctx, ref)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(all, func(l restore.PrewarmedSnapshot) bool { return l.Digest == desc.Digest.String() })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// isReady reports whether nothing is left to do for a snapshot.
func isReady(l *restore.PrewarmedSnapshot, w Snapshot) bool {
	return l != nil && l.Size > 0 && (!w.GPU || loaded(*l))
}

// loaded reports whether device memory waits for the next restore.
func loaded(l restore.PrewarmedSnapshot) bool {
	return slices.ContainsFunc(l.GPUs, func(g restore.OnGPU) bool { return !g.Leased })
}

// look lists what is prewarmed, and tells of it.
func (k *warmer) look(ctx context.Context) ([]restore.PrewarmedSnapshot, error) {
	all, err := restore.ListPrewarmed(ctx, k.store)
	if err != nil {
		return nil, err
	}
	want := k.wanted()
	digests, counts := map[string]bool{}, map[string]int{}
	found := map[string]State{}
	k.mu.Lock()
	for _, w := range want.Snapshots {
		s := State{Reference: w.Ref, State: pending}
		l := k.find(ctx, all, w.Ref)
		if l != nil {
			s.Digest, s.OnGPU = l.Digest, loaded(*l)
		}
		err := k.parked[w.Ref]
		if err == nil {
			err = k.failed[w.Ref]
		}
		switch {
		case isReady(l, w):
			s.State = ready
			digests[l.Digest] = s.OnGPU
		case err != nil:
			s.State, s.Error, s.Hint = failed, err.Error(), failure.Hint(err)
		}
		counts[s.State]++
		found[w.Ref] = s
	}
	k.states = found
	k.mu.Unlock()
	for _, state := range states {
		k.metrics.kept.WithLabelValues(state).Set(float64(counts[state]))
	}
	var disk, gpu int64
	for _, l := range all {
		disk += l.Size
		for _, g := range l.GPUs {
			gpu += g.Memory
		}
	}
	k.metrics.disk.Set(float64(disk))
	k.metrics.gpu.Set(float64(gpu))
	if k.told == nil || !maps.Equal(digests, k.told) {
		k.told = digests
		k.tell(digests)
	}
	return all, nil
}

// remove gives back what this service has prewarmed. What was being fetched when a service was killed has a name in the store and no record there.
func (k *warmer) remove(ctx context.Context, all []restore.PrewarmedSnapshot, o owned) error {
	for _, l := range all {
		if l.Reference != o.Ref {
			continue
		}
		if err := restore.RemovePrewarmed(ctx, k.store, l); err != nil {
			return err
		}
	}
	if _, err := k.store.Resolve(ctx, o.Ref); err == nil && o.Fetched {
		if _, err := k.store.Remove(ctx, o.Ref); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := k.record.drop(o.Ref); err != nil {
		return err
	}
	k.retry.DeleteEntry(o.Ref)
	k.fail(o.Ref, nil)
	k.o.Log(Entry{What: "removed", Reference: o.Ref})
	return nil
}

// fail notes how the last attempt for a snapshot ended.
func (k *warmer) fail(ref string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.failed, ref)
	} else {
		k.failed[ref] = err
	}
}

// prewarm prewarms the wanted snapshot i.
func (k *warmer) prewarm(ctx context.Context, want Wanted, i int, all []restore.PrewarmedSnapshot) {
	w := want.Snapshots[i]
	start := time.Now()
	r, err := k.attempt(ctx, want, w, all)
	if ctx.Err() != nil {
		return // called off
	}
	k.metrics.prewarms.WithLabelValues(result(err)).Inc()
	k.fail(w.Ref, err)
	if err != nil {
		k.retry.Next(w.Ref, time.Now())
		k.o.Log(Entry{What: "prewarm", Reference: w.Ref, Err: err, Again: k.retry.Get(w.Ref).Seconds()})
		return
	}
	k.retry.DeleteEntry(w.Ref)
	k.o.Log(Entry{What: "prewarmed", Reference: w.Ref, Digest: r.Digest, Seconds: time.Since(start).Seconds()})
	for _, gone := range r.Removed {
		j := want.index(gone.Reference)
		if j < 0 {
			continue
		}
		less := want.Snapshots[max(i, j)].Ref
		k.parked[less] = failure.New(errdefs.ErrResourceExhausted, "raise the budget, or list fewer snapshots: the first of the file are kept", "prewarm %s: the budget has no room for all that is listed", less)
		if j < i {
			k.o.Log(Entry{What: "prewarm", Reference: less, Err: errors.Join(k.parked[less], restore.RemovePrewarmed(ctx, k.store, r.PrewarmedSnapshot))})
		}
	}
}

// attempt has the host's configuration decide what may be prewarmed, notes that it will be this service's, and prewarms it.
func (k *warmer) attempt(ctx context.Context, want Wanted, w Snapshot, all []restore.PrewarmedSnapshot) (*restore.PrewarmResult, error) {
	c := k.o.Config
	if !c.Restore.Policy.Allows(w.Ref) {
		return nil, restore.NotAllowed(w.Ref)
	}
	if !slices.ContainsFunc(all, func(l restore.PrewarmedSnapshot) bool { return l.Reference == w.Ref }) {
		_, err := k.store.Resolve(ctx, w.Ref)
		if err := k.record.add(owned{Ref: w.Ref, Fetched: err != nil}); err != nil {
			return nil, err
		}
	}
	judging, err := restore.NewJudging(c.Trust, config.Machine, false)
	if err != nil {
		return nil, err
	}
	var counts registry.Counts
	phases := &phases{metrics: k.metrics}
	r, err := restore.Prewarm(ctx, k.store, restore.PrewarmOptions{
		Ref: w.Ref, Pull: restore.PullMissing, Judging: judging,
		DiskBudget: smaller(want.Budget.Disk, c.Prewarm.Disk) << 20, GPUBudget: smaller(want.Budget.GPU, c.Prewarm.GPU) << 20,
		OnGPU: w.GPU, GPUs: restore.GPUOptions{Devices: w.Devices}, GPU: c.GPU,
		Registry: registry.Options{DockerConfig: c.Restore.Policy.Credentials, PlainHTTP: c.Restore.Policy.Plain(w.Ref), Hosts: c.Registry.Hosts, Counts: &counts, Progress: phases.progress},
		Connect:  k.o.Connect,
		Warn:     func(text string, args ...any) { k.o.Log(Entry{What: fmt.Sprintf(text, args...), Reference: w.Ref}) },
	})
	phases.end()
	k.metrics.fetched.Add(float64(counts.Moved()))
	return r, err
}

// smaller is the smaller one of two bounds, of which 0 is none.
func smaller(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// phases adds up the time between two words of an operation's progress.
type phases struct {
	metrics *metrics
	mu      sync.Mutex
	what    string    // guarded by mu; empty: none yet
	since   time.Time // guarded by mu
}

// progress is an [image.Progress].
func (p *phases) progress(what string, _, _ int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if what == p.what {
		return
	}
	now := time.Now()
	if p.what != "" {
		p.metrics.phases.WithLabelValues(p.what).Add(now.Sub(p.since).Seconds())
	}
	p.what, p.since = what, now
}

func (p *phases) end() { p.progress("", 0, 0) }

// isPrewarmed reports whether a digest is ready.
func (k *warmer) isPrewarmed(digest string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.states {
		if s.Digest == digest && digest != "" && s.State == ready {
			return true
		}
	}
	return false
}

// all returns the states in the order of the file, and why the file is not what is wanted.
func (k *warmer) all() (list []State, fileErr error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list = []State{}
	for _, w := range k.want.Snapshots {
		s, known := k.states[w.Ref]
		if !known {
			s = State{Reference: w.Ref, State: pending}
		}
		list = append(list, s)
	}
	return list, k.fileErr
}
