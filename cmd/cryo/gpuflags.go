package main

import (
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/restore"
)

// gpuFlags choose the GPUs that a snapshot gets.
type gpuFlags struct {
	devices []string // names of CDI devices
	gpus    []string // OLD=NEW

	pairs []restore.GPUPair // of gpus
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
	if err := gpu.ValidateDevices(f.devices); err != nil {
		return err
	}
	for _, text := range f.gpus {
		p, err := restore.ParseGPUPair(text)
		if err != nil {
			return misused("cryo restore", "--gpu %s: %v", text, err)
		}
		f.pairs = append(f.pairs, p)
	}
	return nil
}

// completeDevices completes with the CDI devices of this host.
func (a *app) completeDevices(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	settings, err := a.config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return gpu.OpenCDI(settings.GPU.CDI...).Names(), cobra.ShellCompDirectiveNoFileComp
}
