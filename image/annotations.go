package image

import (
	"cmp"
	"fmt"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Labels by which containerd's clients name a container. Source: Kubernetes, pkg/kubelet/types/labels.go; nerdctl, pkg/labels.
const (
	podContainerLabel = "io.kubernetes.container.name"
	podNameLabel      = "io.kubernetes.pod.name"
	podNamespaceLabel = "io.kubernetes.pod.namespace"
	podUIDLabel       = "io.kubernetes.pod.uid"
	nerdctlLabel      = "nerdctl/name"
)

// annotations returns those of a snapshot's manifest. They inform clients that do not know the config; no reader decides by them. Those of org.criu.checkpoint are as checkpointctl defines
// them (lib/metadata.go, 1.7), which podman and CRI-O write too. They are on the manifest of the snapshot alone: of an image that has them, CRI-O and containerd 2.2 think that its only layer is an archive
// of theirs.
func annotations(cfg Config) map[string]string {
	c, h := cfg.Container, cfg.Host
	all := map[string]string{
		ocispec.AnnotationBaseImageName:   c.Image,
		ocispec.AnnotationBaseImageDigest: c.ImageDigest.String(),
		AnnotationContainerID:             c.ID,

		"org.criu.checkpoint.engine.name":              "containerd",
		"org.criu.checkpoint.container.name":           cmp.Or(c.Labels[podContainerLabel], c.Labels[nerdctlLabel], c.ID),
		"org.criu.checkpoint.pod.name":                 c.Labels[podNameLabel],
		"org.criu.checkpoint.pod.namespace":            c.Labels[podNamespaceLabel],
		"org.criu.checkpoint.pod.id":                   c.Labels[podUIDLabel],
		"org.criu.checkpoint.rootfsImageName":          c.Image,
		"org.criu.checkpoint.rootfsImageUserRequested": c.Image,
		"org.criu.checkpoint.rootfsImageID":            c.ImageDigest.String(),
		"org.criu.checkpoint.runtime.name":             "runc",
		"org.criu.checkpoint.runtime.version":          h.Runc,
		"org.criu.checkpoint.criu.version":             h.CRIU,
		"org.criu.checkpoint.host.arch":                h.Architecture,
		"org.criu.checkpoint.host.kernel":              h.Kernel,
	}
	if h.CgroupVersion > 0 {
		all["org.criu.checkpoint.cgroup.version"] = fmt.Sprintf("v%d", h.CgroupVersion)
	}
	if !cfg.Created.IsZero() {
		all[ocispec.AnnotationCreated] = cfg.Created.UTC().Format(time.RFC3339)
	}
	for key, value := range all {
		if value == "" {
			delete(all, key)
		}
	}
	return all
}
