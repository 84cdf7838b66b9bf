package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// StatusError is an answer of the API server's that is none of success.
type StatusError struct {
	Request string
	Code    int
	Body    string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %d: %s", e.Request, e.Code, e.Body) }

// Get fetches an object of the API server's by its path, for example /api/v1/nodes/node-a.
func (c *Cluster) Get(ctx context.Context, path string, into any) error {
	return c.request(ctx, http.MethodGet, path, into)
}

func (c *Cluster) request(ctx context.Context, method, path string, into any) error {
	body, err := c.Do(ctx, method, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// Do asks the API server as administrator. The error is a [StatusError] where it refuses.
func (c *Cluster) Do(ctx context.Context, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+c.address()+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.tokens["admin"])
	answer, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if answer.StatusCode/100 != 2 {
		return nil, &StatusError{method + " " + path, answer.StatusCode, strings.TrimSpace(string(body))}
	}
	return body, nil
}

// Kubectl runs kubectl as administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) lab.Result {
	return c.kubectl(ctx, "", args)
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args []string) lab.Result {
	command := c.Lab.Command(ctx, c.Lab.Tool("kubernetes/kubectl"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.dir)
	command.Stdin = strings.NewReader(stdin)
	return lab.Finish(command)
}

// Apply makes objects as "kubectl apply" does.
func (c *Cluster) Apply(ctx context.Context, yaml string, flags ...string) error {
	return c.kubectl(ctx, yaml, append([]string{"apply", "--filename=-"}, flags...)).Err()
}

// Delete deletes objects as "kubectl delete" does, and waits until they are gone. That there are none is no error.
func (c *Cluster) Delete(ctx context.Context, yaml string, flags ...string) error {
	return c.kubectl(ctx, yaml, append([]string{"delete", "--filename=-", "--ignore-not-found", "--timeout=2m"}, flags...)).Err()
}

// Exec runs a command in a container of a pod of namespace default; container "" is the first.
func (c *Cluster) Exec(ctx context.Context, pod, container string, command ...string) lab.Result {
	args := []string{"exec", pod}
	if container != "" {
		args = append(args, "--container="+container)
	}
	return c.Kubectl(ctx, append(append(args, "--"), command...)...)
}

// Ask asks the workload in a container of a pod of namespace default, see [lab.Host.Ask]; container "" is the first.
func (c *Cluster) Ask(ctx context.Context, pod, container string, words ...string) (a lab.Answer, err error) {
	r := c.Exec(ctx, pod, container, append([]string{"workload", "ask"}, words...)...)
	if err := json.Unmarshal([]byte(r.Stdout), &a); err != nil {
		return a, fmt.Errorf("ask pod %s: %w", pod, errors.Join(r.Err(), err))
	}
	return a, nil
}

// Logs is what a container of a pod of namespace default has printed; container "" is the first.
func (c *Cluster) Logs(ctx context.Context, pod, container string) (string, error) {
	path := "/api/v1/namespaces/default/pods/" + pod + "/log"
	if container != "" {
		path += "?container=" + container
	}
	body, err := c.Do(ctx, http.MethodGet, path)
	return string(body), err
}

// Event is one of the API's about an object.
type Event struct {
	Type, Reason, Message string
	Count                 int
}

// Events are those about an object of namespace default, of whatever kind.
func (c *Cluster) Events(ctx context.Context, name string) ([]Event, error) {
	var list struct{ Items []Event }
	err := c.Get(ctx, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+name, &list)
	return list.Items, err
}

// Pod is what tests ask of one.
type Pod struct {
	Metadata struct {
		Name, UID         string
		Labels            map[string]string
		Annotations       map[string]string
		DeletionTimestamp time.Time
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase, Reason, Message, PodIP string
		Conditions                    []struct{ Type, Status, Reason, Message string }
		ContainerStatuses             []ContainerStatus
		InitContainerStatuses         []ContainerStatus
	}
}

// ContainerStatus is that of one of a pod's containers.
type ContainerStatus struct {
	Name, ContainerID string
	Ready             bool
	RestartCount      int
	State, LastState  struct {
		Waiting    *struct{ Reason, Message string }
		Running    *struct{ StartedAt time.Time }
		Terminated *struct {
			ExitCode        int
			Reason, Message string
		}
	}
}

// Ready says whether all that the pod is ready by is.
func (p *Pod) Ready() bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status == "True"
		}
	}
	return false
}

// Pod is one of namespace default.
func (c *Cluster) Pod(ctx context.Context, name string) (*Pod, error) {
	var p Pod
	return &p, c.Get(ctx, "/api/v1/namespaces/default/pods/"+name, &p)
}

// WaitReady waits at most two minutes until a pod of namespace default is ready. The error has its events.
func (c *Cluster) WaitReady(ctx context.Context, name string) (*Pod, error) {
	return c.WaitPod(ctx, name, "ready", (*Pod).Ready)
}

// WaitPod waits at most two minutes until a pod of namespace default is as a function says. The error has its events.
func (c *Cluster) WaitPod(ctx context.Context, name, what string, is func(*Pod) bool) (p *Pod, err error) {
	err = c.wait(ctx, 2*time.Minute, "pod "+name+" to be "+what, func() (bool, error) {
		var err error
		p, err = c.Pod(ctx, name)
		return err == nil && is(p), err
	})
	if err == nil {
		return p, nil
	}
	status, _ := json.Marshal(p.Status) // of a type of ours, which encodes
	events, _ := c.Events(context.WithoutCancel(ctx), name)
	for _, e := range events {
		err = fmt.Errorf("%w\n%s %s: %s", err, e.Type, e.Reason, e.Message)
	}
	return p, fmt.Errorf("%w\n%s", err, status)
}

// DeletePod deletes a pod of namespace default and waits until it is gone. That there is none is no error.
func (c *Cluster) DeletePod(ctx context.Context, name string) error {
	return c.Kubectl(ctx, "delete", "pod", name, "--ignore-not-found", "--grace-period=1", "--timeout=2m").Err()
}

// PodStats is what the kubelet measured of a pod.
type PodStats struct {
	CPU    struct{ UsageCoreNanoSeconds uint64 }
	Memory struct{ UsageBytes, WorkingSetBytes uint64 }
}

// WaitStats waits at most a minute for a pod's stats.
func (c *Cluster) WaitStats(ctx context.Context, n *Node, pod string) (PodStats, error) {
	var stats PodStats
	err := c.wait(ctx, time.Minute, "stats of pod "+pod, func() (done bool, err error) {
		stats, err = c.Stats(ctx, n, pod)
		return err == nil && stats.Memory.WorkingSetBytes > 0, err
	})
	return stats, err
}

// Stats are those of a pod of namespace default, which its kubelet has some time after the start.
func (c *Cluster) Stats(ctx context.Context, n *Node, pod string) (PodStats, error) {
	var summary struct {
		Pods []struct {
			PodRef struct{ Name, Namespace string }
			PodStats
		}
	}
	if err := c.Get(ctx, "/api/v1/nodes/"+n.Name+"/proxy/stats/summary", &summary); err != nil {
		return PodStats{}, err
	}
	for _, p := range summary.Pods {
		if p.PodRef.Namespace == "default" && p.PodRef.Name == pod {
			return p.PodStats, nil
		}
	}
	return PodStats{}, fmt.Errorf("stats of pod %s: %w", pod, os.ErrNotExist)
}
