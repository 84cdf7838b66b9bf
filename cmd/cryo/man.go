//go:build man

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// With the tag "man" the program writes its manual into the directory $CRYO_MAN, and does nothing else. "make man" builds and runs it; the program that is
// installed has none of this.
func init() {
	dir := os.Getenv("CRYO_MAN")
	if err := writeManual(dir); err != nil {
		fmt.Fprintln(os.Stderr, "write the manual:", err)
		os.Exit(exitOther)
	}
	os.Exit(exitOK)
}

// writeManual writes a page for cryo, and one for each of its commands and help topics.
func writeManual(dir string) error {
	if dir == "" {
		return fmt.Errorf("CRYO_MAN does not name a directory")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := newRoot(&app{})
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	return writePages(root, dir)
}

// indented are lines of examples and tables. The generator reads Markdown, which wants them further in.
var indented = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^ +`) })

func writePages(cmd *cobra.Command, dir string) error {
	if cmd.Hidden || cmd.Name() == "help" {
		return nil
	}
	for _, sub := range cmd.Commands() {
		if err := writePages(sub, dir); err != nil {
			return err
		}
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	f, err := os.Create(filepath.Join(dir, name+".1"))
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Long = indented().ReplaceAllString(cmd.Long, "    $0")
	header := &doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Source: "cryo " + version, Manual: "cryo"}
	if err := doc.GenMan(cmd, header, f); err != nil {
		return err
	}
	return f.Close()
}
