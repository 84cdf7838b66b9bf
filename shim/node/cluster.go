package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/host"
)

// Labels of the node. A value has at most 63 characters, and a digest 71, so that a snapshot's is in a key, shortened.
const (
	// RuntimeLabel is the one that the RuntimeClass asks for, with the value "true".
	RuntimeLabel = "io.cryo.runtime"

	cpuLabel    = "io.cryo/cpu"    // digest of the processor's features: nodes that have the same can restore each other's snapshots, as far as that goes
	driverLabel = "io.cryo/driver" // version of NVIDIA's driver
	readyLabel  = "ready.io.cryo/" // and the first 32 digits of a snapshot's digest: "memory" or "gpu"
	manager     = "cryo-node"      // of fields, for the API server: only labels that it has set are removed with it
	component   = "cryo"           // that events are from
	labelTime   = 5 * time.Minute  // after which labels are set once more: they may have been changed
	retryTime   = 5 * time.Second  // after which it is tried again
	requestTime = 10 * time.Second // for one request
	maxMessage  = 1024             // bytes of an event's message. Source: Kubernetes, pkg/apis/core/validation/events.go
	requestRate = 50               // requests a second at most: containers of a group stand still while they wait for each other
	maxWaiting  = 256              // events; more are not sent
)

// cluster tells Kubernetes of the node. The dynamic client has no types of Kubernetes: with them, the program is twice as large and takes twice as long to start.
type cluster struct {
	client  dynamic.Interface
	node    string
	facts   map[string]string // labels that stay
	metrics *metrics
	log     func(Entry)
	events  chan podEvent
	wake    chan struct{} // of capacity 1

	mu    sync.Mutex
	ready map[string]bool // guarded by mu: by digest, whether device memory is loaded
}

// podEvent is an event of a pod.
type podEvent struct {
	Pod, Namespace, UID, Container string
	Reason, Message                string
	Warning                        bool
}

func newCluster(o Options, m *metrics) (*cluster, error) {
	config := rest.InClusterConfig
	if o.Kubeconfig != "" {
		config = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", o.Kubeconfig) }
	}
	c, err := config()
	if err == nil {
		c.UserAgent, c.QPS, c.Burst = manager, requestRate, 2*requestRate
		var d dynamic.Interface
		if d, err = dynamic.NewForConfig(c); err == nil {
			return &cluster{client: d, node: o.Node, facts: facts("/"), metrics: m, log: o.Log, events: make(chan podEvent, maxWaiting), wake: make(chan struct{}, 1)}, nil
		}
	}
	return nil, failure.New(errdefs.ErrInvalidArgument, "in a pod, give it a service account; elsewhere, name a file with --kubeconfig", "reach Kubernetes: %v", err)
}

// driverVersion finds it in /proc/driver/nvidia/version.
var driverVersion = regexp.MustCompile(`Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)`)

// facts are labels of what snapshots must fit, beyond those that the kubelet sets (kubernetes.io/arch). root is of /proc.
func facts(root string) map[string]string {
	labels := map[string]string{RuntimeLabel: "true"}
	if features, size, err := host.CPU(root); err == nil {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", strings.Join(features, " "), size))
		labels[cpuLabel] = hex.EncodeToString(sum[:8])
	}
	if text, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/version")); err == nil {
		if m := driverVersion.FindSubmatch(text); m != nil {
			labels[driverLabel] = string(m[1])
		}
	}
	return labels
}

// setReady changes which snapshots are ready.
func (c *cluster) setReady(digests map[string]bool) {
	c.mu.Lock()
	c.ready = maps.Clone(digests)
	c.mu.Unlock()
	wake(c.wake)
}

// labels are all that the node is to have.
func (c *cluster) labels() map[string]string {
	all := maps.Clone(c.facts)
	c.mu.Lock()
	defer c.mu.Unlock()
	for digest, onGPU := range c.ready {
		_, sum, _ := strings.Cut(digest, ":")
		all[readyLabel+sum[:min(len(sum), 32)]] = map[bool]string{false: "memory", true: "gpu"}[onGPU]
	}
	return all
}

// run sets labels and posts events until ctx ends.
func (c *cluster) run(ctx context.Context) {
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		for {
			select {
			case e := <-c.events:
				c.done("event", c.create(ctx, e))
			case <-ctx.Done():
				return
			}
		}
	})
	for said := false; ; {
		next := labelTime
		err := c.label(ctx, c.labels())
		if ctx.Err() != nil {
			return
		}
		if c.done("labels", err); err != nil {
			next = retryTime
			if !said {
				c.log(Entry{What: "label node " + c.node, Err: err, Again: next.Seconds()})
			}
		}
		said = err != nil
		select {
		case <-c.wake:
		case <-time.After(next):
		case <-ctx.Done():
			return
		}
	}
}

func (c *cluster) done(what string, err error) {
	if err != nil {
		c.metrics.api.WithLabelValues(what).Inc()
	}
}

// label applies labels to the node: those that are not among them and were applied before are removed, and all others are left alone.
func (c *cluster) label(ctx context.Context, labels map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind("Node")
	o.SetName(c.node)
	o.SetLabels(labels)
	_, err := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Apply(ctx, c.node, o, metav1.ApplyOptions{FieldManager: manager, Force: true})
	return err
}

// leave takes the labels away.
func (c *cluster) leave(ctx context.Context) {
	if err := c.label(ctx, nil); err != nil {
		c.log(Entry{What: "take the labels off node " + c.node, Err: err})
	}
}

// post has an event sent; where too many wait, none.
func (c *cluster) post(e podEvent) {
	select {
	case c.events <- e:
	default:
		c.done("event", errdefs.ErrResourceExhausted)
	}
}

func (c *cluster) create(ctx context.Context, e podEvent) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	kind, now := "Normal", time.Now().UTC().Format(time.RFC3339)
	if e.Warning {
		kind = "Warning"
	}
	message := trust.OneLine(e.Message)
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": kind, "reason": e.Reason, "message": strings.ToValidUTF8(message[:min(len(message), maxMessage)], ""),
		"metadata": map[string]any{"generateName": e.Pod + ".", "namespace": e.Namespace},
		"involvedObject": map[string]any{
			"apiVersion": "v1", "kind": "Pod", "namespace": e.Namespace, "name": e.Pod, "uid": e.UID, "fieldPath": "spec.containers{" + e.Container + "}",
		},
		"source": map[string]any{"component": component, "host": c.node}, "firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}}
	_, err := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(e.Namespace).Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		c.log(Entry{What: "tell pod " + e.Namespace + "/" + e.Pod, Err: err})
	}
	return err
}
