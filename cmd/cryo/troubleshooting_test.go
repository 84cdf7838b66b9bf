package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTroubleshooting compares the list of messages in README.md with the source: a message that nothing says any more must go.
func TestTroubleshooting(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## Troubleshooting\n")
	_, list, _ := strings.Cut(page, "\nMessages:\n")
	said := literals(t)
	n := 0
	for line := range strings.Lines(list) {
		messages, _, ok := strings.Cut(line, "`: ")
		if !ok || !strings.HasPrefix(line, "- ") {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(messages+"`", -1) {
			n++
			if !foreign[m[1]] && !slices.ContainsFunc(said, func(text string) bool { return within(m[1], text) }) {
				t.Errorf("the page has a message that nothing in the source says: %q", m[1])
			}
		}
	}
	if n < 15 {
		t.Fatalf("the page has only %d messages", n)
	}
}

// foreign are what other programs say, and their names.
var foreign = map[string]bool{"blob unknown": true, "ctr images push": true}

// within tells whether a message has a fragment, in which … stands for anything.
func within(fragment, message string) bool {
	for _, part := range strings.Split(fragment, "…") {
		i := strings.Index(message, part)
		if i < 0 {
			return false
		}
		message = message[i+len(part):]
	}
	return true
}

// literals are all strings of the product's source.
func literals(t *testing.T) (all []string) {
	t.Helper()
	for _, top := range []string{"cmd", "shim", "runtime", "image"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil {
						all = append(all, text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
