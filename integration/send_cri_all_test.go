package integration

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// criHost is a host whose containerd has the CRI plugin, with contrib/containerd/cryo.toml.
func criHost(t *testing.T, name string) (*lab.Host, cri.RuntimeServiceClient) {
	t.Helper()
	const shipped = "/usr/local/bin/containerd-shim-cryo-v1"
	handler := read(t, "../contrib/containerd/cryo.toml")
	if !strings.Contains(handler, shipped) {
		t.Fatal("the handler is of another program")
	}
	h := newHost(t, name, lab.HostOptions{
		Config: "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = 'cryo.test/pause:1'\n" +
			"[plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE\n",
		Node: &lab.Node{Files: map[string]string{
			"/etc/containerd/conf.d/cryo.toml": strings.Replace(handler, shipped, shared.lab.Tool("containerd-shim-cryo-v1"), 1),
		}},
	})
	if err := h.ImportPrograms(t.Context(), "cryo.test/pause:1", []string{"pause", "1000000"}, map[string]string{"pause": "/bin/sleep"}); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{shared.lab.Image().Path, filepath.Join(h.Dir, "programs.tar")} {
		must(t, h.Ctr(t.Context(), "-n", "k8s.io", "images", "import", "--snapshotter", "overlayfs", image))
	}
	return h, cri.NewRuntimeServiceClient(client(t, h).Conn().(grpc.ClientConnInterface))
}

// runCRIPod has CRI run a pod of one container in the host's network, until the test ends.
func runCRIPod(t *testing.T, h *lab.Host, c cri.RuntimeServiceClient, annotations map[string]string, command ...string) (id string) {
	t.Helper()
	host := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
	pod := &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: name(t)},
		Annotations: annotations, LogDirectory: filepath.Join(h.Dir, "logs"),
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: host}},
	}
	box, err := c.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: "cryo"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := cleanupContext(t)
		if _, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: box.GetPodSandboxId()}); err != nil {
			t.Error(err)
		}
		if _, err := c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: box.GetPodSandboxId()}); err != nil {
			t.Error(err)
		}
	})
	made, err := c.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: box.GetPodSandboxId(), SandboxConfig: pod, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: lab.ImageName}, Command: command, LogPath: "main.log",
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: host}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: made.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	return made.GetContainerId()
}

// archived are the files of an archive by their names.
func archived(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckpointToCRI has containerd's CRI plugin write archives, as for the kubelet: with the annotation and without.
func TestCheckpointToCRI(t *testing.T) {
	h, c := criHost(t, "cri")
	allowSending(t, h, "", shared.registry.Address)
	repository := shared.registry.Reference("send/" + name(t))
	for _, annotations := range []map[string]string{nil, {sendAnnotation: repository}} {
		id := runCRIPod(t, h, c, annotations, "workload", "count", "--memory", "32")
		ask := func(exec string) (a lab.Answer) {
			t.Helper()
			eventually(t, "an answer", time.Minute, func() bool {
				r := h.Ctr(t.Context(), "-n", "k8s.io", "tasks", "exec", "--exec-id", strings.ToLower(exec), id, "workload", "ask")
				return r.Code == 0 && json.Unmarshal([]byte(r.Stdout), &a) == nil && a.OK
			})
			return a
		}
		before := ask("before")
		path := filepath.Join(t.TempDir(), "archive.tar")
		if _, err := c.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: id, Location: path}); err != nil {
			t.Fatal(err)
		}
		goneOn(t, before, ask("after"))
		files := archived(t, path)
		for _, name := range []string{"config.dump", "spec.dump", "status.dump", "dump.log", "stats-dump"} {
			if len(files[name]) == 0 {
				t.Errorf("annotations %v: the archive has no %s", annotations, name)
			}
		}
		reference := files["checkpoint/cryo-snapshot.json"]
		images := slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(name string) bool { return strings.HasSuffix(name, ".img") })
		if annotations == nil {
			if reference != nil || !images {
				t.Error("without the annotation the archive is another than it was")
			}
			continue
		}
		var s sent
		if err := json.Unmarshal(reference, &s); err != nil || images {
			t.Errorf("CRIU's images are there (%v), and %q", images, reference)
		}
		if info, err := os.Stat(path); err != nil || info.Size() > 1<<20 {
			t.Errorf("the archive has %d bytes", info.Size())
		}
		if !strings.HasPrefix(s.Reference, repository+":pod-main-") {
			t.Errorf("the snapshot is called %s", s.Reference)
		}
		must(t, h.Cryo(t.Context(), "inspect", s.Reference, "--plain-http"))
		keptNothing(t, h)
	}
	var all []struct{ Name, Status string }
	if err := json.Unmarshal([]byte(h.Cryo(t.Context(), "doctor", "--json").Stdout), &all); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"handler cryo", "kubelet's checkpoint"} {
		if !slices.Contains(all, struct{ Name, Status string }{name, "ok"}) {
			t.Errorf("the doctor does not say that %s is ok: %v", name, all)
		}
	}
}
