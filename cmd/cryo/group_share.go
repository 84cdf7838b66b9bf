package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cryo-project/cryo/shim/node"
)

// podGroup is a group as this node sees it.
type podGroup struct {
	*groupService
	dirty chan struct{} // of capacity 1: the share has changed

	mu      sync.Mutex
	object  *groupObject  // the last that is known; guarded by mu
	gone    bool          // the object is deleted; guarded by mu
	share   nodeShare     // guarded by mu
	edits   int           // of share; guarded by mu
	written int           // edits that the API server has; guarded by mu
	waits   error         // why the restore of the group has not begun; nil: unknown; guarded by mu
	changed chan struct{} // closed when one of these changes; guarded by mu

	show time.Time // when this node may next write the reason into the status; zero: the group has not waited. attendRestore alone uses it
}

// update takes the object as it is now; nil: it is deleted.
func (g *podGroup) update(o *groupObject) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o == nil {
		g.gone = true
	} else {
		g.object = o
	}
	g.wake()
}

// wake wakes those that wait for a change. The caller holds mu.
func (g *podGroup) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// now returns the object as it is known, whether it is deleted, and a channel that is closed when that changes.
func (g *podGroup) now() (o *groupObject, gone bool, changed chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.object, g.gone, g.changed
}

// edit changes this node's share, and has it written.
func (g *podGroup) edit(do func(*nodeShare)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do(&g.share)
	g.edits++
	select {
	case g.dirty <- struct{}{}:
	default:
	}
}

// writing writes the share whenever it has changed, until stop is called, which waits a moment for the last.
func (g *podGroup) writing(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-g.dirty:
			case <-ctx.Done():
				return
			}
			for g.write(ctx) != nil {
				select {
				case <-time.After(watchAgain):
				case <-ctx.Done():
					return
				}
			}
		}
	})
	return func() {
		g.flush()
		cancel()
		ended.Wait()
	}
}

// write writes the share as it is.
func (g *podGroup) write(ctx context.Context) error {
	g.mu.Lock()
	edits := g.edits
	data, err := json.Marshal(map[string]any{"status": map[string]any{"nodes": map[string]any{g.node: g.share}}})
	g.mu.Unlock()
	if err == nil {
		err = g.patch(ctx, data)
	}
	if apierrors.IsNotFound(err) {
		g.update(nil)
		err = nil
	}
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.written = edits
	g.wake()
	return nil
}

// patch changes the status of the group.
func (g *podGroup) patch(ctx context.Context, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	o, _, _ := g.now()
	_, err := g.client.Resource(groupResource).Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: "cryo-node"}, "status")
	return err
}

// flush waits until the share is written, for silentTime at most: after that this node counts as silent.
func (g *podGroup) flush() {
	for late := time.After(silentTime); ; {
		g.mu.Lock()
		written, changed := g.written == g.edits, g.changed
		g.mu.Unlock()
		if written {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		}
	}
}

// conclude writes the summary of the group, unless it has its result already: the last state that is known is compared by its resourceVersion.
func (g *podGroup) conclude(ctx context.Context, s groupSummary) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*silentTime)
	defer cancel()
	for {
		o, gone, changed := g.now()
		if gone || o.Status.over() || s.Phase == o.Status.Phase {
			return
		}
		data, err := o.patch(s, nil)
		if err == nil {
			err = g.patch(ctx, data)
		}
		switch {
		case err == nil:
			if s.over() {
				g.log(node.Entry{What: fmt.Sprintf("group %s/%s: %s %s", o.Namespace, o.Name, s.Phase, s.Reason), Reference: o.Spec.Reference, Digest: s.Digest})
			}
			return
		case ctx.Err() != nil:
			g.log(node.Entry{What: "write the status of CheckpointGroup " + o.Namespace + "/" + o.Name, Err: err})
			return
		}
		select { // it has changed meanwhile, or the API server is away
		case <-changed:
		case <-time.After(watchAgain):
		case <-ctx.Done():
		}
	}
}

// patch returns a change of the status to another summary, and of entries of nodes. It fails if the object has changed since o. What the group has waited for is removed.
func (o *groupObject) patch(s groupSummary, nodes map[string]nodeShare) ([]byte, error) {
	status := struct {
		groupStatus

		Reason *string `json:"reason"` // nil: the object has none afterwards
	}{groupStatus: groupStatus{s, nodes}}
	if s.Reason != "" {
		status.Reason = &s.Reason
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion}, "status": status})
}

// ended returns the summary of a group that has ended; digest is that of the index; empty: it is not published, or not restored.
func (o *groupObject) ended(d digest.Digest, err error) groupSummary {
	s := groupSummary{Phase: groupFailed, Digest: d.String(), CompletionTime: time.Now().UTC().Format(time.RFC3339)}
	switch {
	case d == "":
	case o.restores():
		s.Phase = groupRestored
	default:
		s.Phase = groupPublished
	}
	if err != nil {
		s.Reason = reasonOf(err, hintOf(err))
	}
	return s
}

// reasonOf returns an error and a hint, which may be empty, as a status shows them.
func reasonOf(err error, hint string) string {
	text := err.Error()
	if hint != "" {
		text += "; hint: " + hint
	}
	return statusText(strings.ReplaceAll(text, "\n", "; "), maxReason)
}
