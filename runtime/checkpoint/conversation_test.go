package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

func listen(t *testing.T) (*Client, string) {
	t.Helper()
	dir := t.TempDir()
	c, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, dir
}

func TestConversation(t *testing.T) {
	for _, decision := range []Decision{Resume, Kill} {
		t.Run(string(decision), func(t *testing.T) {
			client, dir := listen(t)
			heard := make(chan Decision, 1)
			go func() {
				shim, ctx, err := Join(context.Background(), dir)
				if err != nil {
					t.Error(err)
					close(heard)
					return
				}
				d, err := shim.Dumped(ctx, Dumped{DumpSeconds: 1.5})
				if err != nil {
					t.Error(err)
				}
				heard <- d
				shim.End(Result{Freeze: 2 * time.Second, Killed: d == Kill}, nil)
			}()
			dumped, err := client.Frozen(t.Context())
			if err != nil || dumped.DumpSeconds != 1.5 {
				t.Fatalf("got %+v, %v", dumped, err)
			}
			release := client.Resume
			if decision == Kill {
				release = client.Kill
			}
			released, err := release(t.Context())
			if err != nil || released.FreezeSeconds != 2 || released.Killed != (decision == Kill) {
				t.Errorf("got %+v, %v", released, err)
			}
			if d := <-heard; d != decision {
				t.Errorf("shim heard %q", d)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		options Options
		err     bool
	}{
		{options: Options{}},
		{options: Options{GPUTimeout: 2.5, Force: []string{"gpu-several"}}},
		{options: Options{Pages: true, LeaveRunning: true}},
		{options: Options{GPUTimeout: -1}, err: true},
		{options: Options{GPUTimeout: 1e9}, err: true},
	} {
		client, dir := listen(t)
		client.Options = test.options
		go func() { _, _ = client.Frozen(context.Background()) }()
		shim, _, err := Join(t.Context(), dir)
		switch {
		case test.err:
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%+v: got %v", test.options, err)
			}
		case err != nil:
			t.Error(err)
		case !reflect.DeepEqual(shim.Options, test.options):
			t.Errorf("got %+v, want %+v", shim.Options, test.options)
		}
	}
}

// TestDevices: device memory has a connection of its own, that keeps messages apart, and may go on when the container runs again.
func TestDevices(t *testing.T) {
	client, dir := listen(t)
	client.Options = Options{Devices: true}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			shim, ctx, err := Join(context.Background(), dir)
			if err != nil {
				return err
			}
			f, err := shim.Devices()
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := shim.Dumped(ctx, Dumped{Devices: true, DevicesPending: true}); err != nil {
				return err
			}
			shim.Released(Result{Load: time.Second, Pending: true})
			for _, text := range []string{"one", "two"} {
				if _, err := f.WriteString(text); err != nil {
					return err
				}
			}
			shim.End(Result{}, nil)
			return nil
		}()
	}()
	dumped, err := client.Frozen(t.Context())
	if err != nil || !dumped.Devices || !dumped.DevicesPending {
		t.Fatalf("got %+v, %v", dumped, err)
	}
	conn, err := client.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	released, err := client.Resume(t.Context())
	if err != nil || !released.DevicesPending || released.LoadSeconds != 1 {
		t.Errorf("got %+v, %v", released, err)
	}
	buf := make([]byte, 100)
	for _, want := range []string{"one", "two"} {
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("got %q, %v", buf[:n], err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestNoDevices: nobody connects for what is not wanted, and waiting for it ends with the context.
func TestNoDevices(t *testing.T) {
	client, dir := listen(t)
	go func() { _, _ = client.Frozen(context.Background()) }()
	shim, _, err := Join(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := shim.Devices(); f != nil || err != nil {
		t.Errorf("got %v, %v", f, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		if c, _, err := Join(t.Context(), dir); c != nil || err != nil {
			t.Errorf("%q: got %v, %v", dir, c, err)
		}
	}
}

func TestHangingUpEndsTheDump(t *testing.T) {
	client, dir := listen(t)
	go func() {
		time.Sleep(50 * time.Millisecond)
		_ = client.Close()
	}()
	go func() { _, _ = client.Frozen(context.Background()) }()
	_, ctx, err := Join(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), errdefs.ErrAborted) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	case <-time.After(5 * time.Second):
		t.Error("the context outlives the command")
	}
}

func TestFailureReachesTheCommand(t *testing.T) {
	client, dir := listen(t)
	go func() {
		shim, _, err := Join(context.Background(), dir)
		if err != nil {
			t.Error(err)
			return
		}
		shim.End(Result{}, errFake)
	}()
	if _, err := client.Frozen(t.Context()); !errors.Is(err, io.EOF) || client.Left() == nil || client.Left().Error() != errFake.Error() {
		t.Errorf("got %v, left %v", err, client.Left())
	}
}

// TestToldOf has errors reach the command as they are: by the file, and when it has hung up.
func TestToldOf(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		kind failure.Kind
	}{
		"lost":    {Lost("checkpoint", "c", errFake), "lost"},
		"busy":    {fmt.Errorf("x: %w", Busy("c")), "busy"},
		"neither": {Failed("c", fmt.Errorf("y: %w", errdefs.ErrResourceExhausted)), "resource exhausted"},
	} {
		for _, how := range []string{"left", "hung up"} {
			client, dir := listen(t)
			if how == "left" {
				if told := client.Left(); told != nil {
					t.Errorf("%s: before there is one: %+v", name, told)
				}
				if err := Leave(dir, test.err); err != nil {
					t.Fatal(err)
				}
				check(t, name, client.Left(), test.err, test.kind)
				continue
			}
			go func() {
				shim, ctx, err := Join(context.Background(), dir)
				if err == nil {
					_, err = shim.Dumped(ctx, Dumped{})
				}
				if err == nil {
					t.Error("it does not hear that the command hangs up")
				}
				shim.End(Result{}, test.err)
			}()
			if _, err := client.Frozen(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := client.HangUp(t.Context()); err != nil {
				t.Error(err)
			}
			check(t, name, client.Left(), test.err, test.kind)
		}
	}
	client, _ := listen(t)
	if err := client.HangUp(t.Context()); err != nil {
		t.Errorf("on nobody: %v", err)
	}
}

func check(t *testing.T, name string, got, want error, kind failure.Kind) {
	t.Helper()
	var told *failure.Error
	if !errors.As(got, &told) || told == nil || told.Error() != want.Error() || told.Kind != kind ||
		errdefs.Resolve(told) != errdefs.Resolve(want) || failure.Hint(told) != failure.Hint(want) {
		t.Errorf("%s: %+v", name, got)
	}
}

func TestFrozenIsCancelled(t *testing.T) {
	client, _ := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := client.Frozen(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := client.Resume(t.Context()); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("resume of what is not frozen: got %v", err)
	}
}

func TestPages(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		client, dir := listen(t)
		client.Options.Pages = wanted
		go func() { _, _ = client.Frozen(context.Background()) }()
		arrived := make(chan string, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			conn, err := client.Pages(ctx)
			if err != nil {
				arrived <- err.Error()
				return
			}
			defer conn.Close()
			b, _ := io.ReadAll(conn)
			arrived <- string(b)
		}()
		shim, _, err := Join(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		pages, err := shim.Pages()
		if err != nil || (pages != nil) != wanted {
			t.Fatalf("wanted %v: got %v, %v", wanted, pages, err)
		}
		want := "page"
		if wanted {
			if _, err := pages.WriteString(want); err != nil {
				t.Error(err)
			}
			pages.Close()
		} else {
			cancel()
			want = "wait for pages: context canceled"
		}
		if got := <-arrived; got != want {
			t.Errorf("wanted %v: %q has arrived", wanted, got)
		}
		cancel()
	}
}

// TestConnections: what the shim has no business to send ends the conversation, and connections that nobody wants are closed.
func TestConnections(t *testing.T) {
	client, dir := listen(t)
	client.Options.Pages = true
	frozen := make(chan error, 1)
	go func() {
		_, err := client.Frozen(context.Background())
		frozen <- err
	}()
	shim, _, err := Join(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	pages, err := shim.Pages()
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	if err := shim.channel.Send(message{Stream: "more"}); err != nil {
		t.Fatal(err)
	}
	if err := <-frozen; !errors.Is(err, errdefs.ErrInternal) {
		t.Errorf("got %v", err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if n, err := pages.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("nobody wants its pages, and it reads %d bytes, %v", n, err)
	}
	if _, err := shim.Pages(); !errdefs.IsUnavailable(err) {
		t.Errorf("after the end: %v", err)
	}
}
