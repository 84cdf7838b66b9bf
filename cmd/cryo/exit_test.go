package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/restore"
)

func TestExitCode(t *testing.T) {
	misfit := host.Misfit(host.FitFinding{Rule: "os", Fatal: true})
	overGRPC := func(err error) error { return errgrpc.ToNative(errgrpc.ToGRPC(err)) }
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"none":                          {nil, exitOK},
		"other":                         {errors.New("x"), exitOther},
		"usage":                         {misused("cryo", "x"), exitUsage},
		"bad reference":                 {store.InvalidRef("A", errors.New("x")), exitUsage},
		"no snapshot":                   {failure.New(store.ErrUnknownRef, "", "x"), exitNotFound},
		"not running":                   {checkpoint.NotRunning("c", ""), exitPrecondition},
		"busy":                          {checkpoint.Busy(""), exitPrecondition},
		"busy, from the shim":           {&restore.JobError{Err: overGRPC(checkpoint.Busy(""))}, exitPrecondition},
		"round out of order":            {&restore.JobError{Err: failure.New(errdefs.ErrAborted, "", "x")}, exitAborted},
		"no CRIU":                       {criu.Missing("criu", os.ErrNotExist), exitPrecondition},
		"sick host":                     {Sick([]Diagnosis{{Status: "fail"}}), exitPrecondition},
		"name taken":                    {&restore.JobError{Err: errdefs.ErrAlreadyExists}, exitExists},
		"no containerd":                 {failure.New(errdefs.ErrUnavailable, "", "x"), exitUnavailable},
		"refused":                       {trust.Refuse([]trust.Request{{}}), exitDenied},
		"unauthenticated":               {&restore.JobError{Snapshot: "sha256:x", Err: errdefs.ErrUnauthenticated}, exitDenied},
		"damaged":                       {&restore.JobError{Err: fmt.Errorf("x: %w", errdefs.ErrDataLoss)}, exitDamaged},
		"misfit":                        {misfit, exitMisfit},
		"misfit, printed already":       {failure.New(failure.ErrMisfit, "", "x"), exitMisfit},
		"full disk":                     {&restore.JobError{Err: fmt.Errorf("write: %w", unix.ENOSPC)}, exitFull},
		"full disk, in CRIU's words":    {&restore.JobError{Err: restore.Full("/x", errors.New("no space left on device"))}, exitFull},
		"full disk, of the store":       {failure.New(store.ErrDiskFull, "", "x: %w", unix.ENOSPC), exitFull},
		"failed":                        {&restore.JobError{Err: errors.New("x")}, exitAborted},
		"failed, with a container":      {&restore.JobError{Restored: true, Err: errors.New("x")}, exitOther},
		"failed, with a snapshot":       {&restore.JobError{Snapshot: "sha256:x", Err: errors.New("x")}, exitOther},
		"failed, from the shim":         {&restore.JobError{Err: overGRPC(checkpoint.Failed("", errors.New("x")))}, exitAborted},
		"lost":                          {&restore.JobError{Lost: true, Err: errors.New("x")}, exitLost},
		"lost, from the shim":           {&restore.JobError{Err: failure.New(failure.ErrLost, "", "x")}, exitLost},
		"unsupported":                   {&restore.JobError{Err: errdefs.ErrNotImplemented}, exitUnsupported},
		"deadline":                      {&restore.JobError{Err: context.DeadlineExceeded}, exitDeadline},
		"interrupted":                   {fmt.Errorf("%w: %w", errInterrupted, context.Canceled), exitInterrupted},
		"interrupted, with a full disk": {fmt.Errorf("%w: %w", errInterrupted, unix.ENOSPC), exitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			if got := exitOf(c.err).code; got != c.code {
				t.Errorf("exitCode(%v) = %d, want %d", c.err, got, c.code)
			}
		})
	}
}

func TestEveryExitCodeIsDocumented(t *testing.T) {
	var out bytes.Buffer
	if code := (&app{stdout: &out, stderr: &out}).run(t.Context(), []string{"help", "exit-codes"}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &out)
	}
	seen := map[int]bool{}
	for _, e := range exitTable {
		if seen[e.code] || e.meaning == "" || !strings.Contains(out.String(), e.meaning) {
			t.Errorf("code %d", e.code)
		}
		seen[e.code] = true
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := interrupted(ctx, context.Canceled); exitOf(err).code == exitInterrupted {
		t.Error("interrupted without a signal")
	}
	cancel(errInterrupted)
	for _, err := range []error{context.Canceled, fmt.Errorf("pull: %w", context.Canceled), errgrpc.ToNative(errgrpc.ToGRPC(context.Canceled)), context.Cause(ctx)} {
		if got := exitOf(interrupted(ctx, &restore.JobError{Err: err})).code; got != exitInterrupted {
			t.Errorf("%v: exit code %d", err, got)
		}
	}
	if got := exitOf(interrupted(ctx, errdefs.ErrAlreadyExists)).code; got != exitExists {
		t.Errorf("an error that came first: exit code %d", got)
	}
}

func TestReport(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"plain":       {errors.New("no"), "cryo: no\n"},
		"hint":        {checkpoint.NotRunning("c", "stopped"), "cryo: checkpoint c: the container is stopped, not running\nhint: start it first: ctr task start, or nerdctl start\n"},
		"hint inside": {fmt.Errorf("a: %w", errors.Join(errors.New("b"), failure.New(errdefs.ErrInvalidArgument, "rules that can", "there is no rule"))), "hint: rules that can"},
		"two hints":   {host.Misfit(host.FitFinding{Hint: "one"}, host.FitFinding{Hint: "two"}, host.FitFinding{Hint: "one"}), "hint: one\n  two\n"},
		"escapes":     {errors.New("a\x1b[2Jb\x07\u009bc"), "cryo: a?[2Jb??c\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			report(&out, c.err)
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("got %q, want %q", out.String(), c.want)
			}
		})
	}
}
