package kubernetes

import (
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// controller is a controller of jobs. Its authors' manifests deploy it, with their roles, webhooks and certificates. "make kubernetes" puts the program and the manifests into a folder of bin/kubernetes.
type controller struct {
	folder string
	image  string // that the manifests name, without its registry: nodes pull all images from the cluster's
	flag   string // of kubectl, for the manifests
	path   string // of the manifests in the folder
}

// The controllers.
var (
	jobSetController = controller{"jobset", "k8s-staging-images/jobset/jobset:v0.10.1", "--kustomize", "config/default"}
	lwsController    = controller{"lws", "k8s-staging-images/lws/lws:main", "--kustomize", "config/default"}
	mpiController    = controller{"mpi-operator", "mpioperator/mpi-operator:0.6.0", "--filename", "deploy/v2beta1/mpi-operator.yaml"}
)

// start deploys the controller until the test ends. It has started when the API server takes an object of its kind.
func (c controller) start(t *testing.T, object string) {
	t.Helper()
	folder := shared.Lab.Tool("kubernetes/" + c.folder)
	program, err := os.ReadFile(filepath.Join(folder, "manager"))
	if err != nil {
		t.Fatal(&lab.MissingError{What: "no " + c.folder, Hint: "run: make kubernetes"})
	}
	layer, err := lab.Layer([]lab.File{{Name: "tmp/", Mode: 0o1777}, {Name: "manager", Mode: 0o755, Content: program}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Registry.Push(t.Context(), c.image, ocispec.ImageConfig{Entrypoint: []string{"/manager"}, User: "65532:65532"}, layer); err != nil {
		t.Fatal(err)
	}
	manifests := c.flag + "=" + filepath.Join(folder, c.path)
	t.Cleanup(func() {
		must(t, shared.Kubectl(cleanupContext(t), "delete", manifests, "--ignore-not-found", "--timeout=2m"))
	})
	must(t, shared.Kubectl(t.Context(), "apply", "--server-side", manifests))
	eventually(t, "the controller "+c.folder, func() bool { return shared.Apply(t.Context(), object, "--dry-run=server") == nil })
}
