package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJudgeContainerd(t *testing.T) {
	for version, want := range map[string]string{"1.6.20~ds1": trouble, "v1.6.33": trouble, "1.7.24": worry, "v2.0.0": good, "2.4.2+unknown": good, "v2.4.0-rc.1": good, "": good, "unknown": good} {
		if got := judgeContainerd(version, "/run/x.sock")[0]; got.Status != want || want != good && got.Mend == "" {
			t.Errorf("%s: %+v, want %s", version, got, want)
		}
	}
}

func TestOldRunc(t *testing.T) {
	const program = `#!/bin/sh
[ "$1" != features ] || { echo '{"linux": {"seccomp": {"enabled": true}}, "annotations": {"org.opencontainers.runc.version": "VERSION"}}'; exit 0; }
echo runc version VERSION
`
	for version, want := range map[string]string{"1.1.5+ds1": trouble, "1.2.0": good, "1.5.2": good} {
		dir := t.TempDir() // what a program has said of itself is kept on this host until the program changes
		if err := os.WriteFile(filepath.Join(dir, "runc"), []byte(strings.ReplaceAll(program, "VERSION", version)), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := checkRunc(context.Background(), &patient{paths: []string{dir}})[0]; got.Status != want {
			t.Errorf("%s: %+v, want %s", version, got, want)
		}
	}
}
