package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
)

// InspectOptions say where a snapshot is looked for, and for which containerd it would be restored.
type InspectOptions struct {
	Config             config.Config
	Address, Namespace string // of containerd
	// Program is the path of cryo, beside which is what reviews CRIU's images, and what asks NVIDIA's driver; empty: the running program is cryo.
	Program string
	// Registry says how to reach a registry. It is asked only where the local store has no such snapshot; nil: then it is NotFound.
	Registry func() (registry.Options, error)
}

// Inspected is a snapshot, where it is.
type Inspected struct {
	Descriptor ocispec.Descriptor
	From       image.Fetcher // what has its small parts
	InRegistry bool          // and not in the local store
	Signers    []signature.Signer

	options InspectOptions
	store   *store.Store
	ref     string
	puller  *registry.Puller // nil: it is in the local store
}

// Inspect finds a snapshot in the local store. If only a registry has it, Find fetches its small parts, and Close removes them. A name that says
// no registry is looked for in the local store alone.
func Inspect(ctx context.Context, s *store.Store, ref string, o InspectOptions) (*Inspected, error) {
	j, err := NewJudging(o.Config.Trust, config.Person, false)
	if err != nil {
		return nil, err
	}
	f := &Inspected{From: s, options: o, store: s, ref: ref}
	var names []string // that it has
	var signed []signature.Attached
	f.Descriptor, err = s.Resolve(ctx, ref)
	if errors.Is(err, store.ErrUnknownRef) && store.NamesRegistry(ref) && o.Registry != nil {
		options, err := o.Registry()
		if err != nil {
			return nil, err
		}
		options.Judge = j.Judge
		if f.puller, err = registry.Look(ctx, s, ref, options); err != nil {
			return nil, err
		}
		f.Descriptor, f.From, f.InRegistry = f.puller.Descriptor(), f.puller, true
		names, signed = []string{f.puller.Name()}, f.puller.Signatures()
	} else {
		if err != nil {
			return nil, err
		}
		if names, err = Names(ctx, s, ref, f.Descriptor.Digest); err != nil {
			return nil, err
		}
		if signed, err = s.Signatures(ctx, f.Descriptor.Digest); err != nil {
			return nil, err
		}
	}
	f.Signers = j.Policy.Signers(names, f.Descriptor.Digest, signed)
	return f, nil
}

// Index is what its name stands for in the registry where that has it as an entry, and all entries; none elsewhere.
func (f *Inspected) Index() (ocispec.Descriptor, []ocispec.Descriptor) {
	if f.puller == nil {
		return ocispec.Descriptor{}, nil
	}
	return f.puller.Index()
}

// Close removes what was fetched.
func (f *Inspected) Close() error {
	if f.puller == nil {
		return nil
	}
	return f.puller.Abandon()
}

// Verify reads all of the snapshot and checks every digest. Of one that is in a registry it reads the small parts alone, and asks whether the rest is there, of
// which notRead is the size in bytes. The caller has an operation of the store open.
func (f *Inspected) Verify(ctx context.Context, p image.Progress) (notRead int64, err error) {
	if f.puller == nil {
		return 0, f.store.Damaged(ctx, f.Descriptor, image.Verify(ctx, f.store, f.Descriptor, p))
	}
	if err := image.VerifySmall(ctx, f.From, f.Descriptor); err != nil {
		return 0, err
	}
	return f.puller.CheckRest(ctx)
}

// Check compares the snapshot with this host, as a restore does.
func (f *Inspected) Check(ctx context.Context, snapshot *image.Snapshot) (v host.FitVerdict, err error) {
	here := Look(ctx, f.options.Config)
	defer here.End()
	target, err := here.Target(ctx, snapshot.Config.Host.Features)
	if err != nil {
		return v, err
	}
	// What restore would make for the container is neither asked for nor missing.
	target.PathExists = ExistsOr(f.etc(snapshot.Config))
	config, _ := f.withEtcFiles(snapshot.Config)
	var spec specs.Spec
	if g := config.GPU; g != nil && json.Unmarshal(config.Spec, &spec) == nil {
		p, err := PlanGPUs(ctx, f.options.Config.GPU, g, &spec, GPUOptions{Programs: dir(f.options.Program)})
		if err != nil {
			return v, err
		}
		target.GPUs = p.Facts
		if config.Spec, err = json.Marshal(&spec); err != nil {
			return v, fmt.Errorf("write the runtime specification: %w", err)
		}
	}
	v = host.CheckFit(config, target)
	if certain, err := f.findBase(ctx, snapshot.Config.Container); err != nil {
		v.Findings = append(v.Findings, host.FitFinding{Rule: ruleBase, Fatal: certain, Problem: err.Error(), Hint: failure.Hint(err)})
	}
	return v, context.Cause(ctx)
}

// dir is the directory of a program; empty: of the running one.
func dir(program string) string {
	if program == "" {
		return ""
	}
	return filepath.Dir(program)
}

// ruleBase is for a snapshot whose base image this host cannot get.
const ruleBase = "base-image"

// findBase looks for the base image. Where containerd does not answer, or no registry may be asked, that it is not found is not certain.
func (f *Inspected) findBase(ctx context.Context, c image.Container) (certain bool, _ error) {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	in, client, err := daemon.Connect(ctx, daemon.Options{Address: f.options.Address, Namespace: f.options.Namespace})
	if err == nil {
		defer client.Close()
		ctx = in
	}
	certain = err == nil && f.options.Registry != nil
	var o *registry.Options
	if f.options.Registry != nil {
		asked, err := f.options.Registry()
		if err != nil {
			return certain, err
		}
		o = &asked
	}
	return certain, daemon.FindBase(ctx, client, c, f.ref, o)
}

// etc is where files for /etc of the container would be.
func (f *Inspected) etc(c image.Config) string {
	return EtcDir(f.store.Root(), f.options.Address, f.options.Namespace, c.Container.ID)
}

// withEtcFiles returns the config with mounts of the files that restore makes, and their destinations.
func (f *Inspected) withEtcFiles(c image.Config) (image.Config, []string) {
	var spec specs.Spec
	if json.Unmarshal(c.Spec, &spec) != nil {
		return c, nil
	}
	provided := ProvideEtcFiles(&spec, f.etc(c), nil, false)
	if changed, err := json.Marshal(&spec); err == nil && len(provided) > 0 {
		c.Spec = changed
	}
	return c, provided
}
