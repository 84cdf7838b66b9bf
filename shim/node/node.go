package node

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"k8s.io/client-go/dynamic"

	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
)

// Options are the choices of the service.
type Options struct {
	Config config.Config
	// Address is containerd's socket.
	Address string
	// Connect reaches containerd. The context that it gives carries the namespace that base images go to.
	Connect func(context.Context) (context.Context, *containerd.Client, error)
	// File says what is kept prewarmed, see [Wanted]; empty: nothing is, and nothing is removed.
	File string
	// Listen is HOST:PORT or unix:PATH for metrics and health; empty: neither.
	Listen string
	// Node is the name of this machine's node in Kubernetes; empty: Kubernetes is told nothing. Kubeconfig is a file; empty: the service account of the pod.
	Node, Kubeconfig string
	// Groups takes part in the checkpoints of groups of pods, until ctx ends; nil: the service takes part in none. It is called if Node is set.
	Groups func(context.Context, dynamic.Interface)
	// Log is told what has happened. It may be called from several goroutines at once.
	Log func(Entry)
}

// Entry is something that has happened.
type Entry struct {
	What      string  `json:"what"`
	Reference string  `json:"reference,omitempty"` // of a snapshot; empty: it is not about one
	Digest    string  `json:"digest,omitempty"`    // of the snapshot, if it is known
	Container string  `json:"container,omitempty"` // empty: it is not about one
	Seconds   float64 `json:"seconds,omitempty"`   // that it took; 0: not said
	Err       error   `json:"-"`                   // nil: it is good
	Again     float64 `json:"again,omitempty"`     // seconds until it is tried again; 0: not said
}

// service is all of it.
type service struct {
	o         Options
	metrics   *metrics
	warmer    *warmer  // nil: nothing is kept
	cluster   *cluster // nil: Kubernetes is told nothing
	connected atomic.Bool
}

// Run serves until ctx ends, and returns nil then. What is prewarmed stays, for the next service. An error is of the beginning only: a wrong file, an address that is taken,
// or another service, FailedPrecondition.
func Run(ctx context.Context, o Options) error {
	restore.FindHome()
	s, err := daemon.OpenStore(o.Config, o.Address)
	if err != nil {
		return err
	}
	held, err := lock(o.Config.Root)
	if err != nil {
		return err
	}
	defer held.Close()
	v := &service{o: o, metrics: newMetrics()}
	var read []byte
	if o.File != "" {
		r, err := openRecord(o.Config.Root)
		if err != nil {
			return err
		}
		v.warmer = newWarmer(o, s, r, v.metrics, v.ready)
		if v.warmer.want, read, err = Read(o.File); err != nil {
			return err
		}
	}
	if o.Node != "" {
		if v.cluster, err = newCluster(o, v.metrics); err != nil {
			return err
		}
	}
	var listener net.Listener
	if o.Listen != "" {
		if listener, err = listen(ctx, o.Listen); err != nil {
			return err
		}
	}
	var all sync.WaitGroup
	all.Go(func() { v.hear(ctx) })
	if v.warmer != nil {
		all.Go(func() { v.warmer.watch(ctx, read) })
		all.Go(func() { v.warmer.run(ctx) })
	}
	if v.cluster != nil {
		all.Go(func() { v.cluster.run(ctx) })
		if o.Groups != nil {
			all.Go(func() { o.Groups(ctx, v.cluster.client) })
		}
	}
	if listener != nil {
		all.Go(func() { v.serve(ctx, listener) })
	}
	o.Log(Entry{What: "serving"})
	all.Wait()
	if v.cluster != nil {
		v.cluster.leave(context.WithoutCancel(ctx))
	}
	return nil
}

// ready is told what is prewarmed.
func (v *service) ready(digests map[string]bool) {
	if v.cluster != nil {
		v.cluster.setReady(digests)
	}
}

// againTime is the time between two attempts to reach a server that does not answer.
const againTime = time.Second
