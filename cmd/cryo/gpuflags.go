package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/standby"
)

// gpuFlags choose the GPUs that a snapshot gets.
type gpuFlags struct {
	devices []string // names of CDI devices
	gpus    []string // OLD=NEW

	pairs  []gpuPair      // of gpus
	loaded []standby.Info // of the snapshot, by cryo prewarm --gpu
}

func (f *gpuFlags) register(cmd *cobra.Command, a *app) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.devices, "device", nil, "CDI device that gives the container a GPU, such as nvidia.com/gpu=0 (default: those it had; naming it grants it)")
	flags.StringArrayVar(&f.gpus, "gpu", nil, "replace GPU OLD of the snapshot by NEW of this host: OLD=NEW, by UUID or number (default: in order)")
	_ = cmd.RegisterFlagCompletionFunc("device", a.completeDevices) // fails only for flags that there are not
	_ = cmd.RegisterFlagCompletionFunc("gpu", cobra.NoFileCompletions)
}

// check looks at everything that can be wrong before anything is looked up.
func (f *gpuFlags) check() error {
	if err := cdi.Validate(f.devices); err != nil {
		return err
	}
	for _, text := range f.gpus {
		p, err := parseGPUPair(text)
		if err != nil {
			return &usageError{command: "cryo restore", problem: fmt.Sprintf("--gpu %s: %v", text, err)}
		}
		f.pairs = append(f.pairs, p)
	}
	return nil
}

// gpuPair is what --gpu says: a GPU of the snapshot and one of this host, each by UUID or number.
type gpuPair struct{ oldID, newID string }

func (p gpuPair) String() string { return p.oldID + "=" + p.newID }

func parseGPUPair(text string) (gpuPair, error) {
	var p gpuPair
	var ok bool
	if p.oldID, p.newID, ok = strings.Cut(text, "="); !ok {
		return p, fmt.Errorf("is not of the form OLD=NEW")
	}
	for _, id := range []string{p.oldID, p.newID} {
		if _, err := keeper.ParseUUID(id); err == nil {
			continue
		}
		if n, err := strconv.Atoi(id); err != nil || n < 0 || strconv.Itoa(n) != id {
			return p, fmt.Errorf("%q is neither the number of a GPU nor its UUID", id)
		}
	}
	return p, nil
}

// from gives the place of the old GPU among those of the snapshot; its number is that place.
func (p gpuPair) from(old []image.GPUDevice) (int, error) {
	i := slices.IndexFunc(old, func(d image.GPUDevice) bool { return d.UUID == p.oldID })
	if n, err := strconv.Atoi(p.oldID); err == nil && n < len(old) {
		i = n
	}
	if i < 0 {
		var have []string
		for i, d := range old {
			have = append(have, fmt.Sprintf("%d (%s)", i, d.UUID))
		}
		return 0, &usageError{command: "cryo restore", problem: fmt.Sprintf("--gpu %s: the snapshot has no GPU %s, but %s", p, p.oldID, strings.Join(have, ", "))}
	}
	return i, nil
}

// to gives the new GPU; its number is that of nvidia-smi on this host. The container must have it.
func (p gpuPair) to(host, container []keeper.Device) (keeper.Device, error) {
	is := func(d keeper.Device) bool { return d.UUID == p.newID || strconv.Itoa(d.Index) == p.newID }
	i := slices.IndexFunc(host, is)
	if i < 0 {
		return keeper.Device{}, &usageError{command: "cryo restore", problem: fmt.Sprintf("--gpu %s: this host has no GPU %s", p, p.newID)}
	}
	if !slices.ContainsFunc(container, is) {
		return keeper.Device{}, &usageError{command: "cryo restore", problem: fmt.Sprintf("--gpu %s: the container does not get GPU %s: name it with --device too", p, p.newID)}
	}
	return host[i], nil
}

// completeDevices completes with the CDI devices of this host.
func (a *app) completeDevices(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	settings, err := a.config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return cdi.Open(settings.GPU.CDI...).Names(), cobra.ShellCompDirectiveNoFileComp
}
