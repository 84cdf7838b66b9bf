package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/node"
)

// TestNodeLines: each entry is one line, whatever is in it.
func TestNodeLines(t *testing.T) {
	e := node.Entry{
		What: "started cold: mounts:\nx", Reference: "docker.io/library/app:1", Container: "c", Seconds: 0.25, Again: 5,
		Err: failure.New(errdefs.ErrUnavailable, "look", "gone"),
	}
	var text, document bytes.Buffer
	(&entries{out: &text}).print(e)
	if want := "container c started cold: mounts:?x (app:1) in 250 ms: gone; hint: look; again in 5.0 s\n"; text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
	(&entries{out: &document, json: true}).print(e)
	var got map[string]any
	if err := json.Unmarshal(document.Bytes(), &got); err != nil || got["error"] != "gone" || got["hint"] != "look" || got["container"] != "c" || strings.Count(document.String(), "\n") != 1 {
		t.Errorf("%v: %s", err, document.String())
	}
}

func TestNodeUsage(t *testing.T) {
	for _, c := range [][]string{{"node", "x"}, {"node", "--kubeconfig", "f"}, {"node", "--listen", "", "--prewarm", "/nonexistent"}, {"node", "--listen", "", "--node-name", "n", "--kubeconfig", "/nonexistent"}} {
		if code, stdout, stderr := cryo(t, c...); code == 0 || stdout != "" || !strings.Contains(stderr, "hint: ") {
			t.Errorf("%v: %d %s %s", c, code, stdout, stderr)
		}
	}
}
