package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// prewarmFlags are the choices of cryo prewarm.
type prewarmFlags struct {
	restore.PrewarmOptions
	require  bool // a signature
	registry registryFlags
	gpu      gpuFlags
	paused   int  // containers that stand still; -1: that stays as it is
	refill   bool // what was asked for before is done again, and nothing else
}

type prewarmResult struct {
	*restore.PrewarmResult
	Seconds float64           `json:"seconds"`
	Pull    *restore.Transfer `json:"pull,omitempty"` // where it had to be fetched
}

func newPrewarm(a *app) *cobra.Command {
	var f prewarmFlags
	cmd := &cobra.Command{
		Use:   "prewarm REF",
		Short: "Get a snapshot ready on this host, for fast restores",
		Long: `prewarm fetches the snapshot REF if it is not in the local store, verifies it, and fetches and unpacks its base
image. Then a restore needs nothing from the network, any number of times. It also reads the snapshot's files,
so that the kernel has them in memory; it keeps them there while that memory is not needed elsewhere.

What was fetched stays in the store as after cryo pull. cryo prewarm rm removes it. All that was fetched takes
no more room than disk under [prewarm] in the configuration says: a later prewarm that needs room removes first
what was neither prewarmed nor restored for the longest time. Snapshots that were in the store before stay there.

With --gpu, device memory that the snapshot's processes have handed over (engine keeper) is loaded onto GPUs
as well. The next restore that gets these GPUs attaches it instead of loading it ("gpuPrewarmed" in --json).
That uses it up: later restores load device memory themselves until it is prewarmed again. The GPUs are those
that cryo restore would take, or those of --device and --gpu=OLD=NEW. On each GPU, all that is kept takes no
more than is free, or than gpu under [prewarm] says: what was not requested for the longest time is removed first.
No other process can use that memory meanwhile.

With --paused N, N containers are restored as well, and stand frozen before their first instruction, with all
their memory: the snapshot's pool. cryo restore REF takes one of them, prints its name, and has it go on; the pool
is filled again in the background. ctr lists them as paused tasks. Their memory takes no more than memory under
[prewarm] in the configuration says. --paused 0 ends the pool; so do cryo prewarm rm and cryo rm. After a restart
of the host, the next cryo restore REF fills it again.

If REF later names another snapshot in the store, the first one is no longer prewarmed, and its pool is filled with
containers of the other one when cryo restore REF is called next.`,
		Example: `  cryo prewarm registry.example.com/snapshots/cache:warm
  cryo prewarm --gpu registry.example.com/snapshots/llm:ready
  cryo prewarm --gpu registry.example.com/snapshots/llm:ready --device nvidia.com/gpu=1
  cryo prewarm --paused 3 registry.example.com/snapshots/cache:warm
  cryo prewarm ls
  cryo prewarm rm registry.example.com/snapshots/cache:warm`,
		Args: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if _, err := restore.ParseGPUPair(arg); err == nil {
					return misused(cmd.CommandPath(), "%s is no snapshot: of --gpu, write --gpu=%[1]s", arg)
				}
			}
			return exactly("REF")(cmd, args)
		},
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.OnGPU = cmd.Flags().Changed("gpu")
			if f.refill {
				return a.refill(cmd.Context(), args[0])
			}
			if err := f.resolve(a); err != nil {
				return err
			}
			return a.prewarm(cmd.Context(), args[0], f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Pull, "pull", "missing", "when to fetch the snapshot: missing (if it is not in the local store), or always")
	flags.StringVar(&f.Snapshotter, "snapshotter", environment("CONTAINERD_SNAPSHOTTER", ""), "containerd's snapshotter (CONTAINERD_SNAPSHOTTER; default: as in the snapshot, if it is here)")
	requireSignature(cmd, &f.require)
	f.gpu.register(cmd, a)
	gpu := flags.Lookup("gpu")
	gpu.Usage = "load device memory onto GPUs as well; `OLD=NEW` replaces GPU OLD of the snapshot by NEW of this host, by UUID or number (default: in order)"
	gpu.NoOptDefVal = inOrder
	flags.Lookup("device").Usage = "with --gpu: CDI device that restores will be given, such as nvidia.com/gpu=0 (default: those it had)"
	flags.IntVar(&f.paused, "paused", -1, "keep so many containers restored and paused, which cryo restore takes; 0: none any more")
	flags.BoolVar(&f.refill, "refill", false, "fill the snapshot's pool again")
	_ = flags.MarkHidden("refill") // fails only for flags that there are not
	f.registry.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]cobra.Completion{"missing", "always"}, cobra.ShellCompDirectiveNoFileComp)) // fails only for flags that there are not
	cmd.AddCommand(newPrewarmList(a), newPrewarmRemove(a))
	return cmd
}

// inOrder is the value of --gpu without one.
const inOrder = "in-order"

// resolve looks at all that can be wrong, and reads the configuration.
func (f *prewarmFlags) resolve(a *app) error {
	if !f.OnGPU && len(f.gpu.devices) > 0 {
		return misused("cryo prewarm", "--device is for --gpu")
	}
	f.gpu.gpus = slices.DeleteFunc(f.gpu.gpus, func(text string) bool { return text == inOrder })
	if err := f.gpu.check(); err != nil {
		return err
	}
	if f.paused < -1 || f.paused > restore.MaxPaused {
		return misused("cryo prewarm", "--paused %d is no number from 0 to %d", f.paused, restore.MaxPaused)
	}
	if !slices.Contains([]string{"missing", "always"}, f.Pull) {
		return misused("cryo prewarm", "--pull %q is neither missing nor always", f.Pull)
	}
	c, err := a.config()
	if err != nil {
		return err
	}
	f.GPU, f.GPUs = c.GPU, restore.GPUOptions{Devices: f.gpu.devices, Pairs: f.gpu.pairs}
	f.DiskBudget, f.GPUBudget = c.Prewarm.Disk<<20, c.Prewarm.GPU<<20
	return nil
}

// prewarm fetches a snapshot where it is missing, and gets it ready.
func (a *app) prewarm(ctx context.Context, ref string, f prewarmFlags) (err error) {
	if f.Registry, err = f.registry.resolve(ctx, a); err != nil {
		return err
	}
	if f.Judging, err = a.judging(f.require); err != nil {
		return err
	}
	s, err := a.store()
	if err != nil {
		return err
	}
	var counts registry.Counts
	f.Registry.Counts = &counts
	a.progress.waitsFor("pull", func() string { return "the registry" })
	start := time.Now()
	if f.Ref, err = a.named(ctx, s, ref, f.Pull); err != nil {
		return err
	}
	f.Connect, f.Warn = a.connect, a.warn
	done, err := restore.Prewarm(ctx, s, f.PrewarmOptions)
	if err != nil {
		return err
	}
	err = a.endPools(ctx, s) // of what was removed to make room
	if f.paused >= 0 && err == nil {
		done.Paused, err = a.keepPaused(ctx, s, done.Reference, f.paused)
	}
	if err != nil {
		return err
	}
	r := prewarmResult{PrewarmResult: done, Seconds: time.Since(start).Seconds()}
	if done.Fetched && !registry.IsLocation(f.Ref) { // what comes from files is not counted
		r.Pull = restore.Transferred(&counts, start)
	}
	return a.print(r, func() error {
		for _, w := range r.Removed {
			a.line("removed %s, %s, to make room", store.Familiar(w.Reference), prewarmedSizes(w))
		}
		a.line("prewarmed %s, %s, in %s", store.Familiar(r.Reference), prewarmedSizes(r.PrewarmedSnapshot), seconds(r.Seconds))
		for _, p := range pausedCells(r.Paused) {
			a.line("paused %s of memory", p)
		}
		return nil
	})
}

// gpuCells returns how much is loaded where.
func gpuCells(all []restore.OnGPU) (cells []string) {
	for _, g := range all {
		cells = append(cells, fmt.Sprintf("%s on GPU %d", config.Size(g.Memory), g.Index))
	}
	return cells
}
