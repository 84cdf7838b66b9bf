package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/gpu/library"
	"github.com/cryo-project/cryo/runtime/guard"
)

// Reviewed is what a restore would refuse of a snapshot, as far as that is told without its root file system.
type Reviewed struct {
	Asks    []trust.Request `json:"asks"`              // of a host, beyond what every container has; flags of cryo restore grant it
	Refused *Refusal        `json:"refused,omitempty"` // what no flag grants
}

// Refusal is the first of CRIU's images that is refused whatever is granted.
type Refusal struct {
	Rule string `json:"rule"`
	What string `json:"what"`
	err  error
}

// Err is what cryo restore would say.
func (r Reviewed) Err() error {
	if r.Refused != nil {
		return r.Refused.err
	}
	return trust.Refuse(r.Asks)
}

// Review checks what a snapshot's specification asks of the host, and whether CRIU's images agree with the specification. Of the images it unpacks only those
// that are checked.
func (f *Inspected) Review(ctx context.Context, snapshot *image.Snapshot, p trust.Policy) (r Reviewed, err error) {
	config, provided := f.withEtcFiles(snapshot.Config)
	p.Mounts = append(p.Mounts, provided...) // restore makes them
	refuse := func(rule, what string, err error) { r.Refused = &Refusal{Rule: rule, What: what, err: err} }
	r.Asks = []trust.Request{}
	var spec specs.Spec
	if err := json.Unmarshal(config.Spec, &spec); err != nil {
		err = fmt.Errorf("read the snapshot's runtime specification: %w: %w", err, errdefs.ErrDataLoss)
		refuse("specification", err.Error(), err)
		return r, nil
	}
	p.AppArmor = AppArmor()
	r.Asks = append(r.Asks, trust.Known(config.Spec)...)
	r.Asks = append(r.Asks, trust.Review(&spec, devicesOf(config), p)...)
	work, err := f.store.Scratch(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = work.Close() }() // the next process does it
	dir := filepath.Join(work.Dir, "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, fmt.Errorf("make a working directory: %w", err)
	}
	box, err := openSandbox(ctx, f.options.Program, dir)
	if err != nil {
		return r, err
	}
	defer func() { _ = box.Close() }() // a review that mattered has said what went wrong
	err = snapshot.ReadImages(ctx, f.From, func(name string, r io.Reader) error { return writeReviewed(filepath.Join(dir, name), r) })
	switch {
	case errdefs.IsDataLoss(err), errdefs.IsNotFound(err):
		refuse("digests", err.Error(), err)
		return r, nil
	case err != nil:
		return r, Full(f.store.Root(), err)
	}
	if g := config.GPU; g != nil { // what a restore puts in
		for _, at := range g.Mounts {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: at, Type: "bind"})
		}
		if g.Library != nil {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: library.Inner, Type: "bind"})
		}
	}
	if _, err := trust.Confine(&spec, nil, trust.Policy{Allow: []trust.Grant{trust.All}}); errdefs.IsPermissionDenied(err) {
		return r, nil // it asks for what no grant allows
	} else if err != nil {
		return r, err
	}
	asks, err := box.Review(ctx, &spec, p)
	r.Asks = append(r.Asks, asks...)
	var damaged *trust.DamagedError
	if errors.As(err, &damaged) {
		refuse(damaged.Rule, damaged.What(), err)
		return r, nil
	}
	return r, err
}

// openSandbox starts the process that reviews CRIU's images in dir. cryo is the path of cryo; empty: it is the running program.
func openSandbox(ctx context.Context, cryo, dir string) (*trust.Sandbox, error) {
	program, err := guard.Program(cryo)
	if err != nil {
		return nil, err
	}
	log.G(ctx).WithField("program", program).Debug("start a process: the review of CRIU's images")
	return trust.OpenSandbox(program, dir)
}

// writeReviewed writes as much of an image as is reviewed.
func writeReviewed(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	_, err = io.Copy(f, io.LimitReader(from, trust.Reviewed(filepath.Base(path))))
	return errors.Join(err, f.Close())
}

// devicesOf names the CDI devices that a snapshot asks for.
func devicesOf(c image.Config) []string {
	if c.GPU == nil {
		return nil
	}
	return c.GPU.CDI
}
