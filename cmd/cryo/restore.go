package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// restoreFlags are the choices of cryo restore.
type restoreFlags struct {
	ref, name string
	choices   worker.Choices
	mounts    []string // of choices
	gpu       gpuFlags
	registry  registryFlags
	group     groupFlags
	addresses []string // OLD=NEW
}

func newRestore(a *app) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore REF",
		Short: "Make a running container out of a snapshot",
		Long: `restore makes a container of the snapshot REF, which goes on where it was. It fetches what is missing, the base
image included. ctr and nerdctl treat the container as one of their own.

First the snapshot is compared with this host (cryo inspect --check). Bind mounts, devices, capabilities and
namespaces beyond those of a plain container are refused unless --allow grants them: whoever made the snapshot
chose them. A mount whose source is given with --mount is granted by that.

The container runs at once. Its memory is filled in while it runs, first what its processes wait for. A
checkpoint or a pause waits until all is there. If memory turns out to be damaged, the container is ended, and
cryo ps says why. All memory is read and verified before the container runs with --eager, if the kernel cannot
fill it in later, if the container has a user namespace, and if its processes share much memory since they
were forked.

One snapshot may be restored many times. So memory that fork(2) would wipe in a child (madvise(2),
MADV_WIPEONFORK), where libraries keep random state that no two processes may share, is wiped in each restore.
With --move it stays as it was. Use that only if the snapshot's container has ended and nothing else is restored
from the snapshot, on any host.

From a registry, the container runs while its memory is pulled. The command ends when the container runs, or
with --wait when all memory is in the local store. Until the container runs, Ctrl-C undoes everything; then it
no longer depends on the command. If the registry brings nothing for an hour (registry-timeout of [restore] in
the configuration), the container is ended; what has come is kept for the next attempt. With --pull-first all
memory is here before the container is made. That is also done with --eager, and if the registry does not
serve parts of blobs.

A container with GPUs goes on when all its memory is filled in and its GPUs are loaded. It gets GPUs by CDI:
those of this host that have the names its own had, or those of --device, which grants them. Each of its GPUs
becomes one of these, in order or as --gpu says. Another GPU must be of the same architecture and have room
for the memory that was in use. Device memory that cryo prewarm --gpu has loaded on these GPUs is attached
instead of loaded, for the first restore only ("gpuPrewarmed" in --json).

If the snapshot has a pool (cryo prewarm --paused), a container is taken out of that: its name is printed, and it runs some
milliseconds after the request ("pool" in --json). With --name, unless nerdctl made the snapshot's container, and
with most other flags a container is restored instead. cmd/cryo/README.md says more.

A snapshot that no key of [trust] in the configuration has signed is restored with a warning. It is refused
(exit code 7), before anything else of it is read, if the configuration or --require-signature asks for a
signature.

With --group, given once for each member, all members of a group are restored, each on the host that is named,
and run at once when all are ready. If one cannot be restored, none runs. Where addresses have changed, both ends
of each connection between members get the new ones. See cmd/cryo/GROUPS.md.`,
		Example: `  cryo restore registry.example.com/snapshots/cache:warm
  cryo restore registry.example.com/snapshots/cache:warm --name cache2 --log-uri file:///var/log/cache2.log
  cryo restore registry.example.com/snapshots/cache:warm --require-signature
  cryo restore app:warm --mount type=bind,src=/srv/data,dst=/data
  cryo restore app:drained --move
  cryo restore registry.example.com/jobs/solver:step100 --group rank0=node7 --group rank1=node8
  cryo restore app:warm --allow capabilities --allow devices
  cryo restore llm:ready --device nvidia.com/gpu=1
  cryo restore llm:ready --device nvidia.com/gpu=2 --device nvidia.com/gpu=3 --gpu 0=3 --gpu 1=2`,
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.ref = args[0]
			if err := f.check(); err != nil {
				return err
			}
			if f.group.given() {
				if err := f.checkGroup(); err != nil {
					return err
				}
				return a.restoreGroup(cmd.Context(), f)
			}
			return a.restore(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "name of the container (default: the name it had)")
	flags.StringVar(&f.choices.Pull, "pull", "missing", "when to fetch the snapshot: missing (if it is not in the local store), always, or never")
	flags.StringArrayVar(&f.mounts, "mount", nil, "give a bind mount of the container another source: type=bind,src=PATH,dst=PATH, or SOURCE:PATH")
	flags.StringArrayVar(&f.choices.Env, "env", nil, "set a variable, `NAME=VALUE`: programs that are started later in the container have it, and the restored one reads it in restored.json")
	flags.StringArrayVar(&f.choices.Allow, "allow", nil, "grant the snapshot mounts, devices, capabilities, namespaces, privileges or all")
	flags.StringArrayVar(&f.choices.Force, "force", nil, "override a rule of cryo inspect --check by its name")
	flags.StringVar(&f.choices.NetworkNS, "network-ns", "", "path of the network namespace, if the container had one with a path")
	flags.BoolVar(&f.choices.Eager, "eager", false, "read all memory before the container runs")
	flags.BoolVar(&f.choices.PullFirst, "pull-first", false, "pull all memory before the container runs: it starts later, and does not depend on the registry")
	flags.BoolVar(&f.choices.Move, "move", false, "the container goes on from this snapshot nowhere else: keep memory that fork would wipe in a child")
	flags.BoolVar(&f.choices.Wait, "wait", false, "wait until all memory is in the local store; Ctrl-C then ends the wait and not the container")
	requireSignature(cmd, &f.choices.RequireSignature)
	flags.StringVar(&f.choices.Log, "log-uri", "", "where output goes: file:///PATH or binary:///PATH (default: cryo logs shows it, or attach)")
	flags.StringVar(&f.choices.Runtime, "runtime", "", "runtime, by containerd's name (default: as in the snapshot, if that is cryo's)")
	flags.StringVar(&f.choices.Snapshotter, "snapshotter", environment("CONTAINERD_SNAPSHOTTER", ""), "containerd's snapshotter (CONTAINERD_SNAPSHOTTER; default: as in the snapshot, if it is here)")
	_ = cmd.RegisterFlagCompletionFunc("force", completeRules(host.Forcible())) // fails only for flags that there are not
	f.gpu.register(cmd, a)
	f.group.register(cmd, "HOST[/CONTAINER]")
	flags.StringArrayVar(&f.addresses, "address-map", nil, "an address that a member of a group had and the one that it has now, OLD=NEW (default: paired by their order)")
	f.registry.register(cmd)
	return cmd
}

// check looks at everything that can be wrong before anything is looked up.
func (f *restoreFlags) check() error {
	wrong := func(format string, args ...any) error {
		return misused("cryo restore", format, args...)
	}
	if !slices.Contains([]string{restore.PullMissing, restore.PullAlways, restore.PullNever}, f.choices.Pull) {
		return wrong("--pull %q is none of missing, always, never", f.choices.Pull)
	}
	if _, err := restore.Grants(f.choices.Allow); err != nil {
		return err
	}
	for _, m := range f.mounts {
		r, err := restore.ParseMount(m)
		if err != nil {
			return wrong("--mount %s: %v", m, err)
		}
		f.choices.Mounts = append(f.choices.Mounts, r)
	}
	for _, v := range f.choices.Env {
		if err := worker.ParseVariable(v); err != nil {
			return wrong("--env: %v", err)
		}
	}
	if err := f.gpu.check(); err != nil {
		return err
	}
	if f.choices.NetworkNS != "" && !filepath.IsAbs(f.choices.NetworkNS) {
		return wrong("--network-ns %s is not an absolute path", f.choices.NetworkNS)
	}
	if log := f.choices.Log; log != "" {
		u, err := url.Parse(log)
		if err != nil || !slices.Contains([]string{"file", "binary"}, u.Scheme) || u.Host != "" || !filepath.IsAbs(u.Path) {
			return wrong("--log-uri %s is neither file:///PATH nor binary:///PATH", log)
		}
	}
	return nil
}

// restore makes a running container of a snapshot.
func (a *app) restore(ctx context.Context, f restoreFlags) error {
	o, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
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
	if f.ref, err = a.named(ctx, s, f.ref, f.choices.Pull); err != nil {
		return err
	}
	f.choices.Devices, f.choices.GPUs = f.gpu.devices, f.gpu.gpus
	f.choices.Registry = passedOn(o)
	c, err := a.restoreCommand(s)
	if err != nil {
		return err
	}
	c.Client, c.Hooks = client, a.hooks()
	c.Ref, c.Name, c.Namespace, c.Choices, c.Refilling = f.ref, f.name, a.namespace, f.choices, a.refilling(s.Root())
	r, err := c.Run(ctx)
	if err != nil {
		return err
	}
	a.printDone(r, func() error {
		a.line("%s", r.Container)
		return nil
	})
	return nil
}

// restoreCommand returns a command that restores from the store s.
func (a *app) restoreCommand(s *store.Store) (c restore.Command, err error) {
	c = restore.Command{Store: s, Address: a.address}
	if c.Config, err = a.config(); err != nil {
		return c, err
	}
	c.Config.Root = s.Root()
	if c.Environment, err = restore.Environment(s, a.configPath); err != nil {
		return c, err
	}
	c.Debug = a.debugLine()
	return c, nil
}

// debugLine returns the function that prints what the process logs that works for the command; nil: the user does not want it.
func (a *app) debugLine() func(line string) {
	if !a.debug {
		return nil
	}
	return func(line string) { fmt.Fprint(a.stderr, line) }
}
