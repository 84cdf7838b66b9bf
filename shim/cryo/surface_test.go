package cryo

import (
	"bytes"
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write api.txt")

// TestSurface: what the package exports is what api.txt has, so that a change of it is seen, and made on purpose: go test ./shim/cryo -update.
func TestSurface(t *testing.T) {
	const file = "api.txt"
	got := surface(t)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	had, has := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
	for _, line := range had {
		if !slices.Contains(has, line) {
			t.Errorf("- %s", line)
		}
	}
	for _, line := range has {
		if !slices.Contains(had, line) {
			t.Errorf("+ %s", line)
		}
	}
	t.Errorf("the exported names are not those of %s", file)
}

// surface returns the exported declarations, without comments, in the order of their text.
func surface(t *testing.T) []byte {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				d.Body = nil
			case *ast.GenDecl:
				if d.Tok == token.IMPORT {
					continue
				}
			}
			var b bytes.Buffer
			if err := format.Node(&b, files, d); err != nil {
				t.Fatal(err)
			}
			all = append(all, b.String())
		}
	}
	slices.Sort(all)
	lines := slices.DeleteFunc(strings.Split(strings.Join(all, "\n"), "\n"), func(line string) bool { return line == "" })
	return []byte(strings.Join(lines, "\n") + "\n")
}
