package restore

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// checkRecord refuses images that say something of GPUs to the shim of which the config, by which everything was decided,
// says nothing, and the reverse.
func checkRecord(c image.Config, images string) error {
	r, err := gpu.ReadRecord(images)
	if err != nil {
		return err
	}
	if (r == nil) != (c.GPU == nil) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about GPUs: %w", errdefs.ErrDataLoss)
	}
	if r == nil {
		return nil
	}
	if r.Engine != c.GPU.Engine || !slices.Equal(r.Pieces(), c.GPU.Pieces()) || !reflect.DeepEqual(r.Library, c.GPU.Library) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about the memory of GPUs: %w", errdefs.ErrDataLoss)
	}
	return nil
}
