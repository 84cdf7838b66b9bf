package kubernetes

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestKubeletCheckpointTo has the kubelet's checkpoint send a snapshot to the registry. A pod on the other node goes on from it, by what the kubelet's archive says.
func TestKubeletCheckpointTo(t *testing.T) {
	before := string(read(t, shared.A.Dir+"/cryo.toml"))
	t.Cleanup(func() {
		if err := shared.A.Configure(before); err != nil {
			t.Error(err)
		}
	})
	address := shared.Registry.Address
	if err := shared.A.Configure(before + "\n[checkpoint]\nrepositories = [\"" + address + "/sent\"]\nplain-http = [\"" + address + "\"]\n"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, to string
		says     string // why there is no checkpoint; empty: there is one
	}{
		{"allowed", address + "/sent/counter", ""},
		{"another repository", address + "/other/counter", "repositories under [checkpoint]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := run(t, pod{name: name(t), class: "cryo", node: shared.A, annotations: map[string]string{"io.cryo.checkpoint-to": test.to},
				command: []string{"workload", "count", "--memory", "64"}})
			id := p.Metadata.Name
			was, had := ask(t, id), must(t, shared.A.Cryo(t.Context(), "ls", "-q")).Stdout
			archive, err := shared.A.Checkpoint(t.Context(), "default", id, "main")
			now := ask(t, id)
			if now.Life != was.Life || now.Count <= was.Count || now.State["sha256"] != was.State["sha256"] {
				t.Errorf("before %+v, after %+v", was, now)
			}
			if has := must(t, shared.A.Cryo(t.Context(), "ls", "-q")).Stdout; has != had {
				t.Errorf("the node has %s, before %s", has, had)
			}
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(archive); err != nil || info.Size() > 1<<20 {
				t.Errorf("the archive has %d bytes, %v", info.Size(), err)
			}
			var sent struct{ Reference, Digest string }
			if err := json.Unmarshal(member(t, archive, "checkpoint/cryo-snapshot.json"), &sent); err != nil {
				t.Fatal(err)
			}
			member(t, archive, "config.dump")
			member(t, archive, "spec.dump")
			if err := os.Remove(archive); err != nil {
				t.Error(err)
			}
			repository, tag, _ := strings.Cut(strings.TrimPrefix(sent.Reference, address+"/"), ":")
			if !strings.HasPrefix(tag, id+"-main-") {
				t.Errorf("the snapshot is called %s", sent.Reference)
			}
			for _, name := range []string{tag, sent.Digest} {
				r, err := shared.Registry.Get(t.Context(), path.Join("/v2", repository, "manifests", name), ocispec.MediaTypeImageManifest+", "+ocispec.MediaTypeImageIndex)
				if err != nil {
					t.Fatal(err)
				}
				r.Body.Close()
				if r.StatusCode != http.StatusOK {
					t.Errorf("the registry says %s of %s", r.Status, name)
				}
			}
			again := pod{name: name(t), class: "cryo", node: shared.B, annotations: map[string]string{"io.cryo.restore": sent.Reference}, command: []string{"workload", "count", "--memory", "64"}}
			run(t, again)
			warm(t, was, ask(t, again.name))
		})
	}
}

// member is a file of an archive.
func member(t *testing.T, path, name string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("the archive has no %s", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimPrefix(h.Name, "./") == name {
			data, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
}
