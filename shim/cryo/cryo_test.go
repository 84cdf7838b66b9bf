package cryo_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/cryo"
)

// opened is cryo with a store that has a snapshot of the name ref.
func opened(t *testing.T, config string) *cryo.Client {
	t.Helper()
	dir := t.TempDir()
	file, root := filepath.Join(dir, "config.toml"), filepath.Join(dir, "root")
	if err := errors.Join(os.WriteFile(file, []byte(config), 0o600), os.Mkdir(root, 0o700)); err != nil {
		t.Fatal(err)
	}
	fill(root)
	c, err := cryo.New(cryo.Options{Root: root, ConfigFile: file, Address: filepath.Join(dir, "none.sock"), Program: filepath.Join(dir, "none")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestFile has a snapshot written to a file and read by another host, which may want a signature.
func TestFile(t *testing.T) {
	at := "oci-archive:" + filepath.Join(t.TempDir(), "llm.tar")
	a, b := opened(t, ""), opened(t, "")
	p, err := a.Push(t.Context(), ref, at, cryo.PushOptions{})
	if err != nil || p.Transfer != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	_, err = b.Pull(t.Context(), at, cryo.PullOptions{RequireSignature: true})
	if cryo.Rule(err) != "signature" || cryo.Hint(err) == "" || !errdefs.IsPermissionDenied(err) {
		t.Errorf("an unsigned snapshot: %v, rule %q", err, cryo.Rule(err))
	}
	got, err := b.Pull(t.Context(), at, cryo.PullOptions{})
	if err != nil || got.Digest != p.Digest || got.Reference != ref {
		t.Errorf("%+v, %v; want %s", got, err, p.Digest)
	}
}

// TestErrors have a kind, and a hint where there is something to do.
func TestErrors(t *testing.T) {
	ctx := t.Context()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	c := opened(t, "")
	for name, test := range map[string]struct {
		do   func() error
		kind error
	}{
		"no containerd": {func() error { _, err := c.Checkpoint(ctx, "a", ref, cryo.CheckpointOptions{}); return err }, errdefs.ErrUnavailable},
		"no such size": {func() error {
			_, err := c.Checkpoint(ctx, "a", ref, cryo.CheckpointOptions{SegmentSize: 3})
			return err
		}, errdefs.ErrInvalidArgument},
		"no such rule": {func() error {
			_, err := c.Checkpoint(ctx, "a", ref, cryo.CheckpointOptions{Force: []string{"x"}})
			return err
		}, errdefs.ErrInvalidArgument},
		"no review":     {func() error { _, err := c.Inspect(ctx, ref, cryo.InspectOptions{Review: true}); return err }, errdefs.ErrFailedPrecondition},
		"no such grant": {func() error { _, err := c.Inspect(ctx, ref, cryo.InspectOptions{Allow: []string{"x"}}); return err }, errdefs.ErrInvalidArgument},
		"no snapshot":   {func() error { _, err := c.Push(ctx, "none:1", "", cryo.PushOptions{}); return err }, errdefs.ErrNotFound},
		"no name":       {func() error { _, err := c.Pull(ctx, "A", cryo.PullOptions{}); return err }, errdefs.ErrInvalidArgument},
		"no file":       {func() error { _, err := cryo.New(cryo.Options{ConfigFile: "/none"}); return err }, errdefs.ErrInvalidArgument},
	} {
		err := test.do()
		if !errors.Is(errdefs.Resolve(err), test.kind) || cryo.Hint(err) == "" {
			t.Errorf("%s: %v is %v, with the hint %q", name, err, errdefs.Resolve(err), cryo.Hint(err))
		}
	}
	for name, do := range map[string]func() error{
		"checkpoint": func() error { _, err := c.Checkpoint(ended, "a", ref, cryo.CheckpointOptions{}); return err },
		"pull":       func() error { _, err := c.Pull(ended, "registry.invalid/a:1", cryo.PullOptions{}); return err },
		"prewarm":    func() error { _, err := c.Prewarm(ended, ref, cryo.PrewarmOptions{}); return err },
	} {
		if err := do(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
	}
	if cryo.Rule(nil)+cryo.Hint(nil) != "" {
		t.Error("no error has a rule or a hint")
	}
}

// TestShimError: rule and hint of a restore that the shim has refused come through containerd.
func TestShimError(t *testing.T) {
	sent := errgrpc.ToGRPC(errors.Join(errors.New(failure.Text("mounts: there is none", "mounts", "mount it")), errdefs.ErrFailedPrecondition))
	err := errgrpc.ToNative(sent)
	if cryo.Rule(err) != "mounts" || !strings.HasPrefix(cryo.Hint(err), "mount it") {
		t.Errorf("rule %q, hint %q", cryo.Rule(err), cryo.Hint(err))
	}
}

func TestWithRestore(t *testing.T) {
	spec, err := typeurl.MarshalAny(&specs.Spec{Annotations: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		ref     string
		o       cryo.RestoreOptions
		c       containers.Container
		runtime string // empty: it is refused
	}{
		"cryo's":         {ref, cryo.RestoreOptions{}, containers.Container{Spec: spec, Runtime: containers.RuntimeInfo{Name: "io.containerd.cryo.v1"}}, "io.containerd.cryo.v1"},
		"another's":      {ref, cryo.RestoreOptions{Signal: "SIGUSR1"}, containers.Container{Spec: spec, Runtime: containers.RuntimeInfo{Name: "io.containerd.kata.v2"}}, cryo.Runtime},
		"a move":         {ref, cryo.RestoreOptions{Move: true}, containers.Container{Spec: spec}, cryo.Runtime},
		"no spec":        {ref, cryo.RestoreOptions{}, containers.Container{}, ""},
		"a file":         {"oci:/tmp/x", cryo.RestoreOptions{}, containers.Container{Spec: spec}, ""},
		"no reference":   {"A", cryo.RestoreOptions{}, containers.Container{Spec: spec}, ""},
		"no such signal": {ref, cryo.RestoreOptions{Signal: "USR1"}, containers.Container{Spec: spec}, ""},
	} {
		err := cryo.WithRestore(test.ref, test.o)(t.Context(), nil, &test.c)
		if test.runtime == "" {
			if !errdefs.IsInvalidArgument(err) || cryo.Hint(err) == "" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var got specs.Spec
		if err := errors.Join(err, typeurl.UnmarshalTo(test.c.Spec, &got)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a := got.Annotations
		if test.c.Runtime.Name != test.runtime || a["a"] != "b" || a["io.cryo.restore"] != ref || a["io.cryo.restore.fallback"] != "fail" || a["io.cryo.restore.signal"] != test.o.Signal {
			t.Errorf("%s: %s, %v", name, test.c.Runtime.Name, a)
		}
		if want := map[bool]string{true: "move"}[test.o.Move]; a["io.cryo.restore.as"] != want {
			t.Errorf("%s: it is restored as %q, not %q", name, a["io.cryo.restore.as"], want)
		}
	}
}
