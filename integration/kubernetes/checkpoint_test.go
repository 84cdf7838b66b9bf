package kubernetes

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestKubeletCheckpoint has the kubelet checkpoint a container of cryo's and one of runc's: both go on, and cryo's archive has what runc's has, and a file
// of its own.
func TestKubeletCheckpoint(t *testing.T) {
	files := map[string][]string{}
	for _, class := range []string{"cryo", ""} {
		p := run(t, pod{name: name(t), class: class, node: shared.A, command: []string{"workload", "count", "--memory", "8"}})
		id := p.Metadata.Name
		before := ask(t, id)
		archive, err := shared.A.Checkpoint(t.Context(), "default", id, "main")
		if err != nil {
			t.Fatalf("class %q: %v", class, err)
		}
		files[class] = entries(t, archive)
		if err := os.Remove(archive); err != nil {
			t.Error(err)
		}
		after := ask(t, id)
		if after.Life != before.Life || after.Count <= before.Count || after.State["sha256"] != before.State["sha256"] {
			t.Errorf("class %q: before %+v, after %+v", class, before, after)
		}
	}
	own := func(file string) bool { return file == "checkpoint/cryo.json" }
	if ours := slices.DeleteFunc(slices.Clone(files["cryo"]), own); !slices.Equal(ours, files[""]) {
		t.Errorf("cryo's archive has\n%v\nand runc's\n%v", ours, files[""])
	}
	for _, want := range []string{"config.dump", "spec.dump", "dump.log", "checkpoint/inventory.img", "checkpoint/pages-N.img"} {
		if !slices.Contains(files["cryo"], want) {
			t.Errorf("cryo's archive has no %s: %v", want, files["cryo"])
		}
	}
}

// entries lists an archive's files, with N in place of numbers.
func entries(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read %s: %v", path, err)
		}
		names = append(names, numbers.ReplaceAllString(strings.TrimPrefix(h.Name, "./"), "N"))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var numbers = regexp.MustCompile(`[0-9]+`)
