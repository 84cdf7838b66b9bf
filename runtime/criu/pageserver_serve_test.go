package criu

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"
)

const page = 4096

// fakeSink notes what it is told.
type fakeSink struct {
	calls []string
	fail  string // the call that fails
	bytes int64
}

var errSink = errors.New("as ordered")

func (s *fakeSink) note(format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	s.calls = append(s.calls, call)
	if call == s.fail {
		return errSink
	}
	return nil
}

func (s *fakeSink) Begin(file uint32) error { return s.note("begin %d", file) }

func (s *fakeSink) Pages(addr, count uint64, r io.Reader) error {
	n, err := io.CopyN(io.Discard, r, int64(count*page))
	s.bytes += n
	return errors.Join(err, s.note("pages %x %d", addr, count))
}

func (s *fakeSink) End() error { return s.note("end") }

// peer is CRIU: what it sends, and what it was answered.
type peer struct {
	io.Reader
	answers bytes.Buffer
}

func (p *peer) Write(b []byte) (int, error) { return p.answers.Write(b) }

// sent makes commands of one of the two lengths; pages are zeros.
func sent(length int, commands ...command) []byte {
	var b []byte
	for _, c := range commands {
		b = binary.NativeEndian.AppendUint32(b, c.flags<<16|c.code)
		if length == narrow {
			b = binary.NativeEndian.AppendUint32(b, uint32(c.count))
		} else {
			b = binary.NativeEndian.AppendUint64(append(b, 0xee, 0xee, 0xee, 0xee), c.count) // the padding is not cleared
		}
		b = binary.NativeEndian.AppendUint64(b, c.addr)
		b = binary.NativeEndian.AppendUint64(b, c.target)
		if c.code == commandAdd && c.flags&flagPresent != 0 && c.count < 100 {
			b = append(b, make([]byte, c.count*page)...)
		}
	}
	return b
}

const processPages, shared = 7<<8 | targetProcess, 1048<<8 | targetShared

var dump = []command{
	{code: commandParent, target: processPages},
	{code: commandOpen, target: processPages},
	{code: commandAdd, flags: flagPresent, count: 2, addr: 0x1000, target: processPages},
	{code: commandAdd, flags: flagLazy, count: 5, addr: 0x4000, target: processPages},
	{code: commandAdd, flags: flagPresent | flagLazy, count: 3, addr: 0x9000, target: processPages},
	{code: commandOpen, target: shared},
	{code: commandAdd, flags: flagPresent, count: 1, addr: 0, target: shared},
	{code: commandForceClose},
}

func TestServe(t *testing.T) {
	entries := map[int][]byte{ // of the process: address, pages, flags; and pages again
		narrow: {8, 0x80, 0x20, 16, 2, 32, 4},
		wide:   {8, 0x80, 0x20, 16, 0, 32, 4, 40, 2},
	}
	for _, length := range []int{narrow, wide} {
		dir, sink := t.TempDir(), &fakeSink{}
		conn := &peer{Reader: iotest.HalfReader(bytes.NewReader(sent(length, dump...)))}
		begun := 0
		if err := ServePages(conn, dir, page, sink, func() { begun++ }); err != nil {
			t.Fatalf("%d: %v", length, err)
		}
		want := []string{"begin 1", "pages 1000 2", "pages 9000 3", "begin 2", "pages 0 1", "end"}
		if fmt.Sprint(sink.calls) != fmt.Sprint(want) || begun != 1 {
			t.Errorf("%d: calls %v, begun %d", length, sink.calls, begun)
		}
		// int32 for PARENT, a byte for each OPEN2, int32 for the end.
		if got := conn.answers.Bytes(); !bytes.Equal(got, make([]byte, 4+1+1+4)) {
			t.Errorf("%d: answers %v", length, got)
		}
		b, err := os.ReadFile(filepath.Join(dir, "pagemap-7.img"))
		if err != nil {
			t.Fatal(err)
		}
		first := append([]byte{0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56, 2, 0, 0, 0, 8, 1, byte(len(entries[length])), 0, 0, 0}, entries[length]...)
		if !bytes.HasPrefix(b, first) {
			t.Errorf("%d: pagemap %x does not begin with %x", length, b, first)
		}
		if _, err := os.Stat(filepath.Join(dir, "pagemap-shmem-1048.img")); err != nil {
			t.Error(err)
		}
	}
}

// TestRecorded plays what CRIU has sent of a process, its pages made zeros, and compares the pagemaps with those that the
// same CRIU wrote itself of the same process.
func TestRecorded(t *testing.T) {
	dirs, err := filepath.Glob("testdata/criu-*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, recorded := range dirs {
		f, err := os.Open(filepath.Join(recorded, "stream.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		dir, sink := t.TempDir(), &fakeSink{}
		if err := ServePages(&peer{Reader: z}, dir, page, sink, nil); err != nil {
			t.Fatalf("%s: %v", recorded, err)
		}
		if sink.bytes == 0 || sink.calls[len(sink.calls)-1] != "end" {
			t.Errorf("%s: %d bytes, calls %v", recorded, sink.bytes, sink.calls)
		}
		images, _ := filepath.Glob(filepath.Join(recorded, "pagemap-*.img"))
		if len(images) < 2 {
			t.Fatalf("%s has %d pagemaps", recorded, len(images))
		}
		for _, image := range images {
			want, _ := os.ReadFile(image)
			if got, err := os.ReadFile(filepath.Join(dir, filepath.Base(image))); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s differs: %v", image, err)
			}
		}
	}
}

func TestMisunderstood(t *testing.T) {
	open := dump[1]
	add := func(change func(c *command)) []command {
		c := dump[2]
		change(&c)
		return []command{open, dump[2], c}
	}
	for name, commands := range map[string][]command{
		"begins with pages":  {dump[2]},
		"unknown command":    {open, {code: 10, target: processPages}},
		"unknown kind":       {{code: commandOpen, target: 9}},
		"begins twice":       {open, open},
		"other target":       add(func(c *command) { c.addr, c.target = 0x9000, shared }),
		"parent's pages":     add(func(c *command) { c.addr, c.flags = 0x9000, flagParent }),
		"unknown flags":      add(func(c *command) { c.addr, c.flags = 0x9000, flagPresent|8 }),
		"not aligned":        add(func(c *command) { c.addr = 0x9100 }),
		"descending":         add(func(c *command) { c.addr = 0x2000 }),
		"no pages":           add(func(c *command) { c.addr, c.count = 0x9000, 0 }),
		"beyond all memory":  add(func(c *command) { c.addr = maxAddress + page }),
		"pages without end":  add(func(c *command) { c.addr, c.count = 0x9000, 1<<52 }),
		"number that wraps":  add(func(c *command) { c.addr, c.count = 0x9000, 1<<63+1 }),
		"pages after nobody": {{code: commandParent, target: processPages}, dump[2]},
	} {
		err := ServePages(&peer{Reader: bytes.NewReader(sent(wide, commands...))}, t.TempDir(), page, &fakeSink{}, nil)
		if !errdefs.IsNotImplemented(err) {
			t.Errorf("%s gives %v", name, err)
		}
	}
}

// TestCut ends the stream everywhere: never is it taken for whole.
func TestCut(t *testing.T) {
	all := sent(wide, dump...)
	for n := 0; n < len(all); n += 1 + n/40 {
		conn := &peer{Reader: bytes.NewReader(all[:n])}
		sink := &fakeSink{}
		err := ServePages(conn, t.TempDir(), page, sink, nil)
		switch {
		case n == 0 && !errors.Is(err, io.EOF), n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF), err == nil:
			t.Errorf("%d bytes give %v", n, err)
		}
		for _, call := range sink.calls {
			if call == "end" && n < len(all)-wide+narrow {
				t.Errorf("%d bytes are taken for whole", n)
			}
		}
	}
}

func TestSinkFails(t *testing.T) {
	for _, call := range []string{"begin 1", "pages 9000 3", "end"} {
		conn := &peer{Reader: bytes.NewReader(sent(wide, dump...))}
		if err := ServePages(conn, t.TempDir(), page, &fakeSink{fail: call}, nil); !errors.Is(err, errSink) {
			t.Errorf("%s: got %v", call, err)
		}
		if call == "end" && conn.answers.Len() != 6 {
			t.Errorf("CRIU was told that all is there: %v", conn.answers.Bytes())
		}
	}
}

// TestNoMemory: there may be nothing to send.
func TestNoMemory(t *testing.T) {
	for _, length := range []int{narrow, wide} {
		conn := &peer{Reader: bytes.NewReader(sent(length, command{code: commandClose}))}
		if err := ServePages(conn, t.TempDir(), page, &fakeSink{}, nil); err != nil || conn.answers.Len() != 4 {
			t.Errorf("%d: got %v, %v", length, err, conn.answers.Bytes())
		}
	}
}
