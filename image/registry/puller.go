package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
)

// Puller fetches a snapshot in two steps: [NewPuller] everything but the segments, with which one can decide whether the
// snapshot is wanted, and [Puller.Finish] the segments. Fetch gives the small parts at once; they are in the store after
// [Puller.Settle], which waits for the disk.
type Puller struct {
	dst       *store.Store
	ref       string // as the user wrote it
	repo      *repo
	o         Options
	op        *store.Operation
	named     named
	look      bool // only what is small is wanted
	small     []ocispec.Descriptor
	segments  []ocispec.Descriptor // and, to look, the files
	spare     []ocispec.Descriptor // it is not needed
	elsewhere image.Fetcher        // may have spare
	signed    []signature.Attached
	sum       *meter
	early     *early
	cached    bool  // see ThroughCache
	lazy      *Lazy // nil: segments are not needed before all have come
}

// NewPuller fetches manifest, config and all layers but the segments of the snapshot that ref names. They are on their way into the
// store, where they have no name. What is there is not fetched again. The caller must call Close.
func NewPuller(ctx context.Context, dst *store.Store, ref string, o Options) (*Puller, error) {
	return newPuller(ctx, dst, ref, o, false)
}

// Look is [NewPuller] for a snapshot that is only looked at: its files are left in the registry too. The caller calls [Puller.Abandon].
func Look(ctx context.Context, dst *store.Store, ref string, o Options) (*Puller, error) {
	return newPuller(ctx, dst, ref, o, true)
}

func newPuller(ctx context.Context, dst *store.Store, ref string, o Options, look bool) (*Puller, error) {
	r, err := connectToRead(ctx, "pull", ref, o)
	if err != nil {
		return nil, err
	}
	p := &Puller{dst: dst, ref: ref, repo: r, o: o, look: look, early: newEarly(ctx)}
	if err := p.begin(ctx); err != nil {
		defer p.Close()
		return nil, p.failed(ctx, err)
	}
	return p, nil
}

func (p *Puller) begin(ctx context.Context) (err error) {
	if p.op, err = p.dst.Begin(ctx); err != nil {
		return err
	}
	ctx = p.repo.scoped(ctx, auth.ActionPull)
	p.named, err = p.repo.snapshot(ctx, func(d ocispec.Descriptor) error { return p.judge(ctx, d) })
	if err != nil {
		return err
	}
	desc, data, m := p.named.desc, p.named.data, p.named.m
	if p.repo.ref.Reference == p.named.index.Digest.String() {
		// In the store a digest names the snapshot itself.
		p.repo.name = strings.TrimSuffix(p.repo.name, p.repo.ref.Reference) + desc.Digest.String()
	}
	blobs := store.Blobs(m)
	for _, d := range blobs {
		switch {
		case d.MediaType == image.MediaTypeSegment || p.look && d.MediaType == image.MediaTypeRootFS:
			p.segments = append(p.segments, d)
		case p.isSpare(d):
		default:
			p.small = append(p.small, d)
		}
	}
	if all := append(blobs, desc); !p.look && (p.o.Repair || p.dst.Suspects(all)) {
		if err := p.dst.SuspectBlobs(all); err != nil {
			return err
		}
	}
	p.sum = newMeter("pull", total(blobs)+desc.Size, p.o)
	if err := p.each(ctx, p.small, p.o.concurrency(), p.fetchEarly); err != nil {
		return err
	}
	if !p.look {
		if err := p.dst.CheckRoom(ctx, slices.Concat(p.spare, p.segments), 0); err != nil {
			return err
		}
	}
	p.sum.add(desc.Size)
	p.early.settle(p.dst, desc, data)
	p.named.desc.ArtifactType = m.ArtifactType
	return nil
}

// Descriptor is that of the snapshot's manifest.
func (p *Puller) Descriptor() ocispec.Descriptor { return p.named.desc }

// Signatures are those that the registry has of it, if a judge has asked for them.
func (p *Puller) Signatures() []signature.Attached { return p.signed }

// Index is what the reference names where that has the snapshot as an entry, and all entries; none: it names the snapshot itself.
func (p *Puller) Index() (index ocispec.Descriptor, entries []ocispec.Descriptor) {
	return p.named.index, p.named.entries
}

// Name is what the snapshot is called in the store: the reference in its full form, and where that has the digest of an index, with the snapshot's instead.
func (p *Puller) Name() string { return p.repo.name }

// CheckRest asks the registry whether it has what was not fetched, and returns how many bytes that is.
func (p *Puller) CheckRest(ctx context.Context) (size int64, err error) {
	ctx = p.repo.scoped(ctx, auth.ActionPull)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(p.o.concurrency())
	for _, d := range p.segments {
		size += d.Size
		group.Go(func() error {
			has, err := p.repo.hasBlob(ctx, d)
			if err == nil && !has {
				err = store.Corrupt("snapshot "+p.repo.name, fmt.Errorf("the registry has no blob %s of %d bytes", d.Digest, d.Size))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return size, fmt.Errorf("look for the rest of %s: %w", p.ref, p.repo.classify(ctx, err))
	}
	return size, nil
}

// Missing lists the segments that the store does not have yet.
func (p *Puller) Missing(ctx context.Context) (missing []ocispec.Descriptor, err error) {
	for _, d := range p.segments {
		ok, err := p.dst.Exists(ctx, d)
		if err != nil {
			return nil, err
		}
		if !ok {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// First has Finish begin with these segments of the snapshot. The others follow in their order.
func (p *Puller) First(wanted []ocispec.Descriptor) {
	p.segments = store.Unique(slices.Concat(wanted, p.segments))
}

// Ranges reads parts of the segments, also while Finish fetches them. Close of the puller ends it.
func (p *Puller) Ranges() *Ranges { return &Ranges{ref: p.ref, repo: p.repo, o: p.o} }

// ThroughCache has segments go through the page cache: they are read as they come, or soon.
func (p *Puller) ThroughCache() { p.cached = true }

// Finish fetches the segments and gives the snapshot its name in the store, which keeps its signatures with it. After an error it may be called again, and goes on.
// An [*AnswerError] says that the registry is the reason, any other error that what it has brought is wrong, or cannot be stored.
func (p *Puller) Finish(ctx context.Context) error {
	return p.failed(ctx, p.finish(ctx))
}

func (p *Puller) finish(ctx context.Context) error {
	if err := p.early.settled(); err != nil {
		return err
	}
	scoped := p.repo.scoped(ctx, auth.ActionPull)
	if err := p.bring(scoped); err != nil {
		return err
	}
	if err := p.lazy.running(ctx); err != nil {
		return err
	}
	if err := p.each(scoped, p.spare, 1, p.fetchSpare); err != nil {
		return err
	}
	if err := p.dst.Attach(ctx, p.signed); err != nil {
		return err
	}
	return p.dst.Tag(ctx, p.named.desc, p.repo.name)
}

// failed returns what came of it to a user. Where the disk is full there is to be room first, unless the pull of a container that is restored may go on.
func (p *Puller) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if p.lazy == nil && errors.Is(err, store.ErrDiskFull) {
		err = errors.Join(err, p.MakeRoom())
	}
	verb := "pull"
	if p.look {
		verb = "look at"
	}
	why := p.repo.classify(ctx, err)
	if errors.As(err, new(*AnswerError)) && !errors.As(why, new(*AnswerError)) {
		why = &AnswerError{why}
	}
	return fmt.Errorf("%s %s: %w", verb, p.ref, why)
}

// MakeRoom is [Puller.Abandon], and removes what has come of the segments too: on a full disk it would be in the way.
func (p *Puller) MakeRoom() error {
	return errors.Join(p.Abandon(), p.drop(p.segments), p.drop(p.spare))
}

// HasRoom reports whether the store has room for what is still to be fetched.
func (p *Puller) HasRoom(ctx context.Context) bool {
	return p.dst.CheckRoom(ctx, slices.Concat(p.spare, p.segments), 0) == nil
}

// Close ends the work. What was fetched and has no name stays for the next attempt.
func (p *Puller) Close() {
	p.early.close()
	p.repo.close()
	if p.op != nil {
		p.op.Close()
	}
}

// Abandon is Close for a snapshot that is not wanted: what was fetched of it goes.
func (p *Puller) Abandon() error {
	p.early.close()
	p.repo.close()
	if p.op == nil {
		return nil
	}
	return errors.Join(p.drop(p.small), p.op.Abandon())
}

// drop removes what has come of blobs that the store does not have.
func (p *Puller) drop(blobs []ocispec.Descriptor) (err error) {
	for _, d := range blobs {
		err = errors.Join(err, p.dst.DropPartial(d))
	}
	return err
}

// each fetches blobs that the store does not have, so many at once.
func (p *Puller) each(ctx context.Context, blobs []ocispec.Descriptor, most int, fetch func(context.Context, ocispec.Descriptor, *tracker) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(most)
	for _, d := range blobs {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			t := &tracker{m: p.sum}
			ok, err := p.dst.Exists(ctx, d)
			if err != nil {
				return err
			}
			if ok {
				t.have(d.Size)
				return p.source().Stored(ctx, d)
			}
			return fetch(ctx, d, t)
		})
	}
	return group.Wait()
}

func (p *Puller) fetchEarly(ctx context.Context, d ocispec.Descriptor, t *tracker) error {
	part, err := p.fetch(ctx, d, t, how{})
	if err != nil || part == nil {
		return err
	}
	return p.early.add(d, part)
}

// isSpare notes a rootfs difference that is not needed, since the caller has it elsewhere.
func (p *Puller) isSpare(d ocispec.Descriptor) bool {
	if d.MediaType != image.MediaTypeRootFS || p.o.RootFS == nil {
		return false
	}
	if p.elsewhere = p.o.RootFS(d); p.elsewhere == nil {
		return false
	}
	p.spare = append(p.spare, d)
	return true
}

// fetchSpare brings what is not needed, for the snapshot in the store to be whole: from where the caller has it, or else from the registry.
func (p *Puller) fetchSpare(ctx context.Context, d ocispec.Descriptor, t *tracker) error {
	if rc, err := p.elsewhere.Fetch(ctx, d); err == nil {
		err = p.dst.Push(ctx, d, rc)
		if errors.Join(err, rc.Close()) == nil {
			t.have(d.Size)
			return nil
		}
	}
	part, err := p.fetch(ctx, d, t, how{})
	if err != nil || part == nil {
		return err
	}
	_, err = part.Commit(ctx, d.MediaType)
	return err
}
