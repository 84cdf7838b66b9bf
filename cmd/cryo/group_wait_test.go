package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/node"
	"github.com/cryo-project/cryo/shim/worker"
)

// waitingGroup is a group in an API server, and the nodes that watch it.
type waitingGroup struct {
	t       *testing.T
	object  map[string]any
	version int
	writers []string // the nodes whose writes the API server took
	refused int      // writes that it did not take
	nodes   map[string]*podGroup
}

// patchClient is a client of an API server that takes patches and nothing else.
type patchClient struct {
	dynamic.NamespaceableResourceInterface
	take func(patch []byte) error
}

func (c patchClient) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return c
}

func (c patchClient) Namespace(string) dynamic.ResourceInterface { return c }

func (c patchClient) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	return nil, c.take(data)
}

// newWaitingGroup returns a group without a status, and a client of its API server for each node.
func newWaitingGroup(t *testing.T, nodes ...string) *waitingGroup {
	w := &waitingGroup{t: t, object: map[string]any{"kind": "CheckpointGroup", "spec": map[string]any{"operation": "Restore"}}, nodes: map[string]*podGroup{}}
	for _, name := range nodes {
		client := patchClient{take: func(patch []byte) error { return w.take(name, patch) }}
		s := &groupService{client: client, node: name, instance: "i-" + name, log: func(node.Entry) {}}
		w.nodes[name] = &podGroup{groupService: s, object: w.now(), changed: make(chan struct{}), dirty: make(chan struct{}, 1)}
	}
	return w
}

// take applies a patch of the status, unless it is based on an older version.
func (w *waitingGroup) take(node string, patch []byte) error {
	var change map[string]any
	if err := json.Unmarshal(patch, &change); err != nil {
		w.t.Fatal(err)
	}
	if seen := change["metadata"].(map[string]any)["resourceVersion"]; seen != strconv.Itoa(w.version) {
		w.refused++
		return apierrors.NewConflict(groupResource.GroupResource(), "again", fmt.Errorf("%v, now %d", seen, w.version))
	}
	delete(change, "metadata")
	w.object = merged(w.object, change)
	w.version++
	w.writers = append(w.writers, node)
	return nil
}

// merged applies a merge patch (RFC 7386).
func merged(to, patch map[string]any) map[string]any {
	if to == nil {
		to = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(to, k)
		case map[string]any:
			old, _ := to[k].(map[string]any)
			to[k] = merged(old, v)
		default:
			to[k] = v
		}
	}
	return to
}

// now returns the object as the API server has it.
func (w *waitingGroup) now() *groupObject {
	w.object["metadata"] = map[string]any{"name": "again", "resourceVersion": strconv.Itoa(w.version)}
	o, err := decode[groupObject](&unstructured.Unstructured{Object: runtime.DeepCopyJSON(w.object)})
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// look lets nodes look at the group once a second, in the order of their names. All of them see the same state of the object. looking maps each node to the reason for which it waits.
func (w *waitingGroup) look(seconds int, pods []string, looking map[string]string) {
	for range seconds {
		o := w.now()
		for _, name := range slices.Sorted(maps.Keys(looking)) {
			w.nodes[name].update(o)
			w.nodes[name].delay(w.t.Context(), o, pods, failure.New(errdefs.ErrUnavailable, "", "%s", looking[name]))
		}
		time.Sleep(time.Second)
	}
}

// shows fails the test unless the status shows a reason, and these nodes have written the status since the last call.
func (w *waitingGroup) shows(phase groupPhase, reason string, writers ...string) {
	w.t.Helper()
	if s := w.now().Status; s.Phase != phase || s.Reason != reason || !slices.Equal(w.writers, writers) {
		w.t.Errorf("%+v, written by %v; want %s %q by %v", s, w.writers, phase, reason, writers)
	}
	w.writers = nil
}

// TestGroupShowsWaiting: one node of several writes the reason for which a group waits, each time the reason changes. The coordinator removes the reason when the group begins, and no node writes one afterwards.
func TestGroupShowsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaitingGroup(t, "n1", "n2", "n3")
		both := map[string]string{"n2": "c", "n3": "c"}
		pods := []string{"n2", "n3"} // the first pod is on n2
		w.look(2, pods, both)
		w.shows("", "") // a group that begins soon shows nothing
		w.look(60, pods, both)
		w.shows(groupWaiting, "c", "n2")
		if o := w.now(); len(o.Status.Nodes) != 1 || o.Status.Nodes["n2"].begun() {
			t.Errorf("%+v", o.Status.Nodes)
		}

		w.look(10, pods, map[string]string{"n2": "d", "n3": "d"})
		w.shows(groupWaiting, "d", "n2")

		// The nodes read other indexes, or have other errors: one writes.
		w.look(10, pods, map[string]string{"n2": "d", "n3": "e"})
		w.shows(groupWaiting, "d")

		// An earlier pod comes to n1, whose container does not wait yet. Then it does.
		pods = []string{"n1", "n2", "n3"}
		w.look(10, pods, map[string]string{"n2": "e", "n3": "e"})
		w.shows(groupWaiting, "e", "n2")
		w.look(10, pods, map[string]string{"n1": "f", "n2": "e", "n3": "e"})
		w.shows(groupWaiting, "f", "n1")

		// The pods of n1 and n2 are deleted, and n3 goes on.
		w.look(10, []string{"n3"}, map[string]string{"n1": "g", "n2": "g", "n3": "g"})
		w.shows(groupWaiting, "g", "n1")
		w.look(10, []string{"n3"}, map[string]string{"n3": "h"})
		w.shows(groupWaiting, "h", "n3")

		// The group begins, and ends.
		late := w.now()
		w.refused = 0
		w.nodes["n3"].update(late)
		w.nodes["n3"].conclude(t.Context(), groupSummary{Phase: groupRunning})
		w.shows(groupRunning, "", "n3")
		w.nodes["n3"].delay(t.Context(), late, []string{"n3"}, errdefs.ErrUnknown)
		w.nodes["n3"].delay(t.Context(), w.now(), []string{"n3"}, errdefs.ErrUnknown)
		w.shows(groupRunning, "")
		if w.refused != 1 {
			t.Errorf("%d late writes", w.refused)
		}
	})
}

// TestGroupLooksAgain: a node that has written the reason keeps looking at the group while its container does not wait, until the API server has the end of its pod.
func TestGroupLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaitingGroup(t, "n1", "n2")
		delay := func(name, why string, pods ...string) bool {
			o := w.now()
			return w.nodes[name].delay(t.Context(), o, pods, failure.New(errdefs.ErrUnavailable, "", "%s", why))
		}
		w.look(5, []string{"n1", "n2"}, map[string]string{"n1": "c", "n2": "c"})
		w.shows(groupWaiting, "c", "n1")
		for _, c := range []struct {
			node, why string
			pods      []string
			again     bool
		}{
			{"n1", "c", []string{"n1", "n2"}, true},
			{"n2", "c", []string{"n1", "n2"}, false},
			{"n1", "a, c", []string{"n2"}, true}, // no other has an entry
		} {
			if again := delay(c.node, c.why, c.pods...); again != c.again {
				t.Errorf("%+v: %v", c, again)
			}
		}
		w.look(5, []string{"n2"}, map[string]string{"n1": "a, c", "n2": "a, c"})
		w.shows(groupWaiting, "a, c", "n1")
		if delay("n1", "a, c", "n2") {
			t.Error("n1 looks on without a pod")
		}
		w.look(5, []string{"n1"}, map[string]string{"n1": "b, c"})
		w.shows(groupWaiting, "b, c", "n1")
		for i := 0; delay("n1", "a, b, c"); i++ { // the last pod is gone
			if time.Sleep(time.Second); i > 5 {
				t.Fatal("n1 looks for ever")
			}
		}
		w.shows(groupWaiting, "a, b, c", "n1")
	})
}

// TestGroupWaits: a reason names members and pods, no more than fit, and has the same text for the same cause.
func TestGroupWaits(t *testing.T) {
	if text := waitingReason(awaitsPods([]string{"a", "b"})); !strings.HasPrefix(text, "no pod on a node is for the members a, b; hint: ") || !strings.Contains(text, worker.MemberAnnotation) {
		t.Error(text)
	}
	many := make([]string, 512)
	for i := range many {
		many[i] = strings.Repeat("x", 63)
	}
	if text := waitingReason(awaitsPods(many)); !strings.Contains(text, "x and 504 more; hint") || len(text) >= maxReason {
		t.Error(text)
	}
	if text := waitingReason(awaitsFirst(groupPlan{Name: "p", Node: "n"})); !strings.Contains(text, "pod p ") || !strings.Contains(text, "node n") {
		t.Error(text)
	}
	if text := waitingReason(errors.New("lookup r.example on 10.0.0.2:53: read udp 10.0.0.1:43211->10.0.0.2:53: i/o timeout")); text != "lookup r.example on 10.0.0.2:53: read udp 10.0.0.2:53: i/o timeout" {
		t.Error(text)
	}
	o := &groupObject{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}
	if data, err := o.patch(groupSummary{Phase: groupRestored}, nil); err != nil || string(data) != `{"metadata":{"resourceVersion":"7"},"status":{"phase":"Restored","reason":null}}` {
		t.Errorf("%s, %v", data, err)
	}
}
