package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/restore"
)

// prewarmFlags are the choices of cryo prewarm.
type prewarmFlags struct {
	disk        string
	pull        string
	snapshotter string
	require     bool // a signature
	registry    registryFlags
	gpu         gpuFlags
	gpuMemory   string

	diskBudget int64 // of disk and the configuration; 0: none
	onGPU      bool  // --gpu
	gpuBudget  int64 // of gpuMemory
}

type prewarmResult struct {
	warmed
	Already bool      `json:"already"` // it was prewarmed before
	Seconds float64   `json:"seconds"`
	Image   string    `json:"image"`          // the base image, which is here too
	Pull    *transfer `json:"pull,omitempty"` // where it had to be fetched
	Removed []warmed  `json:"removed"`        // to make room
}

func newPrewarm(a *app) *cobra.Command {
	var f prewarmFlags
	cmd := &cobra.Command{
		Use:   "prewarm REF",
		Short: "Get a snapshot ready on this host, for fast restores",
		Long: `prewarm fetches the snapshot REF if it is not in the local store, verifies it, and fetches and unpacks its base
image. Then a restore needs nothing from the network, any number of times. It also reads the snapshot's files,
so that the kernel has them in memory; it keeps them there while nobody needs that memory more.

What was fetched stays in the store as after cryo pull. cryo prewarm rm removes it, and so does a later prewarm
that needs its room: all that was fetched takes no more than --disk says, and what was neither prewarmed nor
restored for the longest time goes first. Snapshots that were in the store before stay there.

With --gpu, device memory that the snapshot's processes have handed over (engine keeper) is loaded onto GPUs
as well. The next restore that gets these GPUs attaches it instead of loading it ("gpuPrewarmed" in --json).
That uses it up: later restores load for themselves until it is prewarmed again. The GPUs are those that cryo
restore would take, or those of --device and --gpu=OLD=NEW. On each GPU, all that is kept takes no more than
is free, or than --gpu-budget says; what was not requested for the longest time makes room. Nobody else can
use that memory meanwhile.

If REF names another snapshot in the store later, it is not prewarmed any more.`,
		Example: `  cryo prewarm registry.example.com/snapshots/cache:warm
  cryo prewarm registry.example.com/snapshots/cache:warm --disk 100GiB
  cryo prewarm --gpu registry.example.com/snapshots/llm:ready
  cryo prewarm --gpu registry.example.com/snapshots/llm:ready --device nvidia.com/gpu=1 --gpu-budget 40GiB
  cryo prewarm ls
  cryo prewarm rm registry.example.com/snapshots/cache:warm`,
		Args: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if _, err := restore.ParseGPUPair(arg); err == nil {
					return &usageError{command: cmd.CommandPath(), problem: fmt.Sprintf("%s is no snapshot: of --gpu, write --gpu=%[1]s", arg)}
				}
			}
			return exactly("REF")(cmd, args)
		},
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.onGPU = cmd.Flags().Changed("gpu")
			if err := f.resolve(a); err != nil {
				return err
			}
			return a.prewarm(cmd.Context(), args[0], f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.disk, "disk", "", "budget for what was fetched for prewarmed snapshots, as 100GiB; 0: no limit (default: disk under [prewarm] in the configuration, else none)")
	flags.StringVar(&f.pull, "pull", "missing", "fetch the snapshot: missing (unless it is in the local store), or always")
	flags.StringVar(&f.snapshotter, "snapshotter", environment("CONTAINERD_SNAPSHOTTER", ""), "containerd's snapshotter (CONTAINERD_SNAPSHOTTER; default: as in the snapshot, if it is here)")
	requireSignature(cmd, &f.require)
	f.gpu.register(cmd, a)
	gpu := flags.Lookup("gpu")
	gpu.Usage = "load device memory onto GPUs as well; `OLD=NEW` replaces GPU OLD of the snapshot by NEW of this host, by UUID or number (default: in order)"
	gpu.NoOptDefVal = inOrder
	flags.Lookup("device").Usage = "with --gpu: CDI device that restores will be given, such as nvidia.com/gpu=0 (default: those it had)"
	flags.StringVar(&f.gpuMemory, "gpu-budget", "", "budget of prewarmed device memory on each GPU, as 40GiB (default: gpu under [prewarm] in the configuration, else what is free)")
	f.registry.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]cobra.Completion{"missing", "always"}, cobra.ShellCompDirectiveNoFileComp)) // fails only for flags that there are not
	cmd.AddCommand(newPrewarmList(a), newPrewarmRemove(a))
	return cmd
}

// inOrder is the value of --gpu without one.
const inOrder = "in-order"

// resolveGPU looks at what is said of GPUs.
func (f *prewarmFlags) resolveGPU() (err error) {
	if !f.onGPU {
		if len(f.gpu.devices) > 0 || f.gpuMemory != "" {
			return &usageError{command: "cryo prewarm", problem: "--device and --gpu-budget are for --gpu"}
		}
		return nil
	}
	f.gpu.gpus = slices.DeleteFunc(f.gpu.gpus, func(text string) bool { return text == inOrder })
	if f.gpuMemory != "" {
		if f.gpuBudget, err = parseSize(f.gpuMemory); err == nil && f.gpuBudget == 0 {
			err = errors.New("leaves no room for any snapshot")
		}
		if err != nil {
			return &usageError{command: "cryo prewarm", problem: fmt.Sprintf("--gpu-budget %s: %v", f.gpuMemory, err)}
		}
	}
	return f.gpu.check()
}

// resolve looks at all that can be wrong, and finds the budgets.
func (f *prewarmFlags) resolve(a *app) error {
	if err := f.resolveGPU(); err != nil {
		return err
	}
	if !slices.Contains([]string{"missing", "always"}, f.pull) {
		return &usageError{command: "cryo prewarm", problem: fmt.Sprintf("--pull %q is neither missing nor always", f.pull)}
	}
	c, err := a.config()
	if err != nil {
		return err
	}
	f.diskBudget = c.Prewarm.Disk << 20
	if f.gpuMemory == "" {
		f.gpuBudget = c.Prewarm.GPU << 20
	}
	if f.disk == "" {
		return nil
	}
	if f.diskBudget, err = parseSize(f.disk); err != nil {
		return &usageError{command: "cryo prewarm", problem: fmt.Sprintf("--disk: %v", err)}
	}
	return nil
}

// prewarm fetches a snapshot where it is missing, and gets it ready.
func (a *app) prewarm(ctx context.Context, ref string, f prewarmFlags) (err error) {
	options, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	j, err := a.judging(f.require)
	if err != nil {
		return err
	}
	s, err := a.store()
	if err != nil {
		return err
	}
	var counts registry.Counts
	options.Counts = &counts
	a.progress.waitsFor("pull", func() string { return "the registry" })
	start := time.Now()
	if ref, err = a.named(ctx, s, ref, f.pull); err != nil {
		return err
	}
	_, err = s.Resolve(ctx, ref)
	known := err == nil
	ref, desc, pulling, err := restore.Locate(ctx, s, ref, f.pull, options, j)
	if err != nil {
		return err
	}
	if pulling != nil {
		defer pulling.Close()
		if err := pulling.Settle(ctx); err != nil {
			return err
		}
	}
	r := prewarmResult{Removed: []warmed{}}
	err = a.makeReady(ctx, s, ref, desc, pulling, f, options, pulling != nil && !known, &r)
	for _, w := range r.Removed {
		if w.Size > 0 { // what it had on GPUs goes with it
			err = errors.Join(err, letGo(ctx, s.Root(), w.Digest))
		}
	}
	if err != nil {
		return err
	}
	if pulling != nil {
		r.Pull = transferred(ref, &counts, start)
	}
	r.Seconds = time.Since(start).Seconds()
	a.progress.stop()
	if a.json {
		return a.printJSON(r)
	}
	for _, w := range r.Removed {
		what := store.Familiar(w.Reference)
		if w.Size == 0 {
			what += ", " + gpuCell(w.GPUs) + ","
		}
		a.line("removed %s to make room", what)
	}
	loaded := ""
	if len(r.GPUs) > 0 {
		loaded = ", " + gpuCell(r.GPUs)
	}
	a.line("prewarmed %s, %s%s, in %s", store.Familiar(ref), size(r.Size), loaded, seconds(r.Seconds))
	return nil
}

// makeReady is the part of prewarm that knows the snapshot. fetched: by this name it was not here before.
func (a *app) makeReady(ctx context.Context, s *store.Store, ref string, desc ocispec.Descriptor, pulling *registry.Puller, f prewarmFlags, o registry.Options, fetched bool, r *prewarmResult) error {
	work, err := s.Work(ctx) // and keeps the blobs
	if err != nil {
		return err
	}
	defer closing(ctx, "work", work)
	refuse := func(err error) error {
		if pulling != nil {
			err = errors.Join(err, pulling.Abandon())
		}
		return err
	}
	snapshot, err := image.Open(ctx, s, desc)
	if err != nil {
		return refuse(err)
	}
	name, err := store.Normalize(ref)
	if err != nil {
		return refuse(err)
	}
	record := store.Prewarmed{Reference: name, Digest: desc.Digest, Size: total(snapshot), Fetched: fetched}
	if fetched && f.diskBudget > 0 && record.Size > f.diskBudget {
		return refuse(&diskBudgetError{need: record.Size, budget: f.diskBudget})
	}
	loading, err := a.planPreload(ctx, s, snapshot, name, f, r)
	if err != nil {
		return refuse(err)
	}
	defer loading.close()
	if r.Image, err = a.bringBase(ctx, snapshot, ref, f.snapshotter, o, work.Dir); err != nil {
		return refuse(err)
	}
	if pulling != nil {
		pulling.ThroughCache()
		if err := pulling.Finish(ctx); err != nil {
			return err
		}
	}
	if err := s.Cache(ctx, slices.Concat([]ocispec.Descriptor{snapshot.Manifest.Config}, snapshot.Manifest.Layers), a.report()); err != nil {
		return err
	}
	if pulling == nil || o.Counts.There() > 0 { // else all of it was verified as it came
		if err := s.Damaged(ctx, desc, image.Verify(ctx, s, desc, a.report())); err != nil {
			return err
		}
	}
	kept, removed, err := s.KeepPrewarmed(ctx, record, f.diskBudget)
	r.warmed, r.Already = warmedOf(kept), kept.Created.Before(kept.Used) && (loading == nil || loading.again)
	for _, p := range removed {
		r.Removed = append(r.Removed, warmedOf(p))
	}
	if err != nil || loading == nil {
		return err
	}
	r.GPUs = gpusOf(loading.info)
	return loading.load(ctx, s, snapshot)
}

// bringBase makes sure of the base image.
func (a *app) bringBase(ctx context.Context, snapshot *image.Snapshot, ref, snapshotter string, o registry.Options, work string) (name string, err error) {
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return "", err
	}
	defer closing(ctx, "containerd", client)
	if err := restore.RemoveAbandoned(ctx, client, work); err != nil {
		a.warn("%v", err)
	}
	var u undo
	defer func() {
		if err != nil {
			err = errors.Join(err, u.run(ctx))
		}
	}()
	ctx, done, err := restore.Lease(ctx, client, work)
	if err != nil {
		return "", err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	p := base{container: snapshot.Config.Container, ref: ref}
	if p.snapshotter, err = chooseSnapshotter(ctx, client, snapshotter, snapshot.Config.Container.Snapshotter); err != nil {
		return "", err
	}
	img, err := baseImage(ctx, client, p, o, &u)
	if err != nil {
		return "", err
	}
	return img.Name(), nil
}

// diskBudgetError says that a snapshot alone is larger than the budget of what is fetched. Its kind is ResourceExhausted.
type diskBudgetError struct{ need, budget int64 } // bytes

func (e *diskBudgetError) Error() string {
	return fmt.Sprintf("prewarm: the snapshot has %s, and the budget of what is fetched for prewarmed snapshots is %s", size(e.need), size(e.budget))
}

func (e *diskBudgetError) Hint() string {
	return fmt.Sprintf("raise it to %d MiB at least: --disk, or disk under [prewarm] in the configuration", (e.need+1<<20-1)>>20)
}

func (e *diskBudgetError) Unwrap() error { return errdefs.ErrResourceExhausted }
