package shim

import (
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/trust"
)

func TestHooksOf(t *testing.T) {
	of := func(annotations map[string]string) (hooks, error) {
		return hooksOf(&specs.Spec{Process: &specs.Process{}, Annotations: annotations}, nil)
	}
	if h, err := hooksOf(&specs.Spec{Process: &specs.Process{}, Annotations: map[string]string{trust.AfterRestore: "annotation"}}, map[string]string{trust.AfterRestore: "label", trust.BeforeCheckpoint: "label", trust.HookTimeout: "3s"}); err != nil ||
		h.timeout != 3*time.Second || h.commands[trust.AfterRestore][2] != "annotation" || h.commands[trust.BeforeCheckpoint][2] != "label" || h.commands[trust.AfterCheckpoint] != nil {
		t.Errorf("by labels: %+v, %v", h, err)
	}
	h, err := of(map[string]string{
		nameAnnotation: "app", trust.BeforeCheckpoint: "drop the cache", trust.BeforeCheckpoint + ".sidecar": "no", trust.AfterRestore: `["/bin/wake","up"]`, trust.AfterCheckpoint: "no", trust.AfterCheckpoint + ".app": "own",
		trust.HookTimeout: "2s",
	})
	if err != nil || h.timeout != 2*time.Second || !slices.Equal(h.commands[trust.BeforeCheckpoint], []string{"/bin/sh", "-c", "drop the cache"}) ||
		!slices.Equal(h.commands[trust.AfterRestore], []string{"/bin/wake", "up"}) || !slices.Equal(h.commands[trust.AfterCheckpoint], []string{"/bin/sh", "-c", "own"}) {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := of(map[string]string{trust.AfterRestore: "[ -e /x ]"}); err != nil || !slices.Equal(h.commands[trust.AfterRestore], []string{"/bin/sh", "-c", "[ -e /x ]"}) {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := of(nil); err != nil || h.timeout != hookTime || len(h.commands) > 0 {
		t.Errorf("none: %+v, %v", h, err)
	}
	for _, wrong := range []map[string]string{{trust.AfterRestore: `["x"`}, {trust.AfterRestore: `["x", 1]`}, {trust.HookTimeout: "soon"}, {trust.HookTimeout: "0s"}, {trust.HookTimeout: "1h"}} {
		if _, err := of(wrong); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if _, err := hooksOf(&specs.Spec{Annotations: map[string]string{trust.AfterRestore: "x"}}, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without a process: %v", err)
	}
}

// TestHookOutput keeps the beginning of what a hook prints, and reads all of it.
func TestHookOutput(t *testing.T) {
	for printed, want := range map[string]string{"": "", "why\nhint: none\n": `, and has printed "why\nhint: none"`} {
		o, err := openHookOutput(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.fifo.WriteString(printed); err != nil {
			t.Fatal(err)
		}
		if got := o.close(); got != want {
			t.Errorf("%q becomes %q", printed, got)
		}
	}
	o, err := openHookOutput(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.fifo.Write(make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
	if o.close(); len(o.text) != maxHookOutput {
		t.Errorf("%d bytes are kept", len(o.text))
	}
}
