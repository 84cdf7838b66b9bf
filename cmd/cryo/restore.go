package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/restore"
)

// restoreFlags are the choices of cryo restore.
type restoreFlags struct {
	name, pull           string
	mounts, allow, force []string
	networkNS            string
	eager, pullFirst     bool
	requireSignature     bool
	logURI               string
	runtime, snapshotter string
	gpu                  gpuFlags
	registry             registryFlags

	replace []restore.Mount // of mounts
	policy  trust.Policy    // of allow, mounts and networkNS
	log     *url.URL        // of logURI; nil: none
}

type restoreResult struct {
	Container string  `json:"container"`
	Namespace string  `json:"namespace"`
	PID       uint32  `json:"pid"`
	Reference string  `json:"reference"`
	Digest    string  `json:"digest"`
	Image     string  `json:"image"`
	Seconds   float64 `json:"seconds"`         // from reading the snapshot to running
	Running   float64 `json:"running"`         // from the begin to running, what was fetched before included
	Lazy      bool    `json:"lazy"`            // memory is filled in while it runs
	Eager     string  `json:"eager,omitempty"` // why it is not
	Prewarmed bool    `json:"prewarmed"`       // cryo prewarm has kept it ready
	// GPUPrewarmed: what its processes had handed over was on the GPUs already.
	GPUPrewarmed bool          `json:"gpuPrewarmed,omitempty"`
	GPUs         []restoredGPU `json:"gpus,omitempty"`
	Pull         *transfer     `json:"pull,omitempty"`      // where it had to be fetched
	PullFirst    string        `json:"pullFirst,omitempty"` // why it did not run while it was fetched
	Warnings     []string      `json:"warnings"`
}

// restoredGPU says which GPU took the place of which.
type restoredGPU struct {
	Old string `json:"old"` // UUIDs
	New string `json:"new"`
}

func newRestore(a *app) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore REF",
		Short: "Make a running container out of a snapshot",
		Long: `restore makes a container of the snapshot REF and lets it go on where it was. What is missing is fetched, the
base image included. ctr and nerdctl treat the container as one of their own.

Before it runs, the snapshot is compared with this host (cryo inspect --check), and before anything is changed what it asks of the
host is compared with what --allow grants: bind mounts, devices, capabilities and namespaces beyond those of
a plain container are refused unless they are granted, since whoever wrote the snapshot wrote the wish. A mount whose
source is given with --mount is granted by that.

The container runs at once, and its memory is filled in meanwhile, what it waits for first: a checkpoint of it and a pause wait
until all is there. The snapshot may be removed, but if its memory turns out to be damaged the container is ended, and the
log of its shim says why. What cryo prewarm keeps ready is taken from memory. All memory is read and verified before it runs with
--eager, where the kernel cannot do it, where the container has a user namespace, and where processes share much memory since they were
forked. GPUs are loaded, and the container answers, when all its memory is filled in.

A snapshot that no key of [trust] in the configuration has signed is restored with a warning, unless the configuration or --require-signature
asks for a signature: then it is refused before anything else of it is looked at (exit code 7).

From a registry it runs before its memory is here, and its memory is pulled meanwhile, what it waits for first. The command ends when all
is in the local store. Should it be ended before, or the registry fail for longer than is tried again, the container cannot be completed: it
is ended and removed, what has come is kept for the next attempt, and the snapshot is as it was. With --pull-first all is pulled and
verified before the container is made, so that nothing it did can be lost that way. That is also done where the container
does not run before all memory is read, and where the registry does not serve parts of blobs. GPUs are loaded as their memory comes, that of processes
first; nothing that uses a GPU goes on before all of it is loaded.

A container with GPUs gets them by CDI: those of this host that are called as its own were, or those named with --device, which
grants them. Each of its GPUs becomes one of these, in order or as --gpu says. A GPU that it did not have must be of the same
architecture and have room for what it held. What cryo prewarm --gpu has loaded on just these GPUs is attached instead of loaded, once: the
first restore has it, and "gpuPrewarmed" in --json says so.`,
		Example: `  cryo restore registry.example.com/snapshots/cache:warm
  cryo restore registry.example.com/snapshots/cache:warm --name cache2 --log-uri file:///var/log/cache2.log
  cryo restore registry.example.com/snapshots/cache:warm --require-signature
  cryo restore app:warm --mount type=bind,src=/srv/data,dst=/data
  cryo restore app:warm --allow capabilities --allow devices
  cryo restore llm:ready --device nvidia.com/gpu=1
  cryo restore llm:ready --device nvidia.com/gpu=2 --device nvidia.com/gpu=3 --gpu 0=3 --gpu 1=2`,
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.restore(cmd.Context(), args[0], f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "of the container (default: the name it had)")
	flags.StringVar(&f.pull, "pull", "missing", "fetch the snapshot: missing (unless it is in the local store), always, or never")
	flags.StringArrayVar(&f.mounts, "mount", nil, "give a bind mount of the container another source: type=bind,src=PATH,dst=PATH")
	flags.StringArrayVar(&f.allow, "allow", nil, "grant the snapshot mounts, devices, capabilities, namespaces, privileges or all")
	flags.StringArrayVar(&f.force, "force", nil, "override a rule of cryo inspect --check by its name")
	flags.StringVar(&f.networkNS, "network-ns", "", "path of the network namespace to use, where the container had one with a path")
	flags.BoolVar(&f.eager, "eager", false, "read all memory before the container runs")
	flags.BoolVar(&f.pullFirst, "pull-first", false, "pull all memory before the container runs: it does not depend on the registry then, but starts later")
	requireSignature(cmd, &f.requireSignature)
	flags.StringVar(&f.logURI, "log-uri", "", "where output goes: file:///PATH or binary:///PATH (default: nowhere)")
	flags.StringVar(&f.runtime, "runtime", "", "containerd's name of the runtime (default: as in the snapshot, if that is cryo's)")
	flags.StringVar(&f.snapshotter, "snapshotter", environment("CONTAINERD_SNAPSHOTTER", ""), "containerd's snapshotter (CONTAINERD_SNAPSHOTTER; default: as in the snapshot, if it is here)")
	_ = cmd.RegisterFlagCompletionFunc("force", completeRules(fitRules())) // fails only for flags that there are not
	f.gpu.register(cmd, a)
	f.registry.register(cmd)
	return cmd
}

// check looks at everything that can be wrong before anything is looked up.
func (f *restoreFlags) check() error {
	wrong := func(format string, args ...any) error {
		return &usageError{command: "cryo restore", problem: fmt.Sprintf(format, args...)}
	}
	if !slices.Contains([]string{restore.PullMissing, restore.PullAlways, restore.PullNever}, f.pull) {
		return wrong("--pull %q is none of missing, always, never", f.pull)
	}
	for _, name := range f.allow {
		g, err := trust.ParseGrant(name)
		if err != nil {
			return err
		}
		f.policy.Allow = append(f.policy.Allow, g)
	}
	for _, m := range f.mounts {
		r, err := parseMount(m)
		if err != nil {
			return wrong("--mount %s: %v", m, err)
		}
		f.replace = append(f.replace, r)
	}
	if err := f.gpu.check(); err != nil {
		return err
	}
	f.policy.Devices = f.gpu.devices
	if f.networkNS != "" && !filepath.IsAbs(f.networkNS) {
		return wrong("--network-ns %s is not an absolute path", f.networkNS)
	}
	if f.logURI != "" {
		u, err := url.Parse(f.logURI)
		if err != nil || !slices.Contains([]string{"file", "binary"}, u.Scheme) || u.Host != "" || !filepath.IsAbs(u.Path) {
			return wrong("--log-uri %s is neither file:///PATH nor binary:///PATH", f.logURI)
		}
		f.log = u
	}
	return nil
}
