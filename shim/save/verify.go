package save

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// TrialPrefix begins the names of the containers as which snapshots are tried.
const TrialPrefix = "cryo-verify-"

// trialTime bounds a trial: the container stands still meanwhile, unless it was to go on.
const trialTime = 10 * time.Minute

// checkVerify refuses, before anything is frozen, a container whose snapshot cannot be tried beside it.
func (t *taking) checkVerify(sub *candidate) error {
	if !t.Verify {
		return nil
	}
	refuse := func(rule, hint, text string, args ...any) error {
		return failure.New(errdefs.ErrFailedPrecondition, hint, rule+": "+text, args...).By(rule)
	}
	if sub.gpus {
		return refuse("verify-gpu", "leave out --verify", "the snapshot of a container with GPUs cannot be tried beside it: their memory would be there twice")
	}
	if t.ExternalUnixSockets {
		return refuse("verify-socket", "leave out --verify or --ext-unix-sk", "a trial would connect to sockets outside of the container a second time")
	}
	var spec specs.Spec
	if err := json.Unmarshal(sub.config.Spec, &spec); err != nil {
		return fmt.Errorf("read the runtime specification of %s: %w", sub.name, err)
	}
	if err := restore.CheckTrial(&spec, sub.process.shim, t.Config.Trust, t.name); err != nil {
		return err
	}
	needed, _ := resident(sub.process.pid)
	if available, err := host.AvailableMemory(""); err == nil && available < needed {
		return refuse("verify-memory", "leave out --verify, or take the snapshot when the host has more memory",
			"a trial needs the memory of the container a second time: %s, of which the host has %s", config.Size(needed), config.Size(available))
	}
	return nil
}

// Verified says how a snapshot was tried.
type Verified struct {
	Seconds float64 `json:"seconds"`
}

// try restores the snapshot into a container beside the one of which it was taken, up to the first instruction of its processes, and removes that container. With an error the snapshot
// is not to be kept.
func (t *taking) try(ctx context.Context, sub *candidate, desc ocispec.Descriptor) (*Verified, error) {
	if !t.Verify {
		return nil, nil
	}
	t.Say("trying whether the snapshot can be restored")
	began := time.Now()
	limited, cancel := context.WithTimeoutCause(ctx, trialTime, failure.New(context.DeadlineExceeded, "leave out --verify where a restore takes longer", "it has not ended after %s", trialTime))
	defer cancel()
	go progress(limited)
	namespace, _ := namespaces.Namespace(ctx)
	command := restore.Command{
		Config: t.Config, Store: t.store, Client: t.client, Environment: os.Environ(), Address: t.Address, Namespace: namespace,
		Ref: t.name, Name: TrialPrefix + strings.ToLower(rand.Text()[:10]), Choices: restore.Trial(desc),
	}
	if t.Progress != nil {
		command.Progress = func(_ string, done, total int64) { t.Progress("verify", done, total) }
	}
	if _, err := command.Run(limited); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, refused(err)
	}
	log.G(ctx).Debug("the snapshot was tried")
	return &Verified{Seconds: time.Since(began).Seconds()}, nil
}

// refused is the error of a snapshot that was tried, and could not be restored because of err. It has the kind of err, or else Aborted.
func refused(err error) error {
	e := failure.Of(err)
	if errors.Is(errdefs.Resolve(err), errdefs.ErrUnknown) {
		e = failure.Of(err, errdefs.ErrAborted)
	}
	if e.Advice == "" {
		e.Advice = "the container goes on; without --verify its snapshot is kept, which cannot be restored on this host"
	}
	if e.Rule == "" {
		e.Rule = "verify"
	}
	return e.Doing("verify: the snapshot was tried and could not be restored, so that it is not kept")
}

// beat is how often [progress] has the shim see that this process is at work.
const beat = 10 * time.Second

// progress reads something from time to time. The shim lets the container go on where this process, with those that it has started, makes no progress ([checkpoint.Holder]), and
// CRIU, which restores, is none of these. It is watched by the shim of the trial.
func progress(ctx context.Context) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		return
	}
	defer zero.Close()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_, _ = io.CopyN(io.Discard, zero, 1<<20)
		case <-ctx.Done():
			return
		}
	}
}
