package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/shim/sweep"
)

// newSweep removes what commands that were killed have left. Shims run it; every other command does the same when it begins.
func newSweep(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "sweep",
		Short:   "Remove what killed commands have left",
		Example: "  cryo sweep",
		Hidden:  true,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			ctx, client, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer closing(ctx, "containerd", client)
			work, err := s.Work(ctx) // which removes working directories
			if err != nil {
				return err
			}
			return errors.Join(removeAbandoned(ctx, client, work.Dir), work.Close())
		},
	}
}

// leaveOrder tells a shim how to remove what this command leaves if it is killed.
func (a *app) leaveOrder(work, root string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{self, "--address", a.address, "--namespace", a.namespace, "--root", root}
	if a.configPath != "" {
		args = append(args, "--config", a.configPath)
	}
	return sweep.Order{Args: append(args, "sweep")}.Write(work)
}

// forgetArrivals removes what stands for processes that need segments, of commands whose working directories are gone, where no container is marked as
// one of theirs any more.
func forgetArrivals(ctx context.Context, client *containerd.Client, works string) error {
	entries, err := os.ReadDir(works)
	if err != nil {
		return fmt.Errorf("look into the working directories: %w", err)
	}
	left := map[string]bool{}
	for _, e := range entries {
		if dir, _, ok := strings.Cut(e.Name(), "."); ok && !e.IsDir() && !exists(filepath.Join(works, dir)) {
			left[filepath.Join(works, dir)] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	all, err := client.NamespaceService().List(ctx)
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, ns := range all {
		found, err := client.ContainerService().List(namespaces.WithNamespace(ctx, ns), fmt.Sprintf("labels.%q", workLabel))
		if err != nil {
			return fmt.Errorf("look for abandoned containers: %w", err)
		}
		for _, c := range found {
			dir, _, _ := strings.Cut(c.Labels[workLabel], "@")
			delete(left, dir)
		}
	}
	var failed []error
	for dir := range left {
		failed = append(failed, arrival.Forget(dir))
	}
	return errors.Join(failed...)
}
