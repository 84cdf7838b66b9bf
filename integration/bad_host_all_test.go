package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadHost has hosts without CRIU, with an old one, and with a configuration that is none.
func TestBadHost(t *testing.T) {
	h := newHost(t, "bad-host", lab.HostOptions{})
	old := filepath.Join(h.Dir, "old/criu")
	if err := os.Mkdir(filepath.Dir(old), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho 'Version: 3.19'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	id, ref := name(t), "bad/host:1"
	start(t, h, id, nil, "workload", "count")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	for _, test := range []struct {
		name, config, words string
		code                int
	}{
		{"missing", `criu = "/nowhere/criu"`, "/nowhere/criu", codePrecondition},
		{"old", `criu = "` + old + `"`, "3.19", codePrecondition},
		{"not TOML", "criu = /nowhere", "cryo.toml", codeUsage},
		{"unknown key", "crui = \"/nowhere/criu\"", "there is no key crui", codeUsage},
		{"wrong type", "root = 7", "cryo.toml", codeUsage},
		{"wrong value", "[dump]\nnetwork-lock = \"none\"", "dump.network-lock", codeUsage},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := h.Configure(test.config); err != nil {
				t.Fatal(err)
			}
			refused(t, h, test.code, test.words, "checkpoint", id, "bad/host:2")
			code := test.code
			if code == codePrecondition {
				code = codeMisfit // the rules of fit find it
			}
			refused(t, h, code, "", "restore", ref, "--name", "bad-restored")
			counts(t, h, id)
		})
	}
}

// TestBadHostStock asks for a checkpoint with stock clients where CRIU is missing: the shim refuses too.
func TestBadHostStock(t *testing.T) {
	h := newHost(t, "bad-stock", lab.HostOptions{CryoConfig: `criu = "/nowhere/criu"`})
	id := name(t)
	start(t, h, id, nil, "workload", "count")
	unchanged(t, h, func() {
		if r := h.Ctr(t.Context(), "tasks", "checkpoint", id); r.Code == 0 {
			t.Error("checkpoint without CRIU")
		} else {
			t.Log(r.Stderr)
		}
	})
	counts(t, h, id)
}
