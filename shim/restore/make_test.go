package restore

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// TestRemote: what the shim has left for the command counts, with its kind and its hint, and else what containerd says.
func TestRemote(t *testing.T) {
	dir := t.TempDir()
	theirs := errgrpc.ToNative(errgrpc.ToGRPC(fmt.Errorf("a text\nhint: of somebody: %w", errdefs.ErrAborted)))
	failed := func() error {
		return (&making{serving: &serving{ctx: t.Context(), prepared: &Prepared{Plan: &Plan{Name: "c"}}}}).failed(remote(dir, theirs))
	}
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
