package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
	"github.com/cryo-project/cryo/shim/restore"
)

// prewarmFlags are the choices of cryo prewarm.
type prewarmFlags struct {
	memory, disk string
	pull         string
	snapshotter  string
	require      bool // a signature
	registry     registryFlags
	gpu          gpuFlags
	gpuMemory    string

	budget    warm.Size // of memory and disk and the configuration
	onGPU     bool      // --gpu
	gpuBudget int64     // of gpuMemory
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
		Short: "Keep a snapshot in memory, for fast restores",
		Long: `prewarm fetches the snapshot REF if it is not in the local store, and its base image, verifies all of it, and
keeps its memory decoded in a tmpfs. cryo restore uses it by itself, any number of times: it then reads
neither from the network nor from the store's files, and neither decompresses nor hashes memory again.

All prewarmed snapshots together take no more memory than --memory says. Those that were not restored for the
longest time make room, unless a container is being restored from them. What was fetched for a prewarmed
snapshot stays in the store as after cryo pull, and is removed with it; --disk bounds that in the same way.
Snapshots that were in the store before stay there.

With --gpu, device memory that the snapshot's processes have handed over (engine keeper) is loaded onto GPUs
as well. The next restore that gets these GPUs attaches it instead of loading it ("gpuPrewarmed" in --json).
That uses it up: later restores load for themselves until it is prewarmed again. The GPUs are those that cryo
restore would take, or those of --device and --gpu=OLD=NEW. On each GPU, all that is kept takes no more than
is free, or than --gpu-budget says; what was not requested for the longest time makes room. Nobody else can
use that memory meanwhile.

The tmpfs belongs to root, is not swapped out on Linux 6.4 and later, and is empty after a reboot. If REF
names another snapshot later, in the registry or here, restores do not use the one that was prewarmed.`,
		Example: `  cryo prewarm registry.example.com/snapshots/cache:warm
  cryo prewarm registry.example.com/snapshots/cache:warm --memory 32GiB
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
	flags.StringVar(&f.memory, "memory", "", "budget of memory for all prewarmed snapshots, as 8GiB (default: memory under [prewarm] in the configuration, else a quarter of the machine's)")
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

// resolve looks at all that can be wrong, and finds the budget.
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
	f.budget = warm.Size{Memory: c.Prewarm.Memory << 20, Disk: c.Prewarm.Disk << 20}
	if f.gpuMemory == "" {
		f.gpuBudget = c.Prewarm.GPU << 20
	}
	for flag, b := range map[string]struct {
		text   string
		budget *int64
	}{"--memory": {f.memory, &f.budget.Memory}, "--disk": {f.disk, &f.budget.Disk}} {
		if b.text == "" {
			continue
		}
		if *b.budget, err = parseSize(b.text); err != nil {
			return &usageError{command: "cryo prewarm", problem: fmt.Sprintf("%s: %v", flag, err)}
		}
	}
	if f.budget.Memory > 0 {
		return nil
	}
	if f.memory != "" {
		return &usageError{command: "cryo prewarm", problem: "--memory 0 leaves no room for any snapshot"}
	}
	all, err := warm.Total()
	f.budget.Memory = all / 4
	return err
}

// prewarm fetches a snapshot where it is missing, and keeps it ready.
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
	err = a.makeReady(ctx, s, ref, desc, pulling, f, options, !known, &r)
	for _, w := range r.Removed {
		if w.Memory > 0 { // what it had on GPUs goes with it
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
		if w.Memory == 0 {
			what += ", " + gpuCell(w.GPUs) + ","
		}
		a.line("removed %s to make room", what)
	}
	loaded := ""
	if len(r.GPUs) > 0 {
		loaded = ", " + gpuCell(r.GPUs)
	}
	a.line("prewarmed %s, %s of memory%s, in %s", store.Familiar(ref), size(r.Memory), loaded, seconds(r.Seconds))
	return nil
}

// makeReady is the part of prewarm that knows the snapshot. fetched: what pulling brings was not known by this name here.
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
	var disk int64
	if pulling != nil && fetched {
		disk = snapshot.Size()
	}
	d := warm.New(s.Root())
	name, err := store.Normalize(ref)
	if err != nil {
		return refuse(err)
	}
	loading, err := a.planPreload(ctx, s, snapshot, name, f, r)
	if err != nil {
		return refuse(err)
	}
	defer loading.close()
	if ready, err := d.Find(ctx, desc.Digest); err != nil {
		return refuse(err)
	} else if ready != nil {
		r.Already = true
		removed, err := d.Keep(ctx, ready, warm.Size{Memory: warm.Need(snapshot), Disk: disk}, f.budget)
		closing(ctx, "prewarmed snapshot", ready)
		r.Removed = append(r.Removed, a.forget(ctx, s, removed)...)
		if err != nil {
			return refuse(err)
		}
	} else {
		// Before anything large is fetched.
		removed, err := d.Room(ctx, warm.Size{Memory: warm.Need(snapshot), Disk: disk}, f.budget)
		r.Removed = append(r.Removed, a.forget(ctx, s, removed)...)
		if err != nil {
			return refuse(err)
		}
	}
	if r.Image, err = a.bringBase(ctx, snapshot, ref, f.snapshotter, o, work.Dir); err != nil {
		return refuse(err)
	}
	if pulling != nil {
		if err := pulling.Finish(ctx); err != nil {
			return err
		}
	}
	info, removed, err := d.Add(ctx, s, snapshot, warm.AddOptions{Reference: name, Disk: disk, Budget: f.budget, Progress: a.report()})
	r.Removed = append(r.Removed, a.forget(ctx, s, removed)...)
	r.warmed = warmOf(info)
	if err != nil || loading == nil {
		return err
	}
	r.Already = r.Already && loading.again
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

// forget removes from the store what was fetched for snapshots that are not prewarmed any more, unless the name names another by now.
func (a *app) forget(ctx context.Context, s *store.Store, removed []warm.Info) (all []warmed) {
	for _, i := range removed {
		all = append(all, warmOf(i))
		if i.Disk == 0 {
			continue
		}
		if desc, err := s.Resolve(ctx, i.Reference); err != nil || desc.Digest != i.Digest {
			continue
		}
		if _, err := s.Remove(ctx, i.Reference); err != nil {
			a.warn("%v", err)
		}
	}
	return all
}
