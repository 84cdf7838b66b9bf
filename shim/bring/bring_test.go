package bring

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/cryo-project/cryo/image/spec/failure"
)

func TestUndo(t *testing.T) {
	var order []string
	var u undo
	for _, what := range []string{"a", "b", "c"} {
		u.add(what, func(ctx context.Context) error {
			order = append(order, what)
			if what == "b" {
				return errors.New("stuck")
			}
			return ctx.Err()
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := u.run(ctx)
	if strings.Join(order, "") != "cba" || err == nil || err.Error() != "b: stuck" {
		t.Errorf("order %v, error %v", order, err)
	}
	if err := u.run(ctx); err != nil || len(order) != 3 {
		t.Error("undone twice")
	}
	u.add("d", func(context.Context) error { t.Error("undone after release"); return nil })
	u.release()
	_ = u.run(ctx)
}

// TestRemote: what the shim has left for the command counts, with its kind and its hint, and else what containerd says.
func TestRemote(t *testing.T) {
	dir := t.TempDir()
	theirs := errgrpc.ToNative(errgrpc.ToGRPC(fmt.Errorf("a text\nhint: of somebody: %w", errdefs.ErrAborted)))
	failed := func() error { return (&bringing{wanted: t.Context()}).failed("c", remote(dir, theirs)) }
	err := failed()
	if !strings.HasPrefix(err.Error(), "restore c: a text\n") || strings.Contains(failure.Hint(err), "of somebody") || !errdefs.IsAborted(err) {
		t.Errorf("of containerd: %q, hint %q", err, failure.Hint(err))
	}
	told := failure.New(errdefs.ErrFailedPrecondition, "wait longer", "restore c: work still ran after 10s")
	if err := errors.Join(failure.Expect(dir), failure.Leave(dir, told)); err != nil {
		t.Fatal(err)
	}
	err = failed()
	if err.Error() != told.Message || failure.Hint(err) != "wait longer" || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of the shim: %q, hint %q", err, failure.Hint(err))
	}
}

func TestContainerLabels(t *testing.T) {
	got := containerLabels(map[string]string{"a": "b", "nerdctl/name": "old", "nerdctl/state-dir": "/x", "nerdctl/platform": "linux/amd64", "containerd.io/restart.status": "running"}, "ns", "new", "r:1")
	want := map[string]string{"a": "b", "nerdctl/name": "new", "nerdctl/namespace": "ns", "nerdctl/platform": "linux/amd64", "io.cryo.reference": "r:1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("containerLabels = %v", got)
	}
}
