package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/archive"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/restore"
)

// checkpointFlags are the choices of cryo checkpoint.
type checkpointFlags struct {
	leaveRunning, push, remove bool
	tcp, locks, externalUnix   bool
	compression                string
	parent                     string // a reference, none, or empty: found out
	opened                     *image.Parent
	segmentSize                string // empty: by the memory that the container has
	segmentBytes               int64  // of segmentSize; 0: not known yet
	workers                    int
	preDump                    int           // rounds
	gpuTimeout                 time.Duration // 0: as configured
	force                      []string      // rules of package gpu
	gpuEngine                  string        // of package gpu; empty: as the container was made
	registry                   registryFlags
	signKey                    string // a file; empty: it is not signed
	container, ref, normalized string
	sender                     *sender // where the snapshot goes while it is taken
}

type checkpointResult struct {
	Reference string        `json:"reference"`
	Digest    string        `json:"digest"`
	Container string        `json:"container"`
	Size      int64         `json:"size"`             // bytes of all blobs
	Parent    string        `json:"parent,omitempty"` // digest of the snapshot whose increment it is
	Shared    int64         `json:"shared,omitempty"` // bytes of blobs with memory that are the parent's
	Memory    int64         `json:"memory"`           // bytes in the container, zero pages included
	Freeze    float64       `json:"freeze"`           // seconds the container stood still
	Dump      float64       `json:"dump"`             // of which CRIU
	RootFS    float64       `json:"rootfs"`           // of which capture of the writable layer
	Pack      float64       `json:"pack"`             // afterwards
	GPU       *gpuSeconds   `json:"gpu,omitempty"`    // if it has GPUs
	Rounds    []roundResult `json:"rounds,omitempty"` // of a pre-dump, before the freeze
	Running   bool          `json:"running"`
	Removed   bool          `json:"removed"`          // as --rm asked for
	Signed    string        `json:"signed,omitempty"` // fingerprint of the key
	Pushed    bool          `json:"pushed"`
	Push      *transfer     `json:"push,omitempty"`
	Warnings  []string      `json:"warnings"`
	Error     *errorReport  `json:"error,omitempty"` // of what was to be done with the snapshot, which is safe here

	madeBy string // the client that made the container, as the function madeBy tells
	lost   error  // why the container was lost, although there is a snapshot
}

// gpuSeconds are what device memory has taken of the freeze, seconds.
type gpuSeconds struct {
	Lock float64 `json:"lock"`           // until its processes had ended their work on GPUs
	Save float64 `json:"save"`           // moving device memory into memory
	Load float64 `json:"load,omitempty"` // and back, with --leave-running
	// Devices is how long it took to take in what was handed over instead, Bytes how much that is. It is no part of the freeze,
	// or not all of it, where the GPUs had room for a copy.
	Devices float64 `json:"devices,omitempty"`
	Bytes   int64   `json:"bytes,omitempty"`
}

func newCheckpoint(a *app) *cobra.Command {
	var f checkpointFlags
	cmd := &cobra.Command{
		Use:   "checkpoint NAME REF",
		Short: "Take a snapshot of a running container",
		Long: `checkpoint takes a snapshot of the container NAME (its id, or the name nerdctl gave it) and keeps it as REF.

The container stands still while its memory is dumped and its files are copied. With --leave-running it then
goes on, and the snapshot is finished while it runs. Without, the container ends when the snapshot is safe on
disk, and with --rm is then removed, if it is not nerdctl's or Kubernetes's. If anything fails before, it goes on.
What exec has started in the container is not in the snapshot, and a warning names it.

Memory that has not changed since the container's last snapshot, or the one it was restored from, is neither
stored nor sent again, as long as that snapshot is in the local store. The new snapshot is complete by itself:
the other one may be removed. --parent names another snapshot to share memory with, or none.

With --pre-dump, CRIU reads memory in rounds while the container still runs. Each round reads what was written
since the one before, and the freeze only what was written since the last. It needs a kernel that tracks
writes (cryo doctor: soft-dirty), disk space for the memory once more, and a container without GPUs that is
not paused. CRIU stops the processes for a moment in each round. Programs that write everywhere in huge pages,
or whose heap grows, gain little. Use it with --leave-running: without, the container stands still until its
snapshot is safe all the same.

With --push, the registry is asked first whether it lets us push; if not, nothing is done. Each part is sent as
soon as it is on disk. If that fails, the snapshot is complete here, and cryo push sends what is missing. With
--sign-key the snapshot is signed as cryo sign does, before it has its name in the registry.

Memory on NVIDIA GPUs is part of the snapshot. Processes first end the work they have given to GPUs; then the
driver moves device memory into the processes' own memory. A container that was created with the engine keeper
hands most of it over instead, which is faster. --gpu-engine driver has the driver move all of it.
--gpu-engine keeper fails unless every process can hand its memory over. Where the driver may save what it
cannot load again, the checkpoint is refused and the container runs on. --force RULE overrides that, and may
cost it its processes.`,
		Example: `  cryo checkpoint cache registry.example.com/snapshots/cache:warm
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --push --rm
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --leave-running --push
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --leave-running --push --sign-key cosign.key
  cryo checkpoint web web:before-upgrade --tcp-established
  cryo checkpoint db registry.example.com/snapshots/db:nightly --leave-running --pre-dump=2
  cryo checkpoint llm registry.example.com/snapshots/llm:ready --gpu-timeout 1m --push`,
		Args: func(cmd *cobra.Command, args []string) error {
			if number := slices.IndexFunc(args, func(arg string) bool { _, err := strconv.Atoi(arg); return err == nil }); len(args) > 2 && number >= 0 && cmd.Flags().Changed("pre-dump") {
				return &usageError{command: cmd.CommandPath(), problem: "of --pre-dump, write --pre-dump=" + args[number]}
			}
			return exactly("NAME", "REF")(cmd, args)
		},
		ValidArgsFunction: a.completeContainers,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.container, f.ref = args[0], args[1]
			if err := f.check(); err != nil {
				return err
			}
			return a.checkpoint(cmd, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.leaveRunning, "leave-running", false, "let the container go on after it was dumped")
	flags.BoolVar(&f.remove, "rm", false, "remove the container after it has ended and the snapshot is complete, and pushed if --push is given")
	flags.BoolVar(&f.push, "push", false, "send the snapshot to its registry")
	flags.StringVar(&f.signKey, "sign-key", "", "sign the snapshot with the private key in this file, as cryo sign does")
	flags.BoolVar(&f.tcp, "tcp-established", false, "save established TCP connections")
	flags.BoolVar(&f.locks, "file-locks", false, "save locks on files")
	flags.BoolVar(&f.externalUnix, "ext-unix-sk", false, "allow unix sockets that are connected to outside of the container")
	flags.StringVar(&f.parent, "parent", "", "snapshot to share unchanged memory with, or none (default: the container's last)")
	flags.StringVar(&f.compression, "compression", "zstd", "compression of memory: zstd (its fastest level), or none, for links faster than 250 MB/s a core")
	flags.StringVar(&f.segmentSize, "segment-size", "", "memory that one layer of the snapshot covers, a power of two (default 64MiB; 256MiB with GPUs, or more than 16 GiB of memory)")
	flags.DurationVar(&f.gpuTimeout, "gpu-timeout", 0, "time for processes to end their work on GPUs (default: timeout of [gpu] in the configuration, 10s)")
	flags.StringArrayVar(&f.force, "force", nil, "override a rule that refuses containers with GPUs, by its name, or all")
	flags.StringVar(&f.gpuEngine, "gpu-engine", "", "how device memory is saved: driver, or keeper (default: as the container was created)")
	flags.IntVar(&f.preDump, "pre-dump", 0, fmt.Sprintf("rounds in which memory is read before the freeze, up to %d; 1 without a number", checkpoint.MaxRounds))
	flags.Lookup("pre-dump").NoOptDefVal = "1"
	flags.IntVar(&f.workers, "workers", 0, "goroutines that compress and hash (default: one for each core)")
	_ = cmd.RegisterFlagCompletionFunc("force", completeRules(gpuRules())) // fails only for flags that there are not
	_ = cmd.RegisterFlagCompletionFunc("gpu-engine", cobra.FixedCompletions([]cobra.Completion{image.DriverEngine, image.KeeperEngine}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("parent", a.completeRefs(math.MaxInt))
	_ = cmd.RegisterFlagCompletionFunc("gpu-timeout", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("pre-dump", cobra.NoFileCompletions)
	f.registry.register(cmd)
	return cmd
}

// check looks at everything that can be wrong before the container is touched.
func (f *checkpointFlags) check() error {
	wrong := func(format string, args ...any) error {
		return &usageError{command: "cryo checkpoint", problem: fmt.Sprintf(format, args...)}
	}
	if archive.IsLocation(f.ref) {
		return wrong("a snapshot is taken into the local store; use cryo push to write it to %s", f.ref)
	}
	if f.remove && f.leaveRunning {
		return wrong("--rm removes a container that has ended, and with --leave-running it goes on")
	}
	var err error
	if f.normalized, err = store.Normalize(f.ref); err != nil {
		return err
	}
	if f.parent != "" && f.parent != "none" {
		if _, err := store.Normalize(f.parent); err != nil {
			return err
		}
	}
	if !slices.Contains([]string{"zstd", "none"}, f.compression) {
		return wrong("--compression %q is neither zstd nor none", f.compression)
	}
	if f.segmentSize != "" {
		if f.segmentBytes, err = parseSize(f.segmentSize); err != nil {
			return wrong("--segment-size: %v", err)
		}
		if f.segmentBytes < 1<<20 || f.segmentBytes > 16<<30 || bits.OnesCount64(uint64(f.segmentBytes)) != 1 {
			return wrong("--segment-size %s is not a power of two between 1 MiB and 16 GiB", f.segmentSize)
		}
	}
	if f.gpuTimeout < 0 || f.gpuTimeout > time.Hour {
		return wrong("--gpu-timeout %s is not between 0 and 1h", f.gpuTimeout)
	}
	if !slices.Contains([]string{"", image.DriverEngine, image.KeeperEngine}, f.gpuEngine) {
		return wrong("--gpu-engine %q is neither driver nor keeper", f.gpuEngine)
	}
	if err := gpu.CheckForce(f.force); err != nil {
		return err
	}
	if f.preDump < 0 || f.preDump > checkpoint.MaxRounds {
		return wrong("--pre-dump %d is not between 0 and %d", f.preDump, checkpoint.MaxRounds)
	}
	if f.workers < 0 {
		return wrong("--workers %d is negative", f.workers)
	}
	return nil
}

// packOptions are the choices about segments.
func (f *checkpointFlags) packOptions(a *app) image.PackOptions {
	return image.PackOptions{SegmentSize: f.segmentBytes, Compression: f.compression, Workers: f.workers, Parent: f.opened, Progress: a.report()}
}

// String is the part of a line about the freeze; empty without GPUs.
func (g *gpuSeconds) String() string {
	if g == nil {
		return ""
	}
	text := fmt.Sprintf("GPU locked in %s, saved in %s, ", seconds(g.Lock), seconds(g.Save))
	if g.Bytes > 0 {
		text += fmt.Sprintf("%s of it handed over in %s, ", size(g.Bytes), seconds(g.Devices))
	}
	if g.Load > 0 {
		text += fmt.Sprintf("loaded in %s, ", seconds(g.Load))
	}
	return text
}

// checkpoint takes the snapshot, names it, and sends it away if that is wanted.
func (a *app) checkpoint(cmd *cobra.Command, f checkpointFlags) error {
	ctx := cmd.Context()
	options, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	var key *signature.PrivateKey
	if f.signKey != "" { // before the container is touched
		if key, err = a.readKey(ctx, f.signKey); err != nil {
			return err
		}
	}
	s, err := a.store()
	if err != nil {
		return err
	}
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "containerd", client)
	f.sender = &sender{}
	if f.push {
		a.warnHub(f.ref)
		if f.sender, err = newSender(ctx, s, f.ref, options); err != nil {
			return err
		}
		defer f.sender.close()
		a.progress.waitsFor("push", f.sender.pushWaits)
	}
	a.progress.waitsFor("dump", f.sender.dumpWaits)
	a.progress.waitsFor("devices", f.sender.devicesWaits)
	desc, result, err := a.take(ctx, client, s, f)
	if err != nil {
		return err
	}
	err = a.signAndPush(ctx, s, desc, key, &result, f)
	if err == nil && f.remove && result.lost == nil {
		if err = removeEnded(context.WithoutCancel(ctx), client, result.Container); err != nil {
			err = &keptError{container: f.container, ref: f.ref, digest: result.Digest, next: "remove the container with " + a.removal(result), err: err}
		}
		result.Removed = err == nil
	}
	a.progress.stop()
	if result.lost != nil {
		err = &lostError{container: result.Container, ref: f.ref, digest: result.Digest, err: errors.Join(result.lost, err)}
	}
	if a.json {
		result.Error = a.errorReport(ctx, err)
		return errors.Join(a.printJSON(result), err)
	}
	a.printTaken(f.ref, result)
	if err == nil && result.Removed {
		a.line("%s has ended and is removed", f.container)
	} else if err == nil && !result.Running && result.madeBy != kubernetes {
		a.line("%s has ended; to remove it: %s", f.container, a.removal(result))
	}
	return err
}

// removeEnded removes a container that has ended, and its root file system.
func removeEnded(ctx context.Context, client *containerd.Client, id string) error {
	container, err := client.LoadContainer(ctx, id)
	if err == nil {
		err = restore.RemoveTask(ctx, container)
	}
	if err == nil {
		err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	if restore.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	return nil
}

// removal is the command that removes the container of which a snapshot was taken.
func (a *app) removal(r checkpointResult) string {
	address := ""
	if a.address != environment("CONTAINERD_ADDRESS", defaults.DefaultAddress) {
		address = " --address " + a.address
	}
	if r.madeBy == nerdctl {
		return "nerdctl" + address + " --namespace " + a.namespace + " rm " + r.Container
	}
	return "ctr" + address + " --namespace " + a.namespace + " containers rm " + r.Container
}

// signAndPush does what is to be done with a snapshot that is safe here.
func (a *app) signAndPush(ctx context.Context, s *store.Store, desc ocispec.Descriptor, key *signature.PrivateKey, result *checkpointResult, f checkpointFlags) (err error) {
	kept := keptError{container: f.container, running: result.Running, ref: f.ref, digest: result.Digest}
	if key != nil {
		if _, err := signLocal(ctx, s, desc, key); err != nil {
			kept.err, kept.next = fmt.Errorf("sign %s: %w", f.ref, err), "sign it with cryo sign "+f.ref+" --key "+f.signKey
			return &kept
		}
		result.Signed = key.Public.Fingerprint()
	}
	if !f.push {
		return nil
	}
	if result.Push, kept.err = f.sender.finish(ctx, desc); kept.err != nil {
		kept.next = "push it with cryo push " + f.ref
		return &kept
	}
	result.Pushed = true
	a.stages.done(ctx, "the snapshot is pushed")
	return nil
}

// printTaken prints what a checkpoint came to.
func (a *app) printTaken(ref string, result checkpointResult) {
	a.line("%s", result.Digest)
	a.line("%s: %s of memory in %s, frozen %s (%sdump %s, files %s), packed in %s", ref, size(result.Memory), size(result.Size),
		seconds(result.Freeze), result.GPU, seconds(result.Dump), seconds(result.RootFS), seconds(result.Pack))
	if n := len(result.Rounds); n > 0 {
		var all roundResult
		for _, r := range result.Rounds {
			all.Bytes, all.Seconds = all.Bytes+r.Bytes, all.Seconds+r.Seconds
		}
		a.line("while it ran before, rounds: %d, with %s in %s", n, size(all.Bytes), seconds(all.Seconds))
	}
	if result.Shared > 0 {
		a.line("%s of it are segments of %s", size(result.Shared), short(result.Parent))
	}
	if result.Pushed {
		a.line("pushed to %s: %s, complete %s after the snapshot was here", ref, size(result.Push.Moved), seconds(result.Push.Seconds))
	}
}
