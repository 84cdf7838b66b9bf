package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
)

// BenchmarkScale scales a Deployment from nothing to 20 pods on two nodes and prints a table: how long until pods are ready, each and all, started by runc and by cryo, and restored from a
// snapshot that the nodes pull, and that they have prewarmed. A pod has a GiB of memory that it makes when it starts. CRYO_SCALE=PODS,MIB changes both numbers. "make kubernetes-bench" runs it.
func BenchmarkScale(b *testing.B) {
	pods, size := 20, 1024
	if given := os.Getenv("CRYO_SCALE"); given != "" {
		if _, err := fmt.Sscanf(given, "%d,%d", &pods, &size); err != nil {
			b.Fatalf("CRYO_SCALE=%s: %v", given, err)
		}
	}
	command := []string{"workload", "count", "--memory", strconv.Itoa(size)}
	first := pod{name: name(b), class: "cryo", node: shared.A, command: command}
	p := run(b, first)
	ask(b, first.name)
	ref, _ := snapshot(b, shared.A, p)
	if err := shared.DeletePod(b.Context(), first.name); err != nil {
		b.Fatal(err)
	}
	table := fmt.Sprintf("%d pods of %d MiB on two nodes, seconds from the scaling until pods are ready\n\n| | first | median | last |\n| --- | ---: | ---: | ---: |\n", pods, size)
	for _, c := range []struct {
		what, class, image string
		command            []string
		prewarmed          bool
	}{
		{"started by runc", "", shared.Base, command, false},
		{"started by cryo", "cryo", shared.Base, command, false},
		{"restored, from the registry", "cryo", ref, nil, false},
		{"restored, prewarmed", "cryo", ref, nil, true},
	} {
		for _, n := range []*cluster.Node{shared.A, shared.B} {
			images := pod{name: name(b), node: n, image: c.image, command: []string{"true"}, spec: "restartPolicy: Never"}
			apply(b, images.yaml()) // so that all cases have the image
			if _, err := shared.WaitPod(b.Context(), images.name, "over", func(p *cluster.Pod) bool { return p.Status.Phase == "Succeeded" }); err != nil {
				b.Fatal(err)
			}
			if c.prewarmed {
				must(b, n.Cryo(b.Context(), "-n", "k8s.io", "prewarm", ref, "--plain-http"))
			}
		}
		times := scale(b, pods, c.class, c.image, c.command)
		table += fmt.Sprintf("| %s | %.1f | %.1f | %.1f |\n", c.what, times[0], times[len(times)/2], times[len(times)-1])
	}
	fmt.Print("\n", table)
}

// scale gives the seconds after which each pod is ready, ascending.
func scale(b *testing.B, pods int, class, image string, command []string) []float64 {
	b.Helper()
	p := pod{name: "x", class: class, image: image, command: command, container: "readinessProbe: {exec: {command: [workload, ask]}, periodSeconds: 1, timeoutSeconds: 30}"}
	yaml := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: scale}\nspec:\n  replicas: 0\n  selector: {matchLabels: {app: scale}}\n  template:\n" +
		"    metadata: {labels: {app: scale}}\n    spec:\n" + indent(p.specYAML(), "      ")
	if err := shared.Apply(b.Context(), yaml); err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	if err := shared.Kubectl(b.Context(), "scale", "deployment", "scale", "--replicas="+strconv.Itoa(pods)).Err(); err != nil {
		b.Fatal(err)
	}
	ready := map[string]float64{}
	for len(ready) < pods {
		if time.Since(begin) > 10*time.Minute {
			b.Fatalf("%d of %d pods are ready", len(ready), pods)
		}
		var list struct{ Items []cluster.Pod }
		if err := shared.Get(b.Context(), "/api/v1/namespaces/default/pods?labelSelector=app%3Dscale", &list); err != nil {
			b.Fatal(err)
		}
		now := time.Since(begin).Seconds()
		for i := range list.Items {
			if p := &list.Items[i]; p.Ready() && ready[p.Metadata.Name] == 0 {
				ready[p.Metadata.Name] = now
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	lives := map[string]bool{}
	for name := range ready {
		lives[ask(b, name).Life] = true
	}
	if restored := len(command) == 0; restored != (len(lives) == 1) {
		b.Fatalf("of %d pods there are %d lives", pods, len(lives))
	}
	if err := shared.Delete(b.Context(), yaml); err != nil {
		b.Fatal(err)
	}
	for {
		var list struct{ Items []json.RawMessage }
		if err := shared.Get(b.Context(), "/api/v1/namespaces/default/pods?labelSelector=app%3Dscale", &list); err != nil {
			b.Fatal(err)
		}
		if len(list.Items) == 0 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return slices.Sorted(maps.Values(ready))
}
