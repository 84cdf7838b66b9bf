package checkpoint

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// FuzzReceive reads whatever the other side of the socket may send, until it ends.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"version":1}` + "\n" + `{"decision":"resume"}`))
	f.Add([]byte(`{"dumped":{"frozen":"2026-01-01T00:00:00Z","dumpSeconds":1}}`))
	f.Add([]byte(`{"failed":{"failure":{"kind":"aborted","message":"x","hint":"y"},"lost":true}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := json.NewDecoder(io.LimitReader(bytes.NewReader(data), maxConversation))
		for range len(data) + 1 {
			m, err := receive(d)
			if err != nil {
				return
			}
			if m.Failed != nil {
				t.Fatal("an error came through as a message")
			}
		}
		t.Fatal("messages without end")
	})
}
