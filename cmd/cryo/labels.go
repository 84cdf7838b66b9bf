package main

import "github.com/cryo-project/cryo/image/trust"

// containerLabels are those of the restored container.
func containerLabels(old map[string]string, namespace, name, digest, ref string) map[string]string {
	labels := trust.Labels(old)
	labels[restoredLabel] = digest
	if ref != "" {
		labels["io.cryo.reference"] = ref
	}
	// nerdctl lists a container of its own by this name, and finds it by these.
	if old[nerdctlName] != "" {
		labels[nerdctlName] = name
		labels["nerdctl/namespace"] = namespace
		if p := old["nerdctl/platform"]; p != "" {
			labels["nerdctl/platform"] = p
		}
	}
	return labels
}
