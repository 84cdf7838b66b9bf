// Platform is a program that uses cryo by package shim/cryo, as a platform does. It does one thing, which its first argument names, and prints what came of it as JSON.
//
//	platform checkpoint [--cancel ACTIVITY] CONTAINER REF    # which goes on; pushed
//	platform keep CONTAINER REF [CONTAINER REF]...           # all at once, each tried before its container ends
//	platform prewarm [--gpu] REF
//	platform inspect REF
//	platform restore [--mount DESTINATION] [--start] CONTAINER REF IMAGE ARG...
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/shim/cryo"
)

// answer is what is printed.
type answer struct {
	Result     any      `json:"result,omitempty"`
	Activities []string `json:"activities,omitempty"` // of which there was progress
	Error      *failed  `json:"error,omitempty"`
}

// failed is an error.
type failed struct {
	Message  string `json:"message"`
	Rule     string `json:"rule,omitempty"`
	Hint     string `json:"hint,omitempty"`
	Kind     string `json:"kind"` // of errdefs
	Canceled bool   `json:"canceled,omitempty"`
}

func main() {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), namespaces.Default), time.Minute)
	defer cancel()
	var a answer
	result, err := a.do(ctx, os.Args[1:])
	if err != nil {
		a.Error = &failed{err.Error(), cryo.Rule(err), cryo.Hint(err), errdefs.Resolve(err).Error(), errors.Is(err, context.Canceled)}
	}
	a.Result = result
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		fmt.Fprintln(os.Stderr, "platform:", err)
		os.Exit(1)
	}
}

var plain = cryo.Registry{PlainHTTP: true}

// do does what the arguments ask for.
func (a *answer) do(ctx context.Context, args []string) (any, error) {
	flags := flag.NewFlagSet("platform", flag.ExitOnError)
	cancelled := flags.String("cancel", "", "cancel when there is progress of this activity")
	mount := flags.String("mount", "", "mount a tmpfs there")
	gpu := flags.Bool("gpu", false, "load device memory")
	start := flags.Bool("start", false, "start the container where it cannot be restored")
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	do, args := args[0], flags.Args()
	c, err := cryo.New(cryo.Options{})
	if err != nil {
		return nil, err
	}
	switch {
	case do == "checkpoint" && len(args) == 2:
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var seen sync.Map
		hooks := cryo.Hooks{Progress: func(p cryo.Progress) {
			seen.Store(p.Activity, true)
			if p.Activity == *cancelled {
				cancel()
			}
		}}
		r, err := c.Checkpoint(ctx, args[0], args[1], cryo.CheckpointOptions{LeaveRunning: true, Push: true, Registry: plain, Hooks: hooks})
		seen.Range(func(activity, _ any) bool {
			a.Activities = append(a.Activities, activity.(string))
			return true
		})
		return r, err
	case do == "keep" && len(args) > 0 && len(args)%2 == 0:
		taken := make([]*cryo.Checkpointed, len(args)/2)
		var group errgroup.Group
		for i := range taken {
			group.Go(func() (err error) {
				taken[i], err = c.Checkpoint(ctx, args[2*i], args[2*i+1], cryo.CheckpointOptions{Verify: true})
				return err
			})
		}
		return taken, group.Wait()
	case do == "prewarm" && len(args) == 1:
		return c.Prewarm(ctx, args[0], cryo.PrewarmOptions{Registry: plain, OnGPU: *gpu})
	case do == "inspect" && len(args) == 1:
		return c.Inspect(ctx, args[0], cryo.InspectOptions{Registry: plain, Check: true, Review: true})
	case do == "restore" && len(args) > 3:
		return restore(ctx, args[0], args[2], args[3:], *mount, cryo.WithRestore(args[1], cryo.RestoreOptions{StartInstead: *start}))
	}
	return nil, fmt.Errorf("platform %s: %w", strings.Join(os.Args[1:], " "), errdefs.ErrInvalidArgument)
}

// restore makes a container, and its task of a snapshot. It returns the process.
func restore(ctx context.Context, id, imageName string, args []string, mount string, option containerd.NewContainerOpts) (_ any, err error) {
	client, err := containerd.New(defaults.DefaultAddress)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	image, err := client.GetImage(ctx, imageName)
	if err != nil {
		return nil, err
	}
	spec := []oci.SpecOpts{oci.WithImageConfigArgs(image, args)}
	if mount != "" {
		spec = append(spec, oci.WithMounts([]specs.Mount{{Destination: mount, Type: "tmpfs", Source: "tmpfs"}}))
	}
	container, err := client.NewContainer(ctx, id, containerd.WithImage(image), containerd.WithNewSnapshot(id, image), containerd.WithNewSpec(spec...), option)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, container.Delete(ctx, containerd.WithSnapshotCleanup))
		}
	}()
	task, err := container.NewTask(ctx, cio.NullIO)
	if err != nil {
		return nil, err
	}
	if err := task.Start(ctx); err != nil {
		_, left := task.Delete(ctx)
		return nil, errors.Join(err, left)
	}
	return task.Pid(), nil
}
