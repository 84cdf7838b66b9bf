package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/log"
	"github.com/spf13/cobra"
)

// run executes the command line args and gives the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	a.progress.stop()
	if err == nil {
		return exitOK
	}
	err = interrupted(ctx, err)
	report(a.stderr, err)
	if a.json = a.json || slices.Contains(args, "--json"); a.json && !a.printed { // an error may come before flags are read
		a.format = nil
		if err := a.printJSON(failedReport{a.errorReport(ctx, err)}); err != nil {
			report(a.stderr, err)
		}
	}
	return exitOf(err).code
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "cryo",
		Short: "Snapshot running containers, and restore them on any host",
		Long: `cryo takes a snapshot of a running container: its processes, their memory, what they changed in its files.
A snapshot is an OCI artifact; it is kept locally, pushed to and pulled from registries, and restored on this or
another host, where the container goes on as if nothing had happened.`,
		Example: `  ctr run -d --runtime io.containerd.runc.cryo.v1 docker.io/library/redis:alpine cache
  cryo checkpoint cache registry.example.com/snapshots/cache:warm --push
  cryo restore registry.example.com/snapshots/cache:warm --name cache2`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			err := misused(cmd.CommandPath(), "there is no command %q", args[0])
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				err.Advice = "did you mean " + strings.Join(like, " or ") + "?"
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.prepare(cmd)
		},
	}
	root.SuggestionsMinimumDistance = 2
	root.Version = versions().Version
	root.SetVersionTemplate("cryo {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return misused(cmd.CommandPath(), "%v", err)
	})
	f := root.PersistentFlags()
	f.StringVarP(&a.namespace, "namespace", "n", environment("CONTAINERD_NAMESPACE", "default"), "containerd's namespace (CONTAINERD_NAMESPACE)")
	f.StringVarP(&a.address, "address", "a", environment("CONTAINERD_ADDRESS", defaults.DefaultAddress), "containerd's socket (CONTAINERD_ADDRESS)")
	f.StringVar(&a.root, "root", os.Getenv("CRYO_ROOT"), "where snapshots and working directories are kept (CRYO_ROOT; default: root of the configuration, /var/lib/cryo)")
	f.StringVar(&a.configPath, "config", "", "configuration file (CRYO_CONFIG; default /etc/cryo/config.toml)")
	f.BoolVar(&a.debug, "debug", false, "log each stage with its time, each request and each process that is started, on standard error")
	f.BoolVar(&a.json, "json", false, "print JSON")
	f.StringVar(&a.showProgress, "progress", progressAuto, "show progress on standard error: auto (on a terminal), json (a line of JSON for each change), or none")
	root.AddCommand(
		newCheckpoint(a), newRestore(a), newPush(a), newPull(a), newList(a), newContainers(a), newLogs(a), newInspect(a), newVerify(a), newSign(a), newTag(a), newRemove(a), newDiskUsage(a), newPrune(a), newPrewarm(a), newNode(a),
		newDoctor(a), newVersion(a), newExitCodes(), newReferences(), newGroupMember(a),
	)
	completeFlags(root)
	return root
}

func environment(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// prepare runs before every subcommand.
func (a *app) prepare(cmd *cobra.Command) error {
	if !slices.Contains(flagValues["progress"], a.showProgress) {
		return misused(cmd.CommandPath(), "--progress %q is none of %s", a.showProgress, strings.Join(flagValues["progress"], ", "))
	}
	a.progress.json = a.showProgress == progressJSON
	if !a.debug {
		return log.SetLevel("error")
	}
	return errors.Join(log.SetFormat(log.TextFormat), log.SetLevel("debug")) // with fractions of seconds
}

// exactly wants n arguments, which names tells apart in the message.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between wants at least least of the named arguments and no more than all.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= len(names) {
			return nil
		}
		if len(args) < least {
			return misused(cmd.CommandPath(), "missing %s", strings.Join(names[len(args):least], " and "))
		}
		return misused(cmd.CommandPath(), "too many arguments: %s", strings.Join(args, " "))
	}
}
