package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/daemon"
)

// completeRefs has the shell complete the first most arguments with references of the local store, those left out that
// are on the command line already.
func (a *app) completeRefs(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		s, err := a.store()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		tags, err := s.Tags(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var refs []cobra.Completion
		for _, t := range tags {
			if ref := store.Familiar(t.Ref); !slices.Contains(args, ref) {
				refs = append(refs, ref)
			}
		}
		return refs, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRules completes the value of --force.
func completeRules(rules []string) cobra.CompletionFunc {
	return cobra.FixedCompletions(append(rules, "all"), cobra.ShellCompDirectiveNoFileComp)
}

// completeContainers completes the first argument with the names of containers.
func (a *app) completeContainers(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, client, err := a.connect(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer closing(ctx, "containerd", client)
	all, err := client.ContainerService().List(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	for _, c := range all {
		if name := c.Labels[daemon.NameLabel]; name != "" {
			names = append(names, name)
		} else {
			names = append(names, c.ID)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// flagValues are the values of flags that have few.
var flagValues = map[string][]cobra.Completion{
	"pull":        {"missing", "always", "never"},
	"compression": {"zstd", "none"},
	"progress":    {progressAuto, progressJSON, progressNone},
	"allow":       {"mounts", "devices", "capabilities", "namespaces", "privileges", "all"},
}

// fileFlags are those whose value is a file or directory.
var fileFlags = []string{"config", "root", "address", "tlscacert", "sign-key", "key", "network-ns", "kubeconfig", "prewarm", "host", "from", "configuration"}

// completeFlags has the shell complete values of flags, and names of files only where the value is one.
func completeFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
	complete := func(f *pflag.Flag) {
		if _, has := cmd.GetFlagCompletionFunc(f.Name); has || slices.Contains(fileFlags, f.Name) {
			return
		}
		of := cobra.FixedCompletions(flagValues[f.Name], cobra.ShellCompDirectiveNoFileComp)
		_ = cmd.RegisterFlagCompletionFunc(f.Name, of) // fails only for flags that there are not
	}
	cmd.LocalNonPersistentFlags().VisitAll(complete)
	if !cmd.HasParent() {
		cmd.PersistentFlags().VisitAll(complete)
	}
}
