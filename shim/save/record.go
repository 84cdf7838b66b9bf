package save

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// recordGPUs puts into a snapshot's config what the shim has written beside the images of the container's GPUs. What CDI
// devices of this host had put into its specification is taken out: another host puts in its own.
func recordGPUs(settings config.GPU, c *image.Config, images string, dumped checkpoint.Dumped) error {
	r, err := gpu.ReadRecord(images)
	if err != nil || r == nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return fmt.Errorf("read the runtime specification: %w", err)
	}
	host := gpu.OpenCDI(settings.CDI...)
	c.GPU = &r.GPU
	c.GPU.Seconds = image.GPUSeconds{Lock: dumped.LockSeconds, Checkpoint: dumped.SaveSeconds}
	c.GPU.CDI = host.Find(&spec)
	edits, err := host.Edits(c.GPU.CDI)
	if err != nil {
		return err
	}
	edits.Strip(&spec)
	for _, m := range edits.Mounts {
		c.GPU.Mounts = append(c.GPU.Mounts, m.Destination)
	}
	restore.Forget(&spec)
	if c.Spec, err = json.Marshal(&spec); err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	return nil
}

// recordLock puts into a snapshot's config what a host must have to lock the container's network as CRIU did for the dump in images.
func recordLock(c *image.Config, images string) error {
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return fmt.Errorf("read the runtime specification: %w", err)
	}
	if _, has := criu.NamespaceIn(&spec, specs.NetworkNamespace); !has {
		return nil // CRIU leaves the host's network alone
	}
	lock, err := format.ReadNetworkLock(images)
	if err == nil && lock == format.LockNFTables {
		c.Host.Features = append(c.Host.Features, host.NFTablesLock)
	}
	return err
}
