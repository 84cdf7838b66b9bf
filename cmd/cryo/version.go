package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
)

// Set by the linker: -ldflags "-X main.version=v1.2.3 -X main.revision=0123abcd".
var version, revision string

type versionResult struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Config   int    `json:"config"` // version of snapshots' config that is written and read
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of cryo",
		Example: "  cryo version --json",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := versions()
			return a.print(v, func() error {
				a.line("cryo %s, %s, %s", v.Version, v.Go, v.Platform)
				if v.Commit != "" {
					a.line("commit %s", v.Commit)
				}
				return nil
			})
		},
	}
}

func versions() versionResult {
	v := versionResult{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Commit: revision, Config: image.ConfigVersion}
	if info, ok := debug.ReadBuildInfo(); ok && version == "" { // by go install
		v.Version = info.Main.Version
	}
	return v
}
