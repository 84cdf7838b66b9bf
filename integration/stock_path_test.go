package integration

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestStockImagePath dumps into a directory with "ctr task checkpoint --image-path", and restores from the directory.
// The directory is the user's and stays.
func TestStockImagePath(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	before := await(t, a, id)
	images := filepath.Join(t.TempDir(), "images")
	must(t, a.Ctr(t.Context(), "tasks", "checkpoint", "--exit", "--image-path", images, id))
	eventually(t, "the container ends", 30*time.Second, func() bool {
		_, status, _ := a.Task(t.Context(), id)
		return status == "STOPPED"
	})
	again := a.Ctr(t.Context(), "tasks", "checkpoint", "--image-path", images, id)
	if again.Err() == nil {
		t.Error("a second checkpoint went into the same directory")
	}
	restoreTask(t, a, id, containerd.WithRestoreImagePath(images))
	wentOn(t, before, await(t, a, id))
	if _, err := os.Stat(filepath.Join(images, "inventory.img")); err != nil {
		t.Errorf("the user's images: %v", err)
	}
}

// restoreTask makes a new task for a container whose task has ended, with its writable layer as it is.
func restoreTask(t *testing.T, h *lab.Host, id string, from containerd.NewTaskOpts) {
	t.Helper()
	ctx := inDefault(t)
	must(t, h.Ctr(t.Context(), "tasks", "delete", id))
	container, err := client(t, h).LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.NewTask(ctx, cio.NullIO, from)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestStockPlainCheckpoint is "ctr task checkpoint" without a directory: containerd keeps the images as content.
func TestStockPlainCheckpoint(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	before := await(t, a, id)
	ref := strings.TrimSpace(must(t, a.Ctr(t.Context(), "tasks", "checkpoint", "--exit", id)).Stdout)
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "delete", ref) })
	image, err := client(t, a).GetImage(inDefault(t), ref)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container ends", 30*time.Second, func() bool {
		_, status, _ := a.Task(t.Context(), id)
		return status == "STOPPED"
	})
	restoreTask(t, a, id, containerd.WithTaskCheckpoint(image))
	wentOn(t, before, await(t, a, id))
}

// TestStockNerdctl sends what "nerdctl checkpoint create" and "nerdctl start --checkpoint" send: a checkpoint image
// that is unpacked into a directory, and the directory as a blob again.
func TestStockNerdctl(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, []string{"--runtime", "io.containerd.runc.cryo.v1"}, "workload", "count", "--memory", "8")
	before := await(t, a, id)
	c, ctx := client(t, a), inDefault(t)
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	image, err := task.Checkpoint(ctx, func(i *containerd.CheckpointTaskInfo) error {
		i.Options = &options.CheckpointOptions{Exit: true}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpackCheckpoint(t, c, image, dir)
	// At once, or the blob that is made of it below is taken for this one, and goes with it.
	if err := c.ImageService().Delete(ctx, image.Name(), images.SynchronousDelete()); err != nil {
		t.Error(err)
	}
	eventually(t, "the container ends", 30*time.Second, func() bool {
		_, status, _ := a.Task(t.Context(), id)
		return status == "STOPPED"
	})
	blob := packCheckpoint(t, c, dir)
	restoreTask(t, a, id, func(_ context.Context, _ *containerd.Client, info *containerd.TaskInfo) error {
		info.Checkpoint = &types.Descriptor{MediaType: blob.MediaType, Digest: blob.Digest.String(), Size: blob.Size}
		return nil
	})
	wentOn(t, before, await(t, a, id))
}

// unpackCheckpoint unpacks CRIU's images from a checkpoint image of containerd.
func unpackCheckpoint(t *testing.T, c *containerd.Client, image containerd.Image, dir string) {
	t.Helper()
	ctx := inDefault(t)
	index, err := images.Children(ctx, c.ContentStore(), image.Target())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range index {
		if m.MediaType != images.MediaTypeContainerd1Checkpoint {
			continue
		}
		r, err := c.ContentStore().ReaderAt(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := archive.Apply(ctx, dir, content.NewReader(r)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%s holds no checkpoint", image.Name())
}

// packCheckpoint makes a checkpoint blob of a directory.
func packCheckpoint(t *testing.T, c *containerd.Client, dir string) ocispec.Descriptor {
	t.Helper()
	ctx, done, err := c.WithLease(inDefault(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = done(cleanupContext(t)) })
	tar := archive.Diff(ctx, "", dir)
	defer tar.Close()
	w, err := c.ContentStore().Writer(ctx, content.WithRef(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	digester := digest.Canonical.Digester()
	size, err := io.Copy(io.MultiWriter(w, digester.Hash()), tar)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(ctx, size, digester.Digest()); err != nil && !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return ocispec.Descriptor{MediaType: images.MediaTypeContainerd1Checkpoint, Digest: digester.Digest(), Size: size}
}
