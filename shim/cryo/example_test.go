package cryo_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
	"github.com/cryo-project/cryo/shim/cryo"
)

const ref = "registry.example.com/snapshots/llm:ready"

// A platform takes a snapshot of a container that goes on, and sends it to a registry.
func ExampleClient_Checkpoint() {
	ctx := namespaces.WithNamespace(context.Background(), "platform")
	c, err := cryo.New(cryo.Options{})
	if err != nil {
		log.Fatal(err)
	}
	taken, err := c.Checkpoint(ctx, "llm", ref, cryo.CheckpointOptions{
		LeaveRunning: true, Push: true,
		Registry: cryo.Registry{Username: "platform", Password: os.Getenv("REGISTRY_PASSWORD")},
		Hooks: cryo.Hooks{
			Progress: func(p cryo.Progress) { log.Printf("%s: %d of %d bytes", p.Activity, p.Done, p.Total) },
			Warning:  func(text string) { log.Print(text) },
		},
	})
	switch {
	case errors.Is(err, cryo.ErrLost):
		log.Fatalf("the container is lost: %v", err)
	case taken == nil:
		log.Fatalf("the container runs on, and there is no snapshot: %v (rule %q, hint: %s)", err, cryo.Rule(err), cryo.Hint(err))
	case err != nil:
		log.Fatalf("the snapshot is in the local store alone: %v", err)
	}
	log.Printf("%s stood still for %s", taken.Container, taken.Frozen)
}

// On another host, the platform makes a container that is restored from the snapshot, and starts one without it where that does not fit.
func Example() {
	ctx := namespaces.WithNamespace(context.Background(), "platform")
	c, err := cryo.New(cryo.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ready, err := c.Prewarm(ctx, ref, cryo.PrewarmOptions{RequireSignature: true})
	if err != nil {
		log.Fatalf("%v (rule %q)", err, cryo.Rule(err))
	}
	client, err := containerd.New("/run/containerd/containerd.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	image, err := client.GetImage(ctx, ready.Image)
	if err != nil {
		log.Fatal(err)
	}
	create := func(more ...containerd.NewContainerOpts) (containerd.Task, error) {
		options := append([]containerd.NewContainerOpts{
			containerd.WithImage(image), containerd.WithNewSnapshot("llm", image), containerd.WithNewSpec(oci.WithImageConfig(image)), containerd.WithRuntime(cryo.Runtime, nil),
		}, more...)
		container, err := client.NewContainer(ctx, "llm", options...)
		if err != nil {
			return nil, err
		}
		task, err := container.NewTask(ctx, cio.LogFile("/var/log/llm.log"))
		if err == nil {
			err = task.Start(ctx)
		}
		if err != nil {
			if task != nil {
				_, _ = task.Delete(ctx, containerd.WithProcessKill)
			}
			_ = container.Delete(ctx, containerd.WithSnapshotCleanup)
			return nil, err
		}
		return task, nil
	}
	task, err := create(cryo.WithRestore(ref, cryo.RestoreOptions{}))
	if errdefs.IsFailedPrecondition(err) {
		log.Printf("start it cold: %s refused the restore: %v", cryo.Rule(err), err)
		task, err = create()
	}
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("process %d runs", task.Pid())
}

// WithRestore changes annotations and the runtime of a container that containerd's client is about to make.
func ExampleWithRestore() {
	container := containers.Container{ID: "llm", Runtime: containers.RuntimeInfo{Name: "io.containerd.runc.v2"}}
	container.Spec, _ = typeurl.MarshalAny(&specs.Spec{Version: specs.Version})
	option := cryo.WithRestore(ref, cryo.RestoreOptions{StartInstead: true})
	if err := option(context.Background(), nil, &container); err != nil {
		log.Fatal(err)
	}
	var spec specs.Spec
	if err := typeurl.UnmarshalTo(container.Spec, &spec); err != nil {
		log.Fatal(err)
	}
	fmt.Println(container.Runtime.Name)
	fmt.Println(spec.Annotations["io.cryo.restore"])
	fmt.Println(spec.Annotations["io.cryo.restore.fallback"])
	// Output:
	// io.containerd.runc.cryo.v1
	// registry.example.com/snapshots/llm:ready
	// start
}

// A snapshot is described without a daemon, here of a store in a temporary directory.
func ExampleClient_Inspect() {
	root, err := os.MkdirTemp("", "cryo")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	fill(root)
	c, err := cryo.New(cryo.Options{Root: root, ConfigFile: os.DevNull})
	if err != nil {
		log.Fatal(err)
	}
	i, err := c.Inspect(context.Background(), ref, cryo.InspectOptions{Local: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(i.Reference, "of container", i.Container)
	_, err = c.Inspect(context.Background(), "registry.example.com/snapshots/other:1", cryo.InspectOptions{Local: true})
	fmt.Println(errdefs.IsNotFound(err), cryo.Hint(err) != "")
	// Output:
	// registry.example.com/snapshots/llm:ready of container 7
	// true true
}

// fill puts a snapshot into a store.
func fill(root string) {
	s, err := store.Open(root)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := storetest.Put(context.Background(), s, ref, storetest.Spec{Seed: 7, Segments: []uint64{1}}); err != nil {
		log.Fatal(err)
	}
}
