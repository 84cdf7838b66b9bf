package integration

import (
	"os"
	"path/filepath"
	"testing"
)

// TestInsideLinkedMount moves a container with bind mounts whose sources are symbolic links, to a file and to a directory: the
// restored one has what the links lead to, as the first had.
func TestInsideLinkedMount(t *testing.T) {
	a, b := pair(t)
	dir, id, ref := t.TempDir(), name(t), shared.registry.Reference("inside/links:1")
	if err := os.MkdirAll(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"file", "directory/file"} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte("behind a link\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var flags []string
	for link, target := range map[string]string{"to-file": "file", "to-directory": "directory", "to-link": "to-file"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--mount", "type=bind,src="+filepath.Join(dir, link)+",dst=/mnt/"+link+",options=rbind:ro")
	}
	startImage(t, a, shared.image, id, flags, "workload", "count")
	await(t, a, id)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--wait", "--allow", "mounts"))
	await(t, b, id)
	for _, path := range []string{"to-file", "to-directory/file", "to-link"} {
		r := must(t, b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "e", id, "cat", "/mnt/"+path))
		if r.Stdout != "behind a link\n" {
			t.Errorf("%s has %q", path, r.Stdout)
		}
	}
}
