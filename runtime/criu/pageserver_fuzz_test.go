package criu

import (
	"bytes"
	"io"
	"testing"
)

// boundedSink refuses what no fuzzer sends, and wants what Serve promises.
type boundedSink struct {
	t   *testing.T
	end uint64
}

func (s *boundedSink) Begin(uint32) error {
	s.end = 0
	return nil
}

func (s *boundedSink) Pages(addr, count uint64, r io.Reader) error {
	s.ascend(addr, count)
	_, err := io.CopyN(io.Discard, r, int64(count*page))
	return err
}

func (s *boundedSink) ascend(addr, count uint64) {
	if addr%page != 0 || addr < s.end || count == 0 || addr+count*page > maxAddress || addr+count*page <= addr {
		s.t.Errorf("%d pages at %#x after %#x", count, addr, s.end)
	}
	s.end = addr + count*page
}

func (s *boundedSink) End() error { return nil }

// FuzzServe plays whatever may come over the socket.
func FuzzServe(f *testing.F) {
	f.Add(sent(wide, dump...))
	f.Add(sent(narrow, dump...))
	f.Add(sent(wide, command{code: commandClose}))
	f.Fuzz(func(t *testing.T, data []byte) {
		conn := &peer{Reader: bytes.NewReader(data)}
		if err := ServePages(conn, t.TempDir(), page, &boundedSink{t: t}, nil); err == nil && conn.answers.Len() < 4 {
			t.Error("the end was not answered")
		}
	})
}
