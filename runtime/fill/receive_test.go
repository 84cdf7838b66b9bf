package fill

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// sent is one message on the socket; descriptors are copies of standard input's.
type sent struct {
	data        []byte
	descriptors int
}

// tasks are what Receive gives of messages.
func tasks(t testing.TB, messages []sent) (pids []int, err error) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(pair[0]), "ours")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, m := range messages {
		var rights []byte
		if m.descriptors > 0 {
			rights = unix.UnixRights(make([]int, m.descriptors)...)
		}
		if err := unix.Sendmsg(pair[1], m.data, rights, nil, unix.MSG_DONTWAIT); err != nil {
			break // there is no room for more
		}
	}
	if err := unix.Close(pair[1]); err != nil {
		t.Fatal(err)
	}
	err = Receive(conn.(*net.UnixConn), func(task Task) error {
		pids = append(pids, task.PID)
		return unix.Close(task.UFFD) // it is one
	})
	return pids, err
}

func number(v int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(v)) }

func TestReceive(t *testing.T) {
	one, end := sent{[]byte{0}, 1}, sent{number(finished), 0}
	for name, test := range map[string]struct {
		messages []sent
		pids     int
		cut, bad bool
	}{
		"nothing":              {nil, 0, true, false},
		"no task":              {[]sent{end}, 0, false, false},
		"one":                  {[]sent{{number(1), 0}, one, end}, 1, false, false},
		"zombie":               {[]sent{{number(1), 0}, one, {number(-7), 0}, {number(3), 0}, one, end}, 2, false, false},
		"in halves":            {[]sent{{number(1)[:1], 0}, {number(1)[1:], 0}, one, end}, 1, false, false},
		"not finished":         {[]sent{{number(1), 0}, one}, 1, true, false},
		"cut pid":              {[]sent{{number(1)[:3], 0}}, 0, true, false},
		"no descriptor":        {[]sent{{number(1), 0}}, 0, true, false},
		"pid again":            {[]sent{{number(1), 0}, {number(2), 0}, end}, 0, false, true},
		"two descriptors":      {[]sent{{number(1), 0}, {[]byte{0}, 2}, end}, 0, false, true},
		"many descriptors":     {[]sent{{number(1), 0}, {[]byte{0}, 50}, end}, 0, false, true},
		"descriptor for a pid": {[]sent{{number(1), 1}, one, end}, 0, false, true},
		"pid 0":                {[]sent{{number(0), 0}, one, end}, 0, false, true},
		"lowest pid":           {[]sent{{number(-1 << 31), 0}, end}, 0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := open(t)
			pids, err := tasks(t, test.messages)
			if bad := errdefs.IsUnknown(err); len(pids) != test.pids || bad != test.bad || test.cut != errors.Is(err, io.ErrUnexpectedEOF) || err == nil == (test.cut || test.bad) {
				t.Errorf("gives %v, %v", pids, err)
			}
			if after := open(t); after != before {
				t.Errorf("%d descriptors were open, %d are", before, after)
			}
		})
	}
}

// open is how many descriptors this process has.
func open(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// FuzzReceive sends anything, and descriptors with one of the bytes.
func FuzzReceive(f *testing.F) {
	f.Add(append(append(number(1), 0), number(finished)...), 4, 1)
	f.Add(number(-1), 0, 0)
	f.Fuzz(func(t *testing.T, data []byte, at, descriptors int) {
		if descriptors < 0 || descriptors > 60 || len(data) > 1<<12 {
			return
		}
		messages := []sent{{data: data}}
		if at >= 0 && at < len(data) {
			messages = []sent{{data: data[:at]}, {data[at : at+1], descriptors}, {data: data[at+1:]}}
			if at == 0 {
				messages = messages[1:]
			}
			if at == len(data)-1 {
				messages = messages[:len(messages)-1]
			}
		}
		before := open(t)
		pids, err := tasks(t, messages)
		if err != nil && !errdefs.IsUnknown(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("gives %v", err)
		}
		for _, pid := range pids {
			if pid <= 0 {
				t.Errorf("there is process %d", pid)
			}
		}
		if after := open(t); after != before {
			t.Errorf("%d descriptors were open, %d are", before, after)
		}
	})
}

func FuzzEvent(f *testing.F) {
	f.Add(append([]byte{eventRemap}, make([]byte, messageSize-1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEvent(b)
		if err != nil {
			if !errors.Is(err, errMessage) {
				t.Errorf("gives %v", err)
			}
			return
		}
		v := everything()
		if e.kind == eventRemap {
			v = v.move(e.addr, e.end, e.to)
		} else if e.kind != eventPageFault && e.kind != eventFork {
			v, _ = v.cut(e.addr, e.end)
		}
		for _, w := range v {
			if w.start >= w.end || w.end > maxAddress {
				t.Errorf("%+v leaves %+v", e, v)
			}
		}
	})
}
