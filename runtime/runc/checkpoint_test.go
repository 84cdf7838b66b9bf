package runc

import (
	"os"
	"slices"
	"testing"

	gorunc "github.com/containerd/go-runc"
)

// TestCommand: what a dump, and a round of a pre-dump, is called with.
func TestCommand(t *testing.T) {
	pages, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	c := Container{ID: "c", Runtime: &gorunc.Runc{Command: "true", Root: "/r", Log: "/l"}}
	for name, test := range map[string]struct {
		dump Dump
		want []string
	}{
		"runs on": {Dump{}, []string{"--leave-running"}},
		"ends":    {Dump{Exit: true}, nil},
		"round":   {Dump{PreDump: true, Pages: pages, Parent: "../round-1"}, []string{"--pre-dump", "--parent-path", "../round-1"}},
		"after":   {Dump{Pages: pages, Parent: "../round-2", CgroupsMode: "soft"}, []string{"--leave-running", "--parent-path", "../round-2", "--manage-cgroups-mode", "soft"}},
	} {
		test.dump.Images, test.dump.Work = "/i", "/w"
		cmd, err := c.checkpointCommand(test.dump)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat([]string{"--root", "/r", "--log", "/l", "--log-format", "json", "checkpoint", "--image-path", "/i", "--work-path", "/w"}, test.want, []string{"c"})
		if got := cmd.Args[1:]; !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
		if test.dump.Pages != nil && (len(cmd.ExtraFiles) != PagesDescriptor-2 || cmd.ExtraFiles[PagesDescriptor-3] != pages) {
			t.Errorf("%s: descriptors %v", name, cmd.ExtraFiles)
		}
	}
}
