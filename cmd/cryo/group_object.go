package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/save"
	"github.com/cryo-project/cryo/shim/worker"
)

// Resources of Kubernetes' API that a group needs.
var (
	groupResource = schema.GroupVersionResource{Group: "io.cryo", Version: "v1alpha1", Resource: "checkpointgroups"}
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	leaseResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// groupObject is a CheckpointGroup: the checkpoint of pods in step. contrib/kubernetes/checkpointgroup.yaml has its schema.
type groupObject struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec   groupSpec   `json:"spec"`
	Status groupStatus `json:"status"`
}

// groupSpec is what the caller wants. It never changes.
type groupSpec struct {
	Operation           groupOperation       `json:"operation"` // empty: checkpointPods
	Selector            metav1.LabelSelector `json:"selector"`
	Container           string               `json:"container"` // of each pod; empty: its only one
	Reference           string               `json:"reference"`
	LeaveRunning        bool                 `json:"leaveRunning"`
	FileLocks           bool                 `json:"fileLocks"`
	ExternalUnixSockets bool                 `json:"externalUnixSockets"`
	HoldTimeoutSeconds  int64                `json:"holdTimeoutSeconds"`
	ReadyTimeoutSeconds int64                `json:"readyTimeoutSeconds"`
}

// groupOperation is what is done with the pods.
type groupOperation string

const (
	checkpointPods groupOperation = "Checkpoint"
	restorePods    groupOperation = "Restore"
)

// groupPhase is a group's state for its reader. Nodes decide by Nodes.
type groupPhase string

const (
	groupWaiting   groupPhase = "Waiting" // for the pods of a restore
	groupRunning   groupPhase = "Running"
	groupPublished groupPhase = "Published"
	groupRestored  groupPhase = "Restored"
	groupFailed    groupPhase = "Failed"
)

// groupStatus is the state of a group.
type groupStatus struct {
	groupSummary

	Nodes map[string]nodeShare `json:"nodes,omitempty"` // by the node's name; a node writes its own only
}

// groupSummary is the result of a group, or the reason for which it waits.
type groupSummary struct {
	Phase          groupPhase `json:"phase,omitempty"` // empty: no node has begun, or shown that it waits
	Reason         string     `json:"reason,omitempty"`
	Digest         string     `json:"digest,omitempty"` // of the index
	StartTime      string     `json:"startTime,omitempty"`
	CompletionTime string     `json:"completionTime,omitempty"`
}

// restores reports whether the group is restored. Else its checkpoint is taken.
func (o *groupObject) restores() bool { return o.Spec.Operation == restorePods }

// restoreTime is how long all members of a group of pods may take to be restored, from the moment when each has a pod on a node. The kubelet waits for two minutes (runtimeRequestTimeout) for a container to start.
const restoreTime = time.Minute

// holdTime is how long containers may stand still until all do, or until all are restored.
func (o *groupObject) holdTime() time.Duration {
	switch {
	case o.Spec.HoldTimeoutSeconds > 0:
		return time.Duration(o.Spec.HoldTimeoutSeconds) * time.Second
	case o.restores():
		return restoreTime
	}
	return holdTime
}

// over reports whether the group has its result.
func (s groupSummary) over() bool {
	return s.Phase == groupPublished || s.Phase == groupRestored || s.Phase == groupFailed
}

// nodeShare is what a node has written of itself. It only grows.
type nodeShare struct {
	Instance string                 `json:"instance"`          // the process: one that is started later has another
	Leads    *groupLead             `json:"leads,omitempty"`   // nil: another node coordinates
	Members  map[string]memberShare `json:"members,omitempty"` // by the pod's name
}

// groupLead is what the coordinator has sent to all members.
type groupLead struct {
	Members   []groupPlan `json:"members"`
	Permit    worker.Step `json:"permit,omitempty"`    // members may go on from this step
	Index     *groupIndex `json:"index,omitempty"`     // is about to be published, or is restored
	Abandoned bool        `json:"abandoned,omitempty"` // nothing was published, nor will be
	Closed    bool        `json:"closed,omitempty"`    // the coordinator sends no more
}

// groupPlan is a member as the coordinator has found it.
type groupPlan struct {
	Name      string    `json:"name"`             // of the pod
	Member    string    `json:"member,omitempty"` // of a restore: its name in the index
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	Addresses []string  `json:"addresses,omitempty"` // with the permission to go on from Admitted, or from Placed
}

// called is the member's name.
func (p groupPlan) called() string { return cmp.Or(p.Member, p.Name) }

// memberShare is what a member has sent to the coordinator.
type memberShare struct {
	UID       types.UID      `json:"uid"`
	Container string         `json:"container"` // its id
	Step      worker.Step    `json:"step,omitempty"`
	Digest    digest.Digest  `json:"digest,omitempty"`   // of the snapshot
	Manifest  int64          `json:"manifest,omitempty"` // bytes of the snapshot's manifest
	Addresses []string       `json:"addresses,omitempty"`
	Warnings  []string       `json:"warnings,omitempty"`
	Done      bool           `json:"done,omitempty"`
	Frozen    int64          `json:"frozenMilliseconds,omitempty"` // that the container stood still
	Failed    *failure.Error `json:"failed,omitempty"`
	Lost      bool           `json:"lost,omitempty"` // the container is
}

// ended reports whether the member's work is over.
func (m memberShare) ended() bool { return m.Done || m.Failed != nil }

// groupPod is what a group needs to know of a pod.
type groupPod struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		NodeName   string                  `json:"nodeName"`
		Containers []struct{ Name string } `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase             string `json:"phase"`
		ContainerStatuses []struct {
			Name        string `json:"name"`
			ContainerID string `json:"containerID"`
			State       struct {
				Running *struct{} `json:"running"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// decode reads an object of the API into a struct.
func decode[T any](u *unstructured.Unstructured) (o *T, err error) {
	data, err := u.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	return o, nil
}

// leader returns the node that coordinates a group of pods: that of the first by name that is on a node; empty if none is. Every node comes to the same, and so needs no election.
func leader(pods []groupPod) string {
	name, node := "", ""
	for _, p := range pods {
		if p.Spec.NodeName != "" && (name == "" || p.Name < name) {
			name, node = p.Name, p.Spec.NodeName
		}
	}
	return node
}

// containerName returns the name of the pod's container that belongs to a group; named is the one that the group names.
func (p groupPod) containerName(named string) (string, error) {
	if named == "" && len(p.Spec.Containers) == 1 {
		named = p.Spec.Containers[0].Name
	}
	if named == "" {
		return "", failure.New(errdefs.ErrInvalidArgument, "name the container in spec.container", "pod %s has %d containers", p.Name, len(p.Spec.Containers))
	}
	return named, nil
}

// container returns the id of the container that the checkpoint is taken of. It returns an error if the pod cannot be a member.
func (p groupPod) container(named string) (string, error) {
	named, err := p.containerName(named)
	if err != nil {
		return "", err
	}
	const wait = "wait until all pods of the group run, and create another CheckpointGroup"
	if p.Status.Phase != "Running" || p.DeletionTimestamp != nil {
		return "", failure.New(errdefs.ErrFailedPrecondition, wait, "pod %s does not run: its phase is %s, and it is deleted: %v", p.Name, cmp.Or(p.Status.Phase, "unknown"), p.DeletionTimestamp != nil)
	}
	for _, s := range p.Status.ContainerStatuses {
		id, ours := strings.CutPrefix(s.ContainerID, "containerd://")
		if s.Name == named && s.State.Running != nil && ours {
			return id, nil
		}
	}
	return "", failure.New(errdefs.ErrFailedPrecondition, wait, "no container %s runs in pod %s under containerd", named, p.Name)
}

// plan returns the members of a group, in the order of their names, and where it is published in full.
func (o *groupObject) plan(pods []groupPod) (plan []groupPlan, full string, err error) {
	if full, err = store.Normalize(o.Spec.Reference); err != nil {
		return nil, "", err
	}
	switch n := len(pods); {
	case n == 0:
		return nil, "", failure.New(errdefs.ErrNotFound, "compare spec.selector with kubectl get pods --show-labels", "the selector matches no pod in namespace %s", o.Namespace)
	case n > image.MaxMembers:
		return nil, "", failure.New(errdefs.ErrInvalidArgument, "use a narrower selector", "the selector matches %d pods, and a group has %d members at most", n, image.MaxMembers)
	}
	for _, p := range pods {
		if err := image.CheckMemberName(p.Name); err != nil {
			return nil, "", err
		}
		if _, err := memberRef(full, p.Name); err != nil {
			return nil, "", err
		}
		if _, err := p.container(o.Spec.Container); err != nil {
			return nil, "", err
		}
		plan = append(plan, groupPlan{Name: p.Name, UID: p.UID, Node: p.Spec.NodeName})
	}
	slices.SortFunc(plan, func(a, b groupPlan) int { return strings.Compare(a.Name, b.Name) })
	return plan, full, nil
}

// note takes what the coordinator sends to a member. What it sends to all is noted once.
func (l *groupLead) note(m groupMessage) {
	switch {
	case m.Permit != "":
		l.Permit = m.Permit
		if m.Together == nil {
			return
		}
		for _, of := range m.Together.Members {
			for i := range l.Members {
				if l.Members[i].called() == of.Name {
					l.Members[i].Addresses = of.Was
					if m.Permit == worker.Placed {
						l.Members[i].Addresses = of.Is
					}
				}
			}
		}
	case m.Publishing != nil:
		l.Index = m.Publishing
	case m.Abandoned:
		l.Abandoned = true
	}
}

// news returns what the coordinator has sent since it had sent what was. index is that of the group, if the group is restored.
func (l groupLead) news(was groupLead, index image.Group) (all []groupMessage) {
	if l.Index != nil && was.Index == nil {
		all = append(all, groupMessage{Publishing: l.Index})
	}
	if l.Permit != was.Permit {
		m := groupMessage{Permit: l.Permit}
		switch l.Permit {
		case worker.Admitted:
			m.Together = &worker.Together{}
			for _, p := range l.Members {
				m.Together.Members = append(m.Together.Members, worker.Member{Name: p.Name, Was: p.Addresses, Is: []string{}})
			}
		case worker.Placed:
			addresses := map[string][]string{}
			for _, p := range l.Members {
				addresses[p.called()] = p.Addresses
			}
			m.Together, _ = together(index, addresses, nil) // the coordinator has refused what cannot be
		}
		all = append(all, m)
	}
	if l.Abandoned && !was.Abandoned {
		all = append(all, groupMessage{Abandoned: true})
	}
	return all
}

// Bounds of what a status has: with as many members as a group may have, it stays below the 1.5 MiB that etcd takes. contrib/kubernetes/checkpointgroup.yaml has the same.
const (
	maxWarnings = 2    // of a member that are kept
	maxReason   = 1024 // bytes of a group's reason
	maxMessage  = 512  // bytes of a member's failure
	maxHint     = 256  // bytes of a hint, or a warning
)

// note takes what the member sends to the coordinator.
func (m *memberShare) note(message groupMessage) {
	switch {
	case message.Reached != nil:
		m.Step, m.Digest, m.Manifest = message.Reached.Step, cmp.Or(message.Reached.Digest, m.Digest), cmp.Or(message.Reached.Manifest, m.Manifest)
		if message.Addresses != nil {
			m.Addresses = message.Addresses
		}
	case message.Warning != "":
		if len(m.Warnings) < maxWarnings {
			m.Warnings = append(m.Warnings, statusText(message.Warning, maxHint))
		}
	case message.Done != nil:
		var r save.Result
		_ = json.Unmarshal(message.Done, &r) // of this process
		m.Done, m.Frozen = true, int64(r.Freeze*1000)
	case message.Failed != nil:
		failed := *message.Failed
		failed.Message, failed.Advice = statusText(failed.Message, maxMessage), statusText(failed.Advice, maxHint)
		m.Failed = &failed
		m.Lost = message.State != nil && message.State.Lost
	}
}

// news returns what the member has sent since it had sent what was.
func (m memberShare) news(was memberShare) (all []groupMessage) {
	if m.Step != was.Step {
		all = append(all, groupMessage{Reached: &worker.Reached{Step: m.Step, Digest: m.Digest, Manifest: m.Manifest}, Addresses: m.Addresses})
	}
	switch {
	case was.ended():
	case m.Failed != nil:
		all = append(all, groupMessage{Failed: m.Failed, State: &worker.State{Lost: m.Lost}})
	case m.Done:
		all = append(all, groupMessage{Done: json.RawMessage("{}")})
	}
	return all
}

// statusText returns a text of so many bytes at most that the API server takes.
func statusText(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
