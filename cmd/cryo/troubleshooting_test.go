package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTroubleshooting compares the troubleshooting lists of README.md with the source. Every error that has a hint, and every remedy for a message of CRIU's,
// must have a line with a part of its message. Every line must name a message that the source has.
func TestTroubleshooting(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## Troubleshooting\n")
	var fragments []string
	for line := range strings.Lines(page) {
		if messages, _, ok := strings.Cut(line, "`: "); ok && strings.HasPrefix(line, "- ") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(messages+"`", -1) {
				fragments = append(fragments, m[1])
			}
		}
	}
	if len(fragments) < 50 {
		t.Fatalf("the page has only %d messages", len(fragments))
	}
	found := func(messages []string) bool {
		for _, f := range fragments {
			for _, m := range messages {
				if within(f, m) {
					return true
				}
			}
		}
		return false
	}

	types, remedies, all := messages(t)
	if len(types) < 60 || len(remedies) < 10 {
		t.Fatalf("found only %d errors with hints and %d remedies", len(types), len(remedies))
	}
	for name, texts := range types {
		if says(texts) && !found(texts) {
			t.Errorf("%s has a hint, and the page none of its message: %q", name, texts)
		}
	}
	for _, words := range remedies {
		if !found([]string{words}) {
			t.Errorf("there is a remedy for what CRIU says, and the page lacks it: %q", words)
		}
	}
	for _, f := range fragments {
		known := foreign[f]
		for _, m := range all {
			known = known || within(f, m)
		}
		if !known {
			t.Errorf("the page has a message that nothing in the source says: %q", f)
		}
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

// says tells whether an error has words of its own. One that has none passes on the message of another, which is found by that.
func says(texts []string) bool {
	for _, text := range texts {
		if regexp.MustCompile(`[a-z]{3}`).MatchString(regexp.MustCompile(`%\w`).ReplaceAllString(text, "")) {
			return true
		}
	}
	return false
}

// messages reads the product's source: for each type with a method Hint the strings of its method Error, and for each call of failure.New with a hint its message; what package criu has remedies for, and all strings.
func messages(t *testing.T) (types map[string][]string, remedies, all []string) {
	t.Helper()
	types = map[string][]string{}
	for _, top := range []string{"cmd", "shim", "runtime", "image"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			all = append(all, literals(file)...)
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 2 && isNew(call.Fun) && says(literals(call.Args[1])) && !strings.HasPrefix(strings.Join(literals(call.Args[1]), ""), "see cryo ") {
					types[path+": "+strings.Join(literals(call.Args[2]), "")] = literals(call.Args[2])
				}
				return true
			})
			said, hints := map[string][]string{}, map[string]bool{}
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					switch d.Name.Name {
					case "Error":
						said[receiver(d)] = literals(d.Body)
					case "Hint":
						hints[receiver(d)] = true
					}
				case *ast.GenDecl:
					remedies = append(remedies, remediesOf(d)...)
				}
			}
			for name := range hints {
				if name != "" {
					types[filepath.Dir(path)+"."+name] = said[name]
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return types, remedies, all
}

// isNew tells whether a function is failure.New, which is given a kind, a hint and a message.
func isNew(function ast.Expr) bool {
	of, ok := function.(*ast.SelectorExpr)
	if !ok || of.Sel.Name != "New" {
		return false
	}
	pkg, ok := of.X.(*ast.Ident)
	return ok && pkg.Name == "failure"
}

// receiver is the name of the type that a method is of; empty for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	name, _ := of.(*ast.Ident)
	return name.Name
}

func literals(n ast.Node) (all []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				all = append(all, text)
			}
		}
		return true
	})
	return all
}

// remediesOf gives the words of the table "remedies", if d is that: the first string of each of its lines.
func remediesOf(d *ast.GenDecl) (words []string) {
	for _, s := range d.Specs {
		v, ok := s.(*ast.ValueSpec)
		if !ok || v.Names[0].Name != "remedies" || len(v.Values) != 1 {
			continue
		}
		for _, line := range v.Values[0].(*ast.CompositeLit).Elts {
			words = append(words, literals(line)[0])
		}
	}
	return words
}
