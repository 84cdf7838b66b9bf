package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestProgramsPage compares the page for users with [programs], and these with the programs that there are.
func TestProgramsPage(t *testing.T) {
	text, err := os.ReadFile("../../shim/PROGRAMS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| program with a GPU | result |\n| --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	source, err := os.ReadFile("workloads/programs.py")
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, p := range programs {
		want += fmt.Sprintf("| %s | %s |\n", p.about, p.outcome())
		if !strings.Contains(string(source), fmt.Sprintf("    %q: ", p.name)) {
			t.Errorf("programs.py has no %s", p.name)
		}
	}
	if !found || strings.TrimSpace(table) != strings.TrimSpace(want) {
		t.Errorf("the table of shim/PROGRAMS.md should be\n%s", want)
	}
}
