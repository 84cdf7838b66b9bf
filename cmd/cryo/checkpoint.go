package main

import (
	"fmt"
	"math"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
	"github.com/cryo-project/cryo/shim/worker"
)

// checkpointFlags are the choices of cryo checkpoint.
type checkpointFlags struct {
	save.Options
	push        bool
	whenReady   bool
	segmentSize string // of Options.SegmentSize
	registry    registryFlags
	group       groupFlags
}

type checkpointResult struct {
	*save.Result
	Error *errorReport `json:"error,omitempty"` // of what was to be done with the snapshot, which is safe here
}

func newCheckpoint(a *app) *cobra.Command {
	var f checkpointFlags
	cmd := &cobra.Command{
		Use:   "checkpoint NAME REF",
		Short: "Take a snapshot of a running container",
		Long: `checkpoint takes a snapshot of the container NAME (its id, or the name nerdctl gave it) and keeps it as REF.

The container stands still while its memory is dumped and its files are copied. With --leave-running it then
goes on, and the snapshot is finished while it runs. Without, the container ends when the snapshot is safe on
disk; --rm then removes it, unless nerdctl or Kubernetes made it. If anything fails before, it goes on.
Processes that exec has started are not in the snapshot. A warning names them.

Memory that has not changed since the container's last snapshot, or the one it was restored from, is neither
stored nor sent again, as long as that snapshot is in the local store. The new snapshot is complete by itself:
the other one may be removed. --parent names another snapshot to share memory with, or none.

With --push, the registry is asked first whether it lets us push; if not, nothing is done. Each part is sent as
soon as it is on disk. If that fails, the snapshot is complete here, and cryo push sends what is missing. With
--sign-key the snapshot is signed as cryo sign does, before it has its name in the registry. In the registry, the
name also stands for an ordinary image that other clients run: see cryo push.

With --when-ready, the snapshot is taken when the program in the container says that it may be: when it has made
the file "ready" in its control directory, which the variable CRYO_CONTROL_DIR of its environment names (or
"ready-for-snapshot" in SNAPSHOT_CONTROL_DIR, by which ai-dynamo's images do the same). The container runs
meanwhile. See shim/CONTRACT.md.

With --verify, the snapshot is tried before it has its name, and before the container ends: it is restored into a
container of another name (cryo-verify-...), with memory, namespaces and a cgroup of its own, which is removed
before its first instruction. If that fails, there is no snapshot, and the container goes on. The trial needs the
container's memory a second time, and room on disk for it; without --leave-running, the container stands still
meanwhile. It writes to no bind mount: it has an overlay over each directory, and a copy of each file. What CRIU
does last, and what a program does then, is not tried. Containers with GPUs or with namespaces of others, the
host's network among them, are refused before anything is frozen, as are bind mounts that have no overlay.
"verify = true" under [dump] in the configuration has every snapshot tried whose container is to end.

Memory on NVIDIA GPUs is part of the snapshot. Processes first end the work they have given to GPUs, and hand
most of their device memory over; then the driver moves the rest into the processes' own memory. It moves all of
it with --gpu-engine driver, and of a container that was created with the engine driver.
--gpu-engine keeper fails unless every process can hand its memory over. Where the driver may save what it
cannot load again, the checkpoint is refused and the container runs on. --force RULE overrides that; the
container may then be lost.

With --group, given once for each member, several containers are taken in step: none is dumped before all stand
still, so that their established TCP connections to each other are whole. Each member's snapshot is pushed as
REF-NAME, and REF, which lists them, is published last. If anything fails before, all go on and there is no
snapshot. The hosts are reached by ssh, and need the same release of cryo. See cmd/cryo/GROUPS.md.`,
		Example: `  cryo checkpoint cache registry.example.com/snapshots/cache:warm
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --push --rm
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --leave-running --push
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --leave-running --push --sign-key cosign.key
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --verify --push --rm
  cryo checkpoint llm registry.example.com/snapshots/llm:warm --when-ready --ready-timeout 20m --push
  cryo checkpoint web web:before-upgrade --tcp-established
  cryo checkpoint --group rank0=node1/rank0 --group rank1=node2/rank1 registry.example.com/jobs/solver:step100 --leave-running
  cryo checkpoint llm registry.example.com/snapshots/llm:ready --gpu-timeout 1m --push`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.group.given() {
				return exactly("REF")(cmd, args)
			}
			return exactly("NAME", "REF")(cmd, args)
		},
		ValidArgsFunction: a.completeContainers,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Ref = args[len(args)-1]
			if !f.group.given() {
				f.Container = args[0]
			}
			switch asked := cmd.Flags().Changed("ready-timeout"); {
			case asked && !f.whenReady:
				return misused("cryo checkpoint", "--ready-timeout is for --when-ready")
			case asked && f.ReadyTimeout <= 0:
				return misused("cryo checkpoint", "--ready-timeout %s is no time to wait", f.ReadyTimeout)
			case !f.whenReady:
				f.ReadyTimeout = 0
			}
			if err := f.check(); err != nil {
				return err
			}
			if f.group.given() {
				if err := f.checkGroup(); err != nil {
					return err
				}
				return a.checkpointGroup(cmd.Context(), f)
			}
			return a.checkpoint(cmd, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.LeaveRunning, "leave-running", false, "let the container go on after it was dumped")
	flags.BoolVar(&f.Remove, "rm", false, "remove the container after it has ended and the snapshot is complete, and pushed if --push is given")
	flags.BoolVar(&f.push, "push", false, "send the snapshot to its registry")
	flags.BoolVar(&f.Verify, "verify", false, "try whether the snapshot can be restored before the container ends; if it cannot, the container goes on")
	flags.BoolVar(&f.whenReady, "when-ready", false, "wait until the program in the container says that its snapshot may be taken")
	flags.DurationVar(&f.ReadyTimeout, "ready-timeout", worker.ReadyTimeout, "with --when-ready, time for that; then there is no snapshot, and the container goes on")
	flags.BoolVar(&f.SnapshotOnly, "snapshot-only", false, "with --push, send the snapshot by itself, without an image that others run")
	flags.StringVar(&f.KeyFile, "sign-key", "", "sign the snapshot with the private key in this file, as cryo sign does")
	flags.BoolVar(&f.TCPEstablished, "tcp-established", false, "save established TCP connections")
	flags.BoolVar(&f.FileLocks, "file-locks", false, "save locks on files")
	flags.BoolVar(&f.ExternalUnixSockets, "ext-unix-sk", false, "allow unix sockets that are connected to outside of the container; a restore needs --allow privileges then")
	flags.StringVar(&f.Parent, "parent", "", "snapshot to share unchanged memory with, or none (default: the container's last)")
	flags.StringVar(&f.Compression, "compression", "zstd", "compression of memory: zstd (its fastest level), or none, for links faster than 250 MB/s a core")
	flags.StringVar(&f.segmentSize, "segment-size", "", "memory that one layer of the snapshot covers, a power of two (default 64MiB; 256MiB with GPUs, or more than 16 GiB of memory)")
	flags.DurationVar(&f.GPUTimeout, "gpu-timeout", 0, "time for processes to end their work on GPUs (default: timeout of [gpu] in the configuration, 10s)")
	flags.StringArrayVar(&f.Force, "force", nil, "override a rule that refuses containers with GPUs, by its name, or all")
	flags.StringVar(&f.GPUEngine, "gpu-engine", "", "how device memory is saved: driver, or keeper (default: as the container was created)")
	_ = cmd.RegisterFlagCompletionFunc("force", completeRules(gpu.RuleNames())) // fails only for flags that there are not
	_ = cmd.RegisterFlagCompletionFunc("gpu-engine", cobra.FixedCompletions([]cobra.Completion{image.DriverEngine, image.KeeperEngine}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("parent", a.completeRefs(math.MaxInt))
	_ = cmd.RegisterFlagCompletionFunc("ready-timeout", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("gpu-timeout", cobra.NoFileCompletions)
	f.group.register(cmd, "HOST/CONTAINER")
	flags.DurationVar(&f.group.hold, "hold-timeout", holdTime, "time for all members of a group to stand still; then all go on, and there is no snapshot")
	_ = cmd.RegisterFlagCompletionFunc("hold-timeout", cobra.NoFileCompletions)
	f.registry.register(cmd)
	return cmd
}

// check looks at everything that can be wrong before the container is touched.
func (f *checkpointFlags) check() error {
	if f.push {
		f.Push = &registry.Options{} // which [app.checkpoint] fills in
	}
	if f.segmentSize != "" {
		var err error
		if f.SegmentSize, err = config.ParseSize(f.segmentSize); err != nil {
			return misused("cryo checkpoint", "--segment-size: %v", err)
		}
	}
	return f.Check()
}

// checkpoint takes the snapshot, names it, and sends it away if that is wanted.
func (a *app) checkpoint(cmd *cobra.Command, f checkpointFlags) error {
	ctx := cmd.Context()
	options, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	if f.KeyFile != "" { // before the container is touched
		if f.Key, err = a.readKey(ctx, f.KeyFile); err != nil {
			return err
		}
	}
	s, err := a.store()
	if err != nil {
		return err
	}
	if f.Config, err = a.config(); err != nil {
		return err
	}
	if f.Config.Dump.Verify && !f.LeaveRunning && !cmd.Flags().Changed("verify") {
		f.Verify = true
	}
	environment, err := restore.Environment(s, a.configPath)
	if err != nil {
		return err
	}
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "containerd", client)
	if f.push {
		a.warnHub(f.Ref)
		f.Push = &options
	}
	f.Hooks, f.Address = a.hooks(), a.address
	c := save.Command{Options: f.Options, Store: s, Client: client, Environment: environment, Debug: a.debugLine()}
	result, err := c.Run(ctx)
	if result == nil {
		return err
	}
	if err == nil && f.Remove {
		err = result.Remove(ctx, client, a.removal(result))
	}
	a.printDone(checkpointResult{result, a.errorReport(ctx, err)}, func() error {
		a.printTaken(f.Ref, result)
		if err == nil && result.Removed {
			a.line("%s has ended and is removed", f.Container)
		} else if err == nil && !result.Running && result.MadeBy != daemon.Kubernetes {
			a.line("%s has ended; to remove it: %s", f.Container, a.removal(result))
		}
		return nil
	})
	return err
}

// removal is the command that removes the container of which a snapshot was taken.
func (a *app) removal(r *save.Result) string {
	address := ""
	if a.address != environment("CONTAINERD_ADDRESS", defaults.DefaultAddress) {
		address = " --address " + a.address
	}
	if r.MadeBy == daemon.Nerdctl {
		return "nerdctl" + address + " --namespace " + a.namespace + " rm " + r.Container
	}
	return "ctr" + address + " --namespace " + a.namespace + " containers rm " + r.Container
}

// printTaken prints what a checkpoint came to.
func (a *app) printTaken(ref string, result *save.Result) {
	a.line("%s", result.Digest)
	a.line("%s: %s of memory in %s, frozen %s (%sdump %s, files %s), packed in %s", ref, config.Size(result.Memory), config.Size(result.Size),
		seconds(result.Freeze), gpuTimes(result.GPU), seconds(result.Dump), seconds(result.RootFS), seconds(result.Pack))
	if result.Verify != nil {
		a.line("it was tried in %s: it can be restored on this host", seconds(result.Verify.Seconds))
	}
	if result.Shared > 0 {
		a.line("%s of it are segments of %s", config.Size(result.Shared), short(result.Parent))
	}
	if result.Pushed {
		a.line("pushed to %s: %s, complete %s after the snapshot was here", ref, config.Size(result.Push.Moved), seconds(result.Push.Seconds))
	}
}

// gpuTimes is the part of a line about the freeze; empty without GPUs.
func gpuTimes(g *save.GPUSeconds) string {
	if g == nil {
		return ""
	}
	text := fmt.Sprintf("GPU locked in %s, saved in %s, ", seconds(g.Lock), seconds(g.Save))
	if g.Bytes > 0 {
		text += fmt.Sprintf("%s of it handed over in %s, ", config.Size(g.Bytes), seconds(g.Devices))
	}
	if g.Load > 0 {
		text += fmt.Sprintf("loaded in %s, ", seconds(g.Load))
	}
	return text
}
