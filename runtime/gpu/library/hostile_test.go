package library

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
)

// saying is a message of a library that is none.
type saying struct {
	header  header
	payload []byte
	files   []int
	raw     []byte // in place of all that
}

// pretend gives a conversation with one that answers each request with the next sayings up to one that is marked as the last, and hangs up in the end.
// The number of the request is put into what is not raw.
func pretend(t *testing.T, answers ...saying) *Process {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{pid: os.Getpid(), socket: pair[0]}
	t.Cleanup(func() { _ = p.HangUp() })
	go func() {
		defer unix.Close(pair[1])
		b := make([]byte, headerSize+maxPayload)
		for _, a := range answers {
			if n, err := unix.Read(pair[1], b); err != nil || n < headerSize {
				return
			}
			h, _, err := decode(b[:headerSize])
			if err != nil {
				return
			}
			a.header.ID += h.ID
			if a.header.Kind == 0 {
				a.header.Kind = h.Kind
			}
			message := a.raw
			if message == nil {
				message = a.header.encode(a.payload)
			}
			var rights []byte
			if len(a.files) > 0 {
				rights = unix.UnixRights(a.files...)
			}
			if err := unix.Sendmsg(pair[1], message, rights, nil, unix.MSG_NOSIGNAL); err != nil {
				return
			}
		}
	}()
	return p
}

func entries(pieces ...entry) []byte {
	var b []byte
	for _, e := range pieces {
		b, _ = binary.Append(b, binary.LittleEndian, e)
	}
	return b
}

func numbers(all ...uint32) (b []byte) {
	for _, n := range all {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

func greeting(state, pieces, foreign uint32, reason string) []byte {
	b := make([]byte, 20+32, 20+32+len(reason))
	binary.LittleEndian.PutUint32(b, state)
	binary.LittleEndian.PutUint32(b[4:], pieces)
	binary.LittleEndian.PutUint32(b[8:], foreign)
	return append(b, reason...)
}

// TestHostile is told what no library says. Nothing of it is believed, and no descriptor is left open.
func TestHostile(t *testing.T) {
	t.Setenv(TestDriver, "")
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	const at = 0x7f0000000000
	say := func(count, flags uint32, payload []byte, files ...int) saying {
		return saying{header: header{Count: count, Flags: flags}, payload: payload, files: files}
	}
	hi := func(p *Process) error { _, err := p.Hello(); return err }
	list := func(p *Process) error { _, err := p.Table(); return err }
	give := func(p *Process) error {
		if _, err := p.Table(); err != nil {
			return err
		}
		_, err := p.Give()
		return err
	}
	one := say(1, last, entries(entry{Address: at, Size: granularity}))
	books := func(p *Process) error { _, err := p.Books(); return err }
	share := func(p *Process) error { _, err := p.Shared(); return err }
	export := func(p *Process) error { _, err := p.Export(Shareable{Number: 3, Host: true}); return err }
	for _, test := range []struct {
		name string
		do   func(*Process) error
		said []saying
		want string
	}{
		{"nothing", hi, nil, "gone"},
		{"short", hi, []saying{{raw: []byte("CGPU")}}, "shorter"},
		{"magic", hi, []saying{{raw: make([]byte, headerSize)}}, "CGPU"},
		{"version", hi, []saying{{raw: append([]byte("CGPU\x02\x00"), make([]byte, 60)...)}}, "version 2"},
		{"kind", hi, []saying{{header: header{Kind: table}, payload: greeting(0, 0, 0, "")}}, "kind 3"},
		{"number", hi, []saying{{header: header{ID: 7}, payload: greeting(0, 0, 0, "")}}, "request"},
		{"no greeting", hi, []saying{say(0, 0, nil)}, "shorter"},
		{"long reason", hi, []saying{say(0, 0, greeting(0, 0, 0, strings.Repeat("x", 2000)))}, "shorter"},
		{"state", hi, []saying{say(0, 0, greeting(3, 0, 0, ""))}, "state 3"},
		{"pieces", hi, []saying{say(0, 0, greeting(0, maxPieces+1, 0, ""))}, "pieces"},
		{"foreign", hi, []saying{say(0, 0, greeting(0, 1, 2, ""))}, "foreign"},
		{"unasked descriptor", hi, []saying{say(0, 0, greeting(0, 0, 0, ""), pipe[0])}, "not asked for"},
		{"count", list, []saying{say(1000, last, entries(entry{}))}, "shorter"},
		{"no progress", list, []saying{say(0, 0, nil)}, "nothing"},
		{"size", list, []saying{say(1, last, entries(entry{Address: at, Size: 4096}))}, "bytes at"},
		{"no size", list, []saying{say(1, last, entries(entry{Address: at}))}, "bytes at"},
		{"address", list, []saying{say(1, last, entries(entry{Address: at + 1, Size: granularity}))}, "bytes at"},
		{"beyond", list, []saying{say(1, last, entries(entry{Address: 1<<64 - granularity, Size: 2 * granularity}))}, "bytes at"},
		{"a huge one", list, []saying{say(1, last, entries(entry{Address: at, Size: 1 << 63}))}, "bytes at"},
		{"order", list, []saying{say(1, last, entries(entry{Number: 1, Address: at, Size: granularity}))}, "number 1"},
		{"over", list, []saying{say(2, last, entries(entry{Address: at, Size: 2 * granularity}, entry{Number: 1, Address: at + granularity, Size: granularity}))}, "before the end"},
		{"no descriptor", give, []saying{one, say(1, last, make([]byte, 4))}, "0 descriptors"},
		{"descriptor", give, []saying{one, say(1, last, make([]byte, 4), pipe[0])}, "not memory"},
		{"two", give, []saying{one, say(2, last, []byte{0, 0, 0, 0, 1, 0, 0, 0}, pipe[0], pipe[1])}, "2 descriptors"},
		{"another", give, []saying{one, say(1, last, []byte{9, 0, 0, 0}, pipe[0])}, "piece 9"},
		{"none", give, []saying{one, say(0, 0, nil)}, "0 descriptors"},
		{"driver", give, []saying{one, {header: header{Result: 999}}}, "CUDA_ERROR_UNKNOWN"},
		{"no books", books, []saying{say(0, 0, make([]byte, 19))}, "shorter"},
		{"books", books, []saying{say(0, 0, numbers(0, 1, 2, 0, 0))}, "2 are not there"},
		{"long books", books, []saying{say(0, 0, numbers(maxPieces+1, 0, 0, 0, 0))}, "exported"},
		{"books with a descriptor", books, []saying{say(0, 0, numbers(0, 0, 0, 0, 0), pipe[0])}, "not asked for"},
		{"shared without a descriptor", share, []saying{say(1, last, numbers(1, 0, 3))}, "shorter"},
		{"shared twice", share, []saying{say(1, last, numbers(1, 0, 3), pipe[0], pipe[1])}, "shorter"},
		{"shared by another number", share, []saying{say(1, last, numbers(maxPieces+1, 0, 3), pipe[0])}, "has descriptor"},
		{"shared from the host and imported", share, []saying{say(1, last, numbers(hostNumber|1, 1, 3), pipe[0])}, "has descriptor"},
		{"a team of nothing", share, []saying{say(1, last, numbers(multicastNumber|1, 0, 3), pipe[0])}, "has descriptor"},
		{"a team of memory", share, []saying{say(1, last, numbers(1, 2<<16, 3), pipe[0])}, "has descriptor"},
		{"a team that is imported", share, []saying{say(1, last, numbers(multicastNumber|1, 2<<16|1, 3), pipe[0])}, "has descriptor"},
		{"multicast objects", books, []saying{say(maxPieces+1, 0, make([]byte, 20))}, "multicast objects"},
		{"shared by a descriptor", share, []saying{say(1, last, numbers(1, 0, 3), pipe[0])}, "not memory"},
		{"shared without end", share, []saying{say(0, 0, nil)}, "0 times"},
		{"exported nothing", export, []saying{say(1, 0, numbers(hostNumber|3))}, "0 descriptors"},
		{"exported another", export, []saying{say(1, 0, numbers(3), pipe[0])}, "1 descriptors"},
		{"exported what is no memory", export, []saying{say(1, 0, numbers(hostNumber|3), pipe[0])}, "not memory"},
		{"imported", func(p *Process) error { return p.Import(0, false, os.Stdin) }, []saying{say(0, 0, nil, pipe[0])}, "not asked for"},
		{"own", func(p *Process) error { _, err := p.Own(t.Context()); return err }, []saying{say(1<<31, 0, nil)}, "left"},
		{"attach", func(p *Process) error { return p.Attach(t.Context(), []record.GPUPiece{{}}, nil) }, nil, "0 files for 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := links(t, os.Getpid(), "pipe:")
			err := test.do(pretend(t, test.said...))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if n := links(t, os.Getpid(), "pipe:"); n > before {
				t.Errorf("%d descriptors are left", n-before)
			}
		})
	}
}

// TestSilent waits no longer than it is told to for one that does not answer.
func TestSilent(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	p := &Process{pid: os.Getpid(), socket: pair[0]}
	defer func() { _ = p.HangUp() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var gone *GoneError
	if err := p.Attach(ctx, nil, nil); !errors.As(err, &gone) {
		t.Fatal(err)
	}
}

// TestTake is shown descriptors that are not the library's socket.
func TestTake(t *testing.T) {
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	packets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, fd := range append(stream[:], packets[:]...) {
		defer unix.Close(fd)
	}
	var gone *GoneError
	if _, err := take(os.Getpid(), int(file.Fd())); !errdefs.IsDataLoss(err) {
		t.Errorf("a file: %v", err)
	}
	if _, err := take(os.Getpid(), stream[0]); !errdefs.IsDataLoss(err) {
		t.Errorf("a stream: %v", err)
	}
	if _, err := take(os.Getpid(), 1<<20); !errors.As(err, &gone) {
		t.Errorf("nothing: %v", err)
	}
	fd, err := take(os.Getpid(), packets[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
}

// FuzzDecode reads messages of libraries.
func FuzzDecode(f *testing.F) {
	f.Add(header{Kind: hello}.encode(greeting(2, 3, 1, "reason")), 0)
	f.Add(header{Kind: table, Count: 1, Flags: last}.encode(entries(entry{Address: 1 << 40, Size: granularity})), 0)
	f.Add(header{Kind: give, Count: 2}.encode([]byte{3, 0, 0, 0, 4, 0, 0, 0}), 3)
	f.Fuzz(func(t *testing.T, message []byte, next int) {
		h, payload, err := decode(message)
		if err != nil {
			return
		}
		if hi, err := decodeHello(payload); err == nil && (hi.State > Given || hi.Pieces > maxPieces || hi.Foreign > hi.Pieces || len(hi.Unable) > 1024) {
			t.Fatalf("%+v", hi)
		}
		if pieces, err := decodeEntries(nil, h, payload); err == nil {
			for _, p := range pieces {
				if p.Size <= 0 || p.Address+uint64(p.Size) < p.Address {
					t.Fatalf("%+v", p)
				}
			}
		}
		_ = decodeNumbers(next, h, payload)
		if b, err := decodeBooks(payload); err == nil && (b.Apart > b.Imports || b.Exports > maxPieces || len(b.Unknown) > 1024) {
			t.Fatalf("%+v", b)
		}
		if next < 0 || next > batch {
			return
		}
		if all, err := decodePassed(h, payload, make([]*os.File, next)); err == nil {
			for _, p := range all {
				if p.Memory < 0 || p.Memory > maxPieces || p.FD < 0 || p.Host && p.Import {
					t.Fatalf("%+v", p)
				}
			}
		}
	})
}
