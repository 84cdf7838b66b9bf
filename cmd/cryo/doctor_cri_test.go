package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cryo-project/cryo/shim/daemon"
)

// runtimeService is containerd's CRI plugin as far as the doctor asks it.
type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	config string
	err    error
}

func (r runtimeService) Status(_ context.Context, q *cri.StatusRequest) (*cri.StatusResponse, error) {
	if !q.GetVerbose() {
		return nil, errors.New("the configuration comes only if it is asked for")
	}
	return &cri.StatusResponse{Info: map[string]string{"config": r.config}}, r.err
}

// serveCRI serves a CRI runtime, or nothing where that is nil, and returns a connection to it.
func serveCRI(t *testing.T, r *runtimeService) grpc.ClientConnInterface {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	if r != nil {
		cri.RegisterRuntimeServiceServer(s, *r)
	}
	go func() { _ = s.Serve(l) }() // it ends with the test
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestCRI looks at containerds with the CRI plugin.
func TestCRI(t *testing.T) {
	bin := t.TempDir()
	shim := filepath.Join(bin, daemon.ShimName)
	for _, path := range []string{shim, filepath.Join(bin, "criu")} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const all = `"PodAnnotations":["io.cryo.*"],"ContainerAnnotations":["io.cryo.*","io.kubernetes.container.restartCount"]`
	handler := func(more string) *runtimeService {
		return &runtimeService{config: `{"containerd":{"runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2"},"cryo":{` + more + `}}}}`}
	}
	byPath := func(path string) string { return `"runtimeType":"io.containerd.runc.v2","runtimePath":"` + path + `",` }
	for _, test := range []struct {
		name    string
		service *runtimeService
		paths   []string // of containerd
		want    map[string]string
		mend    string
	}{
		{"no CRI plugin", nil, nil, map[string]string{"kubernetes": note}, ""},
		{"an error", &runtimeService{err: errors.New("no")}, nil, map[string]string{"kubernetes": worry}, "log"},
		{"no configuration", &runtimeService{}, nil, map[string]string{"kubernetes": note}, ""},
		{"no handler", &runtimeService{config: `{"containerd":{"runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2"}}}}`}, nil, map[string]string{"kubernetes": note}, "contrib/containerd/cryo.toml"},
		{"as shipped", handler(byPath(shim) + all), []string{bin}, map[string]string{"handler cryo": good, "kubelet's checkpoint": good, "runtimeclass": note}, ""},
		{"no CRIU", handler(byPath(shim) + all), nil, map[string]string{"handler cryo": good, "kubelet's checkpoint": worry, "runtimeclass": note}, "ln -s /opt/x/criu "},
		{"no shim", handler(byPath("/nowhere/"+daemon.ShimName) + all), []string{bin}, map[string]string{"handler cryo": trouble, "kubelet's checkpoint": good, "runtimeclass": note}, "runtime_path"},
		{"cryo's name", handler(`"runtimeType":"` + daemon.RuntimeNames[1] + `",` + all), []string{bin}, map[string]string{"handler cryo": worry, "kubelet's checkpoint": good, "runtimeclass": note}, "runtime_type = 'io.containerd.runc.v2'"},
		{"no annotations", handler(byPath(shim) + `"PodAnnotations":["io.cryo.*"]`), []string{bin}, map[string]string{"handler cryo": worry, "kubelet's checkpoint": good, "runtimeclass": note}, "container_annotations = "},
		{"few annotations", handler(byPath(shim) + `"PodAnnotations":["io.cryo.gpu.*"],"ContainerAnnotations":["*"]`), []string{bin}, map[string]string{"handler cryo": worry, "kubelet's checkpoint": good, "runtimeclass": note}, "pod_annotations = "},
		{"CRIU disabled", &runtimeService{config: `{"enableCRIU":false,"containerd":{"runtimes":{"cryo":{` + byPath(shim) + all + `}}}}`}, []string{bin},
			map[string]string{"handler cryo": good, "kubelet's checkpoint": worry, "runtimeclass": note}, "enable_criu"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := patient{root: "/", criu: "/opt/x/criu", paths: test.paths}
			got := p.examineCRI(t.Context(), serveCRI(t, test.service))
			mends := ""
			for _, d := range got {
				if test.want[d.Name] != d.Status {
					t.Errorf("%+v, want %q", d, test.want[d.Name])
				}
				if (d.Status == worry || d.Status == trouble) && d.Mend == "" {
					t.Errorf("%s: nothing is said of what to do", d.Name)
				}
				mends += d.Mend
			}
			if len(got) != len(test.want) || !strings.Contains(mends, test.mend) {
				t.Errorf("got %+v, want %v and %q", got, test.want, test.mend)
			}
		})
	}
}
