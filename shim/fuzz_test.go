package shim

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/criu"
)

// FuzzOpenBundle gives specifications of any kind: what comes out is valid and names CRIU's configuration, or there is an
// error and the file is as before.
func FuzzOpenBundle(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"annotations":{"org.criu.config":"/x"},"linux":{"cgroupsPath":"a:b:c","namespaces":[{"type":"network"}]},"hooks":{"createRuntime":[{"path":"/x"}]}}`))
	f.Add([]byte(`{"annotations":null,"hooks":null}`))
	f.Fuzz(func(t *testing.T, spec []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, specFile)
		if err := os.WriteFile(path, spec, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := openBundle(dir, noImage)
		after, readErr := os.ReadFile(path)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err != nil {
			if string(after) != string(spec) {
				t.Errorf("error %v, but the file became %q", err, after)
			}
			return
		}
		var written struct {
			Annotations map[string]string `json:"annotations"`
		}
		if err := json.Unmarshal(after, &written); err != nil || written.Annotations[criu.Annotation] != b.criuConfig() {
			t.Errorf("wrote %q (%v)", after, err)
		}
	})
}

// FuzzRuncOptions gives CRI's TOML of any kind.
func FuzzRuncOptions(f *testing.F) {
	f.Add([]byte("SystemdCgroup = true\nBinaryName = 'crun'\n"))
	f.Add([]byte("unknown = 1"))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := tomlOptions(&runtimeoptions.Options{ConfigBody: body}, false)
		if (o == nil) == (err == nil) || err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("got %v, %v", o, err)
		}
	})
}
