package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/runtime/channel"
)

// GroupAnnotation of a pod names the CheckpointGroup, in the pod's namespace, that restores the pod's container in step with those of other pods. The container does not start before.
const GroupAnnotation = "io.cryo.restore-group"

// MemberAnnotation of a pod is the name that the pod's member had in the group's checkpoint. Default: the pod's own name.
const MemberAnnotation = "io.cryo.restore-member"

// groupDirectory is the directory, in the store's root, where cryo node waits for restore processes of containers with GroupAnnotation.
const groupDirectory = "groups"

// ListenForPods waits for restore processes that [OpenNode] is called by, with the store's root. One cryo node at a time does so on a host: a socket that is there is that of an earlier one.
func ListenForPods(root string) (*channel.Listener, error) {
	dir := filepath.Join(root, groupDirectory)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Remove(filepath.Join(dir, reportSocket))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("wait for the pods of groups: %w", err)
	}
	return ListenForReport(dir)
}

// OpenNode reaches cryo node of this host, which permits each [Step]. It returns an error where none waits.
func OpenNode(root string) (*Report, error) { return OpenReport(filepath.Join(root, groupDirectory)) }

// Labels that the kubelet sets on containers. Source: kubelet, pkg/kubelet/types/labels.go.
const (
	PodName      = "io.kubernetes.pod.name"
	PodNamespace = "io.kubernetes.pod.namespace"
	PodUID       = "io.kubernetes.pod.uid"
	InPod        = "io.kubernetes.container.name"
)

// Joining is the first step of a restore process whose container has GroupAnnotation: it waits until cryo node names the container's snapshot.
const Joining Step = "joining"

// Pod is a container of a pod, as its node knows it.
type Pod struct {
	Group     string `json:"group"` // value of GroupAnnotation
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Container string `json:"container"` // its name in the pod
	ID        string `json:"id"`        // of the container
}
