package main

import (
	"context"
	"encoding/json"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/daemon"
)

// criConfig is what matters here of the configuration of containerd's CRI plugin. Source: containerd, internal/cri/config, Config.
type criConfig struct {
	EnableCRIU *bool `json:"enableCRIU"`
	Containerd struct {
		Runtimes map[string]criHandler `json:"runtimes"`
	} `json:"containerd"`
}

type criHandler struct {
	Type                 string   `json:"runtimeType"`
	Path                 string   `json:"runtimePath"`
	PodAnnotations       []string `json:"PodAnnotations"`
	ContainerAnnotations []string `json:"ContainerAnnotations"`
}

// ours reports whether cryo's shim serves the handler's pods.
func (h criHandler) ours() bool {
	if h.Path != "" {
		return filepath.Base(h.Path) == daemon.ShimName
	}
	return slices.Contains(daemon.RuntimeNames, h.Type)
}

// What a handler has to pass on: io.cryo.* may be a pod's, and of what the kubelet says of a container cryo reads this.
const (
	ownAnnotations = "io.cryo.*"
	ownAnnotation  = "io.cryo.restore" // one of them
	restartCount   = "io.kubernetes.container.restartCount"
)

// mendHandler is what to do about handlers.
const mendHandler = "for Kubernetes, take the runtime of contrib/containerd/cryo.toml into containerd's configuration, and restart containerd (running containers live on)"

func checkCRI(ctx context.Context, p *patient) []Diagnosis {
	ctx, client, err := p.Connect(ctx)
	if err != nil {
		return nil // which was said
	}
	defer client.Close()
	conn, ok := client.Conn().(grpc.ClientConnInterface)
	if !ok {
		return nil
	}
	return p.examineCRI(ctx, conn)
}

func (p *patient) examineCRI(ctx context.Context, conn grpc.ClientConnInterface) []Diagnosis {
	answer, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true})
	if status.Code(err) == codes.Unimplemented {
		return found("kubernetes", note, "", "containerd's CRI plugin is disabled: no kubelet uses this containerd")
	}
	if err != nil {
		return found("kubernetes", worry, "see containerd's log", "ask containerd's CRI plugin: %v", err)
	}
	var c criConfig
	if err := json.Unmarshal([]byte(answer.GetInfo()["config"]), &c); err != nil {
		return found("kubernetes", note, "", "containerd's CRI plugin does not tell its configuration: %v", err)
	}
	var all []Diagnosis
	for name, h := range c.Containerd.Runtimes {
		if h.ours() {
			all = append(all, examineHandler("handler "+name, h))
		}
	}
	if len(all) == 0 {
		return found("kubernetes", note, mendHandler, "no runtime handler of containerd's CRI plugin has cryo's shim: pods cannot use it")
	}
	slices.SortFunc(all, func(a, b Diagnosis) int { return strings.Compare(a.Name, b.Name) })
	all = append(all, p.examineKubeletCheckpoint(c)...)
	return append(all, found("runtimeclass", note, "", "not looked at, which would need the API server: kubectl get runtimeclass shows whether one names the handler")...)
}

// examineHandler looks at a handler of cryo's.
func examineHandler(name string, h criHandler) Diagnosis {
	const runc = "io.containerd.runc.v2"
	d := func(status, mend, detail string) Diagnosis {
		return Diagnosis{Name: name, Status: status, Mend: mend, Detail: detail}
	}
	if h.Path != "" {
		if _, err := exec.LookPath(h.Path); err != nil {
			return d(trouble, "set runtime_path to where "+daemon.ShimName+" is, and restart containerd", "its pods cannot start: "+err.Error())
		}
	}
	if !passes(h.PodAnnotations, ownAnnotation) || !passes(h.ContainerAnnotations, ownAnnotation) || !passes(h.ContainerAnnotations, restartCount) {
		return d(worry, "set pod_annotations = ['"+ownAnnotations+"'] and container_annotations = ['"+ownAnnotations+"', '"+restartCount+"'], and restart containerd",
			"what pods and the kubelet say to cryo by annotations does not reach it, or not all of it")
	}
	if h.Type != runc {
		return d(worry, "set runtime_type = '"+runc+"' and runtime_path to where "+daemon.ShimName+" is, and restart containerd",
			h.Type+": pods with hostUsers: false do not start, and checkpoints of the kubelet lack CRIU's log")
	}
	return d(good, "", h.Type+", "+h.Path)
}

// passes reports whether one of a handler's patterns has an annotation. Source: containerd, internal/cri/util, GetPassthroughAnnotations.
func passes(patterns []string, annotation string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, annotation)
		return err == nil && ok
	})
}

// examineKubeletCheckpoint looks for what CRI wants before it asks the shim for a checkpoint. Source: containerd, internal/cri/server, doCheckCriu.
func (p *patient) examineKubeletCheckpoint(c criConfig) []Diagnosis {
	const name, refused = "kubelet's checkpoint", "containerd refuses checkpoints that the kubelet asks for"
	if c.EnableCRIU != nil && !*c.EnableCRIU {
		return found(name, worry, "remove enable_criu = false from containerd's configuration, and restart containerd", "%s: enable_criu is false", refused)
	}
	path, err := lookup("criu", p.paths)
	if err != nil {
		mend := criu.InstallHint(criu.Needed(kernelRelease(p.root)))
		if p.criu != "" {
			mend = "ln -s " + p.criu + " /usr/local/bin/criu, or into another directory of containerd's PATH"
		}
		return found(name, worry, mend, "%s: %v", refused, err)
	}
	return found(name, good, "", "containerd finds %s", path)
}
