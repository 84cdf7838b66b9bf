package checkpoint

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// FuzzReceive reads a message whatever the other side of the socket may send.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"decision":"resume"}`))
	f.Add([]byte(`{"stream":"pages"}`))
	f.Add([]byte(`{"dumped":{"frozen":"2026-01-01T00:00:00Z","dumpSeconds":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > channel.MaxMessage {
			return
		}
		own, other, err := channel.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		defer other.Close()
		if err := unix.Send(int(other.Fd()), data, 0); err != nil {
			t.Fatal(err)
		}
		var m message
		if fds, err := own.Receive(&m); err == nil && len(fds) > 0 {
			t.Fatal("descriptors came through with a message")
		}
	})
}
