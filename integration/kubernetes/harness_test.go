package kubernetes

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// must ends the test unless the command succeeded.
func must(t testing.TB, r lab.Result) lab.Result {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

// name is a pod's name that no other test has.
func name(t testing.TB) string {
	t.Helper()
	base := strings.Trim(notName.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	base = strings.TrimLeft(base[max(0, len(base)-40):], "-")
	return base + "-" + strings.ToLower(rand.Text()[:6])
}

// notName is what Kubernetes does not take in a name.
var notName = regexp.MustCompile("[^a-z0-9]+")

// apply makes pods and whatever else, without waiting for them, and deletes it all when the test ends.
func apply(t testing.TB, yaml string) {
	t.Helper()
	t.Cleanup(func() {
		if err := shared.Delete(cleanupContext(t), yaml); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Apply(t.Context(), yaml); err != nil {
		t.Fatal(err)
	}
}

// pod is one container of the lab's base image: its command, and what else is said of it and of the pod in YAML.
type pod struct {
	name, class string // class "": the node's default runtime
	node        *cluster.Node
	image       string   // "": the base image
	command     []string // of the image if there is none
	annotations map[string]string
	labels      map[string]string
	container   string // further fields of the container, lines of YAML
	spec        string // further fields of the pod's spec, lines of YAML
}

func (p pod) yaml() string {
	var s strings.Builder
	fmt.Fprintf(&s, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n", p.name)
	if len(p.annotations) > 0 {
		fmt.Fprintln(&s, "  annotations:")
		for key, value := range p.annotations {
			fmt.Fprintf(&s, "    %s: %q\n", key, value)
		}
	}
	if len(p.labels) > 0 {
		fmt.Fprintln(&s, "  labels:")
		for key, value := range p.labels {
			fmt.Fprintf(&s, "    %s: %q\n", key, value)
		}
	}
	fmt.Fprintln(&s, "spec:")
	s.WriteString(indent(p.specYAML(), "  "))
	return s.String()
}

// specYAML is the pod's spec.
func (p pod) specYAML() string {
	var s strings.Builder
	fmt.Fprintln(&s, "terminationGracePeriodSeconds: 1")
	if p.class != "" {
		fmt.Fprintln(&s, "runtimeClassName:", p.class)
	}
	if p.node != nil {
		fmt.Fprintln(&s, "nodeName:", p.node.Name)
	}
	s.WriteString(indent(p.spec, ""))
	image := p.image
	if image == "" {
		image = shared.Base
	}
	fmt.Fprintf(&s, "containers:\n- name: main\n  image: %s\n", image)
	if len(p.command) > 0 {
		fmt.Fprintf(&s, "  command: [%q", p.command[0])
		for _, word := range p.command[1:] {
			fmt.Fprintf(&s, ", %q", word)
		}
		fmt.Fprintln(&s, "]")
	}
	s.WriteString(indent(p.container, "  "))
	return s.String()
}

// indent puts lines of YAML further in.
func indent(lines, by string) string {
	var s strings.Builder
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		s.WriteString(by + strings.TrimRight(line, "\n") + "\n")
	}
	return s.String()
}

// run makes a pod and waits until it is ready.
func run(t testing.TB, p pod) *cluster.Pod {
	t.Helper()
	apply(t, p.yaml())
	return ready(t, p.name)
}

// ready waits until a pod is.
func ready(t testing.TB, name string) *cluster.Pod {
	t.Helper()
	p, err := shared.WaitReady(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ask asks the workload in a pod's first container, and ends the test where it does not answer within half a minute or its state is not whole. A pod without probes is ready before its
// program is.
func ask(t testing.TB, pod string, words ...string) lab.Answer {
	t.Helper()
	a, err := shared.Ask(t.Context(), pod, "", words...)
	for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		a, err = shared.Ask(t.Context(), pod, "", words...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !a.OK {
		t.Fatalf("pod %s is damaged: %s", pod, a.Error)
	}
	return a
}

// cleanupContext is for commands in t.Cleanup, where the test's own context has ended.
func cleanupContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
