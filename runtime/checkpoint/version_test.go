//go:build !previous

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// recorded is a message as a program of an earlier version has sent it.
func recorded(t *testing.T, version, name string) json.RawMessage {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "version-"+version, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestVersionOfTheCommand has a shim greeted by commands of all versions. It speaks the newest that both speak.
func TestVersionOfTheCommand(t *testing.T) {
	for name, test := range map[string]struct {
		greeting any
		version  int // 0: refused
	}{
		"3":               {message{Version: 3}, 0},
		"4":               {recorded(t, "4", "greeting"), 4},
		"5":               {message{Version: 5}, 5},
		"this one":        {(&Client{}).greeting(), Newest},
		"6, not 5":        {message{Version: 6}, 0},
		"6 and 5":         {message{Version: 6, Oldest: 5}, Newest},
		"7 and 6":         {message{Version: 7, Oldest: 6}, 0},
		"none":            {message{}, 0},
		"4 of this build": {(&Client{Version: Previous}).greeting(), 4},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := channel.Listen(dir, socketName)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := failure.Expect(dir); err != nil {
				t.Fatal(err)
			}
			answered := make(chan message, 1)
			go func() {
				defer close(answered)
				c, err := l.Accept(t.Context())
				if err == nil {
					err = c.Send(test.greeting)
				}
				if err != nil {
					return
				}
				defer c.Close()
				var m message
				if _, err := c.Receive(&m); err == nil {
					answered <- m
				}
			}()
			shim, _, err := Join(t.Context(), dir)
			if test.version == 0 {
				if !errors.Is(err, errdefs.ErrFailedPrecondition) || RefusedVersion(err) == "" || strings.Contains(failure.Hint(err), "try again") || failure.Hint(err) == "" {
					t.Errorf("got %v (%s)", err, failure.Hint(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if shim.version != test.version {
				t.Errorf("it speaks version %d", shim.version)
			}
			shim.End(Result{}, errFake)
			told := <-answered
			var left failure.Error
			if !failure.Find(dir, &left) || left.Error() != errFake.Error() {
				t.Errorf("left %v", left)
			}
			// A command of version 4 hears of an error by a message.
			if test.version == 4 && (told.Failed == nil || told.Failed.Error() != errFake.Error()) || test.version > 4 && told.Failed != nil {
				t.Errorf("told %+v", told)
			}
		})
	}
}

// TestVersionOfTheShim has a command hear shims of version 4, by what those have sent.
func TestVersionOfTheShim(t *testing.T) {
	for name, test := range map[string]struct {
		messages []string
		want     string // the error
		refused  bool
	}{
		"dumped":  {[]string{"dumped", "released"}, "", false},
		"failed":  {[]string{"failed"}, "checkpoint x: CRIU has failed; the container runs on", false},
		"refused": {[]string{"refused"}, "it speaks version 5, the shim 4: invalid argument", true},
	} {
		t.Run(name, func(t *testing.T) {
			client, dir := listen(t)
			go func() {
				shim, _, err := channel.Dial(dir, socketName)
				if err != nil {
					t.Error(err)
					return
				}
				defer shim.Close()
				var greeting message
				if _, err := shim.Receive(&greeting); err != nil {
					t.Error(err)
				}
				for i, m := range test.messages {
					if i > 0 { // the decision comes between
						if _, err := shim.Receive(&greeting); err != nil {
							t.Error(err)
						}
					}
					if err := shim.Send(recorded(t, "4", m)); err != nil {
						t.Error(err)
					}
				}
			}()
			d, err := client.Frozen(t.Context())
			if test.want == "" {
				if err != nil || d.DumpSeconds == 0 {
					t.Fatalf("dumped %+v, %v", d, err)
				}
				if r, err := client.Resume(t.Context()); err != nil || r.FreezeSeconds == 0 {
					t.Fatalf("released %+v, %v", r, err)
				}
				return
			}
			if !errors.Is(err, io.EOF) || client.Left() == nil || client.Left().Error() != test.want {
				t.Fatalf("got %v, left %v", err, client.Left())
			}
			if got := RefusedVersion(client.Left()) != ""; got != test.refused {
				t.Errorf("refused is %v", got)
			}
		})
	}
	if why := RefusedVersion(context.Canceled); why != "" {
		t.Errorf("another error is %q", why)
	}
}
