package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestAddLoopback(t *testing.T) {
	ours := fmt.Sprintf("/proc/%d/exe", os.Getpid())
	tests := []struct {
		name, spec string
		hooks      []string // paths of createRuntime's, in order
	}{
		{"own network", `{"linux":{"namespaces":[{"type":"network"}]}}`, []string{ours}},
		{"own network and hooks", `{"hooks":{"createRuntime":[{"path":"/cni"}],"poststop":[{"path":"/bye"}]},"linux":{"namespaces":[{"type":"pid"},{"type":"network"}]}}`, []string{ours, "/cni"}},
		{"null hooks", `{"hooks":null,"linux":{"namespaces":[{"type":"network"}]}}`, []string{ours}},
		{"network of a path", `{"linux":{"namespaces":[{"type":"network","path":"/run/netns/x"}]}}`, nil},
		{"network of the host", `{"linux":{"namespaces":[{"type":"pid"}]}}`, nil},
		{"no linux", `{}`, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := bundle{dir: t.TempDir()}
			path := filepath.Join(b.dir, specFile)
			if err := os.WriteFile(path, []byte(test.spec), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := b.changeSpec(func(spec *specs.Spec) error { addLoopback(spec); return nil }); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var spec specs.Spec
			if err := json.Unmarshal(data, &spec); err != nil {
				t.Fatal(err)
			}
			var got []string
			if spec.Hooks != nil {
				for _, h := range spec.Hooks.CreateRuntime {
					got = append(got, h.Path)
				}
			}
			if !slices.Equal(got, test.hooks) {
				t.Errorf("hooks are %q, want %q", got, test.hooks)
			}
			if len(test.hooks) == 2 && len(spec.Hooks.Poststop) != 1 {
				t.Error("another hook is lost")
			}
		})
	}
}
