// Package direction holds the test that dependencies between the project's packages point one way:
//
//	cmd -> shim -> runtime -> image
//	integration -> {runtime, image}, and shim/cryo, which is for programs outside
//
// image is what a snapshot is: it knows nothing of processes. runtime is what is done to processes: it knows snapshots, and no containerd. shim is where both meet containerd.
// Each imports what is right of it, never what is left of it.
package direction

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cryo-project/cryo/"

// allowed says which top folders a top folder may import, itself aside; tests of a package are held to the same, but for what is for tests.
var allowed = map[string][]string{
	"cmd":         {"shim", "runtime", "image"},
	"shim":        {"runtime", "image"},
	"runtime":     {"image"},
	"image":       {},
	"integration": {"runtime", "image", "shim/cryo"},
}

// forTests are packages that tests of others may import, and what these may import beyond what integration may.
var forTests = map[string][]string{
	"integration/gputest":   nil,
	"integration/hosttest":  {"shim/config"},
	"integration/storetest": nil,
	"integration/twintest":  nil,
}

// Most is how many packages the product may have, and deepest how many folders their paths: a newcomer reads their list in one sitting.
const (
	most    = 30
	deepest = 3
)

// vague names say nothing of what a package is about.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "lib"}

type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestDirection(t *testing.T) {
	all := packages(t)
	if len(all) < 5 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	products := 0
	for _, p := range all {
		own := strings.TrimPrefix(p.ImportPath, module)
		top, _, _ := strings.Cut(own, "/")
		may, known := allowed[top]
		if !known {
			t.Errorf("%s: %s is no top folder that this test knows; add it with what it may import", own, top)
			continue
		}
		if top != "integration" {
			products++
			if strings.Count(own, "/") >= deepest {
				t.Errorf("%s lies deeper than %d folders", own, deepest)
			}
		}
		may = slices.Concat(may, forTests[own])
		check := func(imported string, may []string) {
			if rest, ours := strings.CutPrefix(imported, module); ours && !permits(top, may, rest) {
				t.Errorf("%s imports %s, and %s may import only itself and %v", own, rest, top, may)
			}
		}
		for _, imported := range p.Imports {
			check(imported, may)
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			check(imported, slices.AppendSeq(slices.Clone(may), maps.Keys(forTests)))
		}
		for _, name := range vague {
			if path.Base(own) == name {
				t.Errorf("%s: %q says nothing of what the package is about", own, name)
			}
		}
	}
	if products > most {
		t.Errorf("%d packages, and a newcomer should find one of %d: which two are of one thing?", products, most)
	}
}

func permits(top string, may []string, imported string) bool {
	for _, folder := range append([]string{top}, may...) {
		if imported == folder || strings.HasPrefix(imported, folder+"/") {
			return true
		}
	}
	return false
}

// packages lists the whole module.
func packages(t *testing.T) []listed {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	c.Env = append(os.Environ(), "CGO_ENABLED=1") // else it passes over files with cgo
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	var all []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// notInShim are packages that the shim's program must not link: each container waits twice until all that is linked has begun.
var notInShim = []string{
	"github.com/distribution/reference", // 1.5 ms each time, see image/store/ref.go
	"github.com/spf13/cobra",
	module + "image/registry",
}

// inHelper are all packages of ours that the GPU helper links, which is started for each operation.
var inHelper = []string{"cmd/cryo-gpu-keeper", "image/failure", "image/record", "runtime/channel", "runtime/gpu/device"}

func TestHelperIsLight(t *testing.T) {
	c := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/cryo-gpu-keeper")
	c.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	for _, name := range strings.Fields(string(out)) {
		if own, ours := strings.CutPrefix(name, module); ours && !slices.Contains(inHelper, own) {
			t.Errorf("the GPU helper links %s", own)
		}
	}
}

// inGuard are all packages of ours that cryo-guard links, which each restore starts half a dozen times, and notInGuard begins the names of others' that are not to be in it.
var (
	inGuard    = []string{"cmd/cryo-guard", "image/failure", "image/format", "image/record", "image/trust", "runtime/channel", "runtime/criu", "runtime/guard"}
	notInGuard = []string{"net/http", "google.golang.org/grpc", "github.com/containerd/ttrpc", "github.com/containerd/containerd/v2/client", "k8s.io/"}
)

func TestGuardIsLight(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/cryo-guard").Output()
	if err != nil {
		t.Fatalf("list what cryo-guard links: %v", err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, module+"runtime/guard") {
		t.Fatalf("go list found only %v", linked)
	}
	for _, name := range linked {
		own, ours := strings.CutPrefix(name, module)
		if ours && !slices.Contains(inGuard, own) || slices.ContainsFunc(notInGuard, func(other string) bool { return strings.HasPrefix(name, other) }) {
			t.Errorf("cryo-guard links %s", name)
		}
	}
}

// TestSameVersions: the tools are built of the versions of golang.org/x that cryo is built of. Nearly all else is built on these, and would be compiled twice.
func TestSameVersions(t *testing.T) {
	versions := func(dir string) map[string]string {
		c := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
		c.Dir = dir
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s in %s: %v", c, dir, err)
		}
		var file struct {
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal(out, &file); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, r := range file.Require {
			if strings.HasPrefix(r.Path, "golang.org/x/") && r.Path != "golang.org/x/tools" && r.Path != "golang.org/x/exp" {
				all[r.Path] = r.Version
			}
		}
		return all
	}
	own, tools := versions("../.."), versions("../tools")
	if own["golang.org/x/sys"] == "" || tools["golang.org/x/sys"] == "" {
		t.Fatalf("go.mod has %v, and that of the tools %v", own, tools)
	}
	for path, version := range own {
		if other := tools[path]; other != "" && other != version {
			t.Errorf("%s is of version %s here, and %s in integration/tools: have both of the newer one by go get", path, version, other)
		}
	}
}

func TestShimIsLight(t *testing.T) {
	c := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/containerd-shim-cryo-v1")
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, module+"shim") {
		t.Fatalf("go list found only %v", linked)
	}
	for _, name := range notInShim {
		if slices.Contains(linked, name) {
			t.Errorf("the shim links %s; find out by what with: go list -deps -f '{{.ImportPath}} {{.Imports}}' ./cmd/containerd-shim-cryo-v1", name)
		}
	}
}

// TestVerified: only the store says that what it keeps was verified.
func TestVerified(t *testing.T) {
	const root, maker = "../..", "image/store/blob.go"
	made := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		own, _ := strings.CutPrefix(name, root+"/")
		switch n := strings.Count(string(source), "format.NewVerified("); {
		case own == maker:
			made += n
		case n > 0:
			t.Errorf("%s says of bytes that they were verified; only %s may", own, maker)
		}
		return nil
	})
	if err != nil || made != 1 {
		t.Errorf("%s says so %d times, %v", maker, made, err)
	}
}
