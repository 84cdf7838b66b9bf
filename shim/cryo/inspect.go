package cryo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/restore"
)

// InspectOptions say where a snapshot is looked for, and what is found out.
type InspectOptions struct {
	Registry Registry
	// Local does not ask a registry.
	Local bool
	// Check compares the snapshot with this host: see Fits and Findings.
	Check bool
	// Review looks at what the snapshot asks of a host: see Asks and Refused. It starts a process.
	Review bool
	// Allow are grants: "mounts", "devices", "capabilities", "namespaces", "privileges" or "all". They set Allowed in Asks.
	Allow []string
}

// Inspected describes a snapshot.
type Inspected struct {
	Reference, Digest string
	// InRegistry reports whether the local store lacks the snapshot.
	InRegistry bool
	// Size is that of all blobs, Shared what of it is the parent's; bytes.
	Size, Shared int64
	// Created is when the container stood still.
	Created time.Time
	// Container is the id of the container that it was taken of, Memory what that had, bytes.
	Container string
	Memory    int64
	// Image and ImageDigest are the container's base image, Snapshotter its snapshotter.
	Image, ImageDigest, Snapshotter string
	// Config is the snapshot's config blob, JSON. image/FORMAT.md describes it.
	Config json.RawMessage
	// Signers are the signatures.
	Signers []Signer

	// Fits reports whether the snapshot fits this host, and Findings are the mismatches. Only with Check.
	Fits     bool
	Findings []Finding

	// Asks is what the snapshot asks of a host, beyond what every container has. Only with Review.
	Asks []Ask
	// Refused is what no grant allows; nil: nothing is refused. Only with Review.
	Refused *Refusal
}

// Signer is a signature of a snapshot.
type Signer struct {
	// Key is the fingerprint of the key; empty if the signature names none.
	Key string
	// File has the key, as the configuration names it; empty: no file has it, and Key is not verified.
	File string
	// Accepted reports whether the key counts for the snapshot's repository.
	Accepted bool
	// Problem is why the signature does not count, a word; empty: it does.
	Problem string
}

// Finding is a mismatch of a snapshot and this host.
type Finding struct {
	Rule    string
	Fatal   bool // the snapshot cannot be restored here
	Problem string
	Hint    string
}

// Ask is something that a snapshot asks of a host.
type Ask struct {
	Rule string
	// Grant allows it; empty: none does.
	Grant   string
	What    string
	Allowed bool
}

// Refusal is what a restore refuses whatever is granted.
type Refusal struct{ Rule, What string }

// Inspect describes a snapshot of the local store or, if that has none of the name, of a registry, from which only small parts are read.
func (c *Client) Inspect(ctx context.Context, ref string, o InspectOptions) (_ *Inspected, err error) {
	granted, err := restore.Grants(o.Allow)
	if err != nil {
		return nil, err
	}
	where := restore.InspectOptions{Config: c.config, Address: c.options.Address, Namespace: namespace(ctx)}
	if !o.Local {
		where.Registry = func() (registry.Options, error) { return o.Registry.options(c.config, Hooks{}) }
	}
	if o.Review || o.Check {
		if where.Program, err = c.program(); err != nil {
			return nil, err
		}
	}
	if ref, err = c.store.Expand(ctx, ref); err != nil {
		return nil, err
	}
	found, err := restore.Inspect(ctx, c.store, ref, where)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	snapshot, err := image.Open(ctx, found.From, found.Descriptor)
	if err != nil {
		return nil, err
	}
	s := snapshot.Config
	i := &Inspected{
		Reference: ref, Digest: found.Descriptor.Digest.String(), InRegistry: found.InRegistry, Size: snapshot.Size(), Shared: snapshot.Shared(), Created: s.Created,
		Container: s.Container.ID, Memory: s.Memory.Total, Image: s.Container.Image, ImageDigest: s.Container.ImageDigest.String(), Snapshotter: s.Container.Snapshotter,
	}
	if i.Config, err = json.Marshal(s); err != nil {
		return nil, fmt.Errorf("write the config of %s: %w", ref, err)
	}
	for _, by := range found.Signers {
		i.Signers = append(i.Signers, Signer{Key: by.Key, File: by.File, Accepted: by.Accepted, Problem: string(by.Problem)})
	}
	if o.Review {
		if err := i.review(ctx, found, snapshot, trust.Policy{Allow: granted}); err != nil {
			return nil, err
		}
	}
	if o.Check {
		v, err := found.Check(ctx, snapshot)
		if err != nil {
			return nil, err
		}
		i.Fits = v.Fits()
		for _, f := range v.Findings {
			i.Findings = append(i.Findings, Finding{Rule: f.Rule, Fatal: f.Fatal, Problem: f.Problem, Hint: f.Hint})
		}
	}
	return i, nil
}

func (i *Inspected) review(ctx context.Context, found *restore.Inspected, snapshot *image.Snapshot, p trust.Policy) error {
	r, err := found.Review(ctx, snapshot, p)
	if err != nil {
		return err
	}
	for _, a := range r.Asks {
		ask := Ask{Rule: a.Rule, What: a.What, Allowed: a.Allowed}
		if a.Flag != "" {
			ask.Grant = string(a.Grant)
		}
		i.Asks = append(i.Asks, ask)
	}
	if r.Refused != nil {
		i.Refused = &Refusal{Rule: r.Refused.Rule, What: r.Refused.What}
	}
	return nil
}
