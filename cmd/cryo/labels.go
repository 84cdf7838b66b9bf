package main

import (
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/daemon"
)

// containerLabels are those of the restored container.
func containerLabels(old map[string]string, namespace, name, digest, ref string) map[string]string {
	labels := trust.Labels(old)
	labels[daemon.RestoredLabel] = digest
	if ref != "" {
		labels[daemon.ReferenceLabel] = ref
	}
	// nerdctl lists a container of its own by this name, and finds it by these.
	if old[daemon.NameLabel] != "" {
		labels[daemon.NameLabel] = name
		labels["nerdctl/namespace"] = namespace
		if p := old["nerdctl/platform"]; p != "" {
			labels["nerdctl/platform"] = p
		}
	}
	return labels
}
