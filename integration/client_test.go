package integration

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/integration/lab"
)

// client connects to a host's containerd for the time of the test.
func client(t *testing.T, h *lab.Host) *containerd.Client {
	t.Helper()
	c, err := h.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// inDefault is the test's context with containerd's namespace.
func inDefault(t *testing.T) context.Context {
	return namespaces.WithNamespace(t.Context(), "default")
}

// created is a container and its task made through the client library, for what ctr cannot do. The options are those
// of the runtime. The task is created and not started.
func created(t *testing.T, h *lab.Host, id, runtime string, options any, creator cio.Creator, spec []oci.SpecOpts, args ...string) containerd.Task {
	t.Helper()
	c, ctx := client(t, h), inDefault(t)
	image, err := c.GetImage(ctx, lab.ImageName)
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, h, id)
	spec = append([]oci.SpecOpts{oci.WithImageConfigArgs(image, args)}, spec...)
	container, err := c.NewContainer(ctx, id, containerd.WithImage(image), containerd.WithNewSnapshot(id, image),
		containerd.WithNewSpec(spec...), containerd.WithRuntime(runtime, options))
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.NewTask(ctx, creator)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// streams are a task's standard input and output in a test. FIFOs have to be where host and test both see them.
type streams struct {
	out   buffer
	input chan []byte // closed: end of input
	rest  []byte
}

func (s *streams) creator(h *lab.Host, more ...cio.Opt) cio.Creator {
	s.input = make(chan []byte, 16)
	return cio.NewCreator(slices.Concat([]cio.Opt{cio.WithStreams(s, &s.out, &s.out), cio.WithFIFODir(filepath.Join(h.Dir, "fifo"))}, more)...)
}

// Read gives the task what the test sent to input.
func (s *streams) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		line, open := <-s.input
		if !open {
			return 0, io.EOF
		}
		s.rest = line
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// buffer collects output from several goroutines.
type buffer struct {
	mu      sync.Mutex
	content bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.String()
}

// watch collects the topics of the events of one container from now on.
func watch(t *testing.T, h *lab.Host, id string) func() []string {
	t.Helper()
	var mu sync.Mutex
	var topics []string
	messages, errs := client(t, h).EventService().Subscribe(inDefault(t), `namespace==default,topic~="^/tasks/"`)
	go func() {
		for {
			select {
			case m := <-messages:
				if m == nil {
					return
				}
				event, err := typeurl.UnmarshalAny(m.Event)
				if about, ok := event.(interface{ GetContainerID() string }); err == nil && ok && about.GetContainerID() == id {
					topic := m.Topic
					if exit, ok := event.(*apievents.TaskExit); ok && exit.ID != id {
						topic += " exec"
					}
					mu.Lock()
					topics = append(topics, topic)
					mu.Unlock()
				}
			case <-errs:
				return
			}
		}
	}()
	// Subscribe returns before the daemon has the subscription.
	time.Sleep(100 * time.Millisecond)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(topics)
	}
}
