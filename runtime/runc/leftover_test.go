package runc

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	gorunc "github.com/containerd/go-runc"
)

// TestDelete has a runc that fails where the cgroup is in use, and then knows the container still.
func TestDelete(t *testing.T) {
	dir := t.TempDir()
	runc := filepath.Join(dir, "runc")
	script := `#!/bin/sh
cd "${0%/*}"
case "$*" in
*state*) [ -e known ] && echo '{"id": "c", "status": "stopped"}' ;;
*delete*) [ ! -e busy ] && rm known ;;
esac
`
	if err := os.WriteFile(runc, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c := Container{ID: "c", Runtime: &gorunc.Runc{Command: runc}}
	if err := c.Delete(t.Context()); err != nil {
		t.Errorf("runc knows no such container: %v", err)
	}
	for _, name := range []string{"known", "busy"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Delete(short); err == nil {
		t.Error("it is not deleted, and there is no error")
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = os.Remove(filepath.Join(dir, "busy")) })
	if err := c.Delete(t.Context()); err != nil || c.Known(t.Context()) {
		t.Errorf("%v, known: %t", err, c.Known(t.Context()))
	}
}
