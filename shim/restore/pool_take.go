package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// FromPool says whether a container was taken out of the pool of its snapshot.
type FromPool struct {
	Taken  bool    `json:"taken"`
	Reason string  `json:"reason,omitempty"` // why it was not, but restored
	Held   float64 `json:"held,omitempty"`   // seconds for which it stood in the pool
	// Handout is how many seconds containerd and the shim took from the request until it ran.
	Handout float64 `json:"handout,omitempty"`
}

// take takes a container out of the pool of the snapshot, and has the pool filled again. nil: there is no pool, or the container is to be restored, and m.pool has the reason.
func (m *making) take(ctx context.Context) (*Result, error) {
	if m.member || m.Place != nil || m.Choices.Trial != nil {
		return nil, nil
	}
	p, err := findPool(m.Store.Root(), m.Address, m.Namespace, m.Ref)
	if err != nil || p == nil || p.Count == 0 {
		return nil, err
	}
	desc, err := m.Store.Resolve(ctx, p.Reference)
	if errors.Is(err, store.ErrUnknownRef) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	j, err := NewJudging(m.Config.Trust, config.Person, m.Choices.RequireSignature)
	if err == nil {
		err = j.local(ctx, m.Store, m.Ref, desc.Digest)
	}
	if err != nil {
		return nil, err
	}
	m.Store.UsePrewarmed(desc.Digest)
	var r *Result
	why := m.differs()
	if why == "" {
		if r, why, err = m.takeOne(ctx, p, desc.Digest); err != nil {
			return nil, err
		}
	}
	if m.Refilling != nil {
		m.Refilling(p.Reference)
	}
	if r != nil {
		r.Warnings = append(r.Warnings, j.warning()...)
		for _, w := range r.Warnings {
			m.Warn("%s", w)
		}
		return r, nil
	}
	m.pool = &FromPool{Reason: why}
	m.Say("a container of %s is restored, and none is taken out of the pool: %s", store.Familiar(p.Reference), why)
	if m.Name != "" {
		return nil, nil
	}
	snapshot, err := image.Open(ctx, m.Store, desc)
	if err == nil {
		m.Name = poolName(snapshot) // as those have that are taken
	}
	return nil, err
}

// differs returns why a container of the pool is not what the user wants; empty: it may be.
func (m *making) differs() string {
	c := m.Choices
	for _, f := range []struct {
		flag string
		is   bool
	}{
		{"--pull always", c.Pull == PullAlways}, {"--mount", len(c.Mounts) > 0}, {"--allow", len(c.Allow) > 0}, {"--force", len(c.Force) > 0}, {"--network-ns", c.NetworkNS != ""}, {"--move", c.Move},
		{"--device", len(c.Devices) > 0}, {"--gpu", len(c.GPUs) > 0}, {"--runtime", c.Runtime != ""}, {"--snapshotter", c.Snapshotter != ""}, {"--log-uri", c.Log != ""},
	} {
		if f.is {
			return "its containers were made without " + f.flag
		}
	}
	return ""
}

// seatTime bounds how long a command waits for containers of a pool that another process has locked: that takes one, or, to fill the pool, only looks at it.
const seatTime = 200 * time.Millisecond

// takeOne takes the oldest container that stands ready. Else the text is why there is none.
func (m *making) takeOne(ctx context.Context, p *Pool, d digest.Digest) (*Result, string, error) {
	for until := time.Now().Add(seatTime); ; time.Sleep(seatTime / 40) {
		r, why, busy, err := m.takeFree(ctx, p, d)
		if r != nil || err != nil || !busy || time.Now().After(until) {
			return r, why, err
		}
	}
}

// takeFree is takeOne, of the containers that no other process has locked. It reports whether it has passed over any that one has.
func (m *making) takeFree(ctx context.Context, p *Pool, d digest.Digest) (_ *Result, why string, busy bool, _ error) {
	all, err := p.Members()
	if err != nil {
		return nil, "", false, err
	}
	slices.SortFunc(all, func(a, b Member) int { return a.Created.Compare(b.Created) })
	for _, it := range all {
		if it.Taken || it.Digest != d || !it.stands() {
			continue
		}
		if m.Name != "" && !it.Named {
			return nil, "its containers keep their names, which containerd cannot change: leave --name out", false, nil
		}
		s, err := p.sit(it.ID)
		if err != nil {
			return nil, "", false, err
		}
		if s == nil {
			busy = true
			continue
		}
		if s.Taken || !s.stands() {
			s.leave()
			continue
		}
		if m.Name != "" {
			if err := m.checkNames(ctx, m.Name); err != nil {
				s.leave()
				return nil, "", false, err
			}
		}
		r, err := m.handOut(ctx, p, s, d)
		if r != nil || err != nil {
			return r, "", false, err
		}
	}
	return nil, fmt.Sprintf("none of %d stands ready", p.Count), busy, nil
}

// handOut takes one container. nil: it was not there any more.
func (m *making) handOut(ctx context.Context, p *Pool, s *seat, d digest.Digest) (*Result, error) {
	began := time.Now()
	if err := context.Cause(ctx); err != nil {
		s.leave()
		return nil, err
	}
	s.Taken, s.Env = true, m.Choices.Env
	if err := s.write(); err != nil {
		s.leave()
		return nil, err
	}
	// Cancelling the call would not take back what it does.
	_, err := m.Client.TaskService().Update(context.WithoutCancel(ctx), &tasks.UpdateTaskRequest{ContainerID: s.ID, Annotations: worker.Handout{Name: m.Name, Env: m.Choices.Env}.Annotation()})
	took := time.Since(began)
	if err != nil {
		failed := theirs(errgrpc.ToNative(err))
		if daemon.Gone(err) { // nobody knows whether it runs, until containerd is back
			s.leave()
			return nil, JobFailed(ctx, "restore", s.ID, tryAgain, failed)
		}
		left := p.putBack(ctx, m.Client, s)
		if failed.ByRule() == worker.TakenRule || errdefs.IsNotFound(failed) {
			return nil, left
		}
		return nil, JobFailed(ctx, "restore", s.ID, tryAgain, errors.Join(failed, left))
	}
	warnings := []string{}
	if err := p.adopt(ctx, m.Client, s, m.Name); err != nil {
		warnings = append(warnings, err.Error())
	}
	return &Result{
		Container: s.ID, Namespace: m.Namespace, PID: uint32(s.PID), Reference: m.Ref, Digest: d.String(), Image: s.Image, Complete: true, Warnings: warnings,
		Seconds: took.Seconds(), Running: time.Since(m.began).Seconds(),
		Pool: &FromPool{Taken: true, Held: began.Sub(s.Created).Seconds(), Handout: took.Seconds()},
	}, nil
}

// putBack leaves a container in the pool that could not be taken, if it stands still as before. Else it is removed.
func (p *Pool) putBack(ctx context.Context, client *containerd.Client, s *seat) error {
	status, err := statusOf(context.WithoutCancel(ctx), client, s.ID)
	if err == nil && status != containerd.Paused {
		return p.drop(ctx, client, s)
	}
	defer s.leave()
	s.Taken, s.Env = false, nil
	return errors.Join(err, s.write())
}
