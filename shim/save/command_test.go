package save

import (
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/shim/worker"
)

// TestRequestPaths: files that a command names relative to its working directory are named in full to the shim, which is in another one.
func TestRequestPaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, test := range []struct{ authorities, credentials, wantAuthorities, wantCredentials string }{
		{"ca.pem", "x/../config.json", filepath.Join(dir, "ca.pem"), filepath.Join(dir, "config.json")},
		{"/etc/ca.pem", "/etc/config.json", "/etc/ca.pem", "/etc/config.json"},
		{"", "", "", ""},
	} {
		a := asking{Command: Command{Options: Options{Push: &registry.Options{CAFile: test.authorities, DockerConfig: test.credentials}}}, sub: &candidate{}}
		asked, err := a.request(namespaces.WithNamespace(t.Context(), "default"), dir)
		if err != nil {
			t.Fatal(err)
		}
		var o options.CheckpointOptions
		if err := typeurl.UnmarshalTo(asked.Options, &o); err != nil {
			t.Fatal(err)
		}
		r, err := worker.RequestIn(&o)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Checkpoint.Order.Push; got.CAFile != test.wantAuthorities || got.Credentials != test.wantCredentials {
			t.Errorf("%q and %q became %q and %q", test.authorities, test.credentials, got.CAFile, got.Credentials)
		}
	}
}
