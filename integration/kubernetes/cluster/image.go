package cluster

import (
	"context"
	"fmt"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// pushImages pushes the lab's base image, the image for containers with GPUs and the image of sandboxes.
func (c *Cluster) pushImages(ctx context.Context) (err error) {
	if c.Base, err = c.Registry.PushImage(ctx, "base:1", c.Lab.Image()); err != nil {
		return err
	}
	files, err := c.Lab.GPUFiles()
	if err != nil {
		return err
	}
	workload, err := os.ReadFile(c.Lab.Tool("workload"))
	if err != nil {
		return fmt.Errorf("read workload: %w", err)
	}
	layer, err := lab.Layer(append(files, lab.File{Name: "bin/", Mode: 0o755}, lab.File{Name: "bin/workload", Mode: 0o755, Content: workload}))
	if err != nil {
		return err
	}
	if c.GPU, err = c.Registry.Push(ctx, "gpu:1", ocispec.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: []string{"/fake/fakeapp"}}, layer); err != nil {
		return err
	}
	program, err := os.ReadFile(c.Lab.Tool("kubernetes/standin"))
	if err != nil {
		return fmt.Errorf("read the program of sandboxes: %w", err)
	}
	if layer, err = lab.Layer([]lab.File{{Name: "pause", Mode: 0o755, Content: program}}); err != nil {
		return err
	}
	_, err = c.Registry.Push(ctx, pause, ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, layer)
	return err
}
