package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// A copy of the test program is a keeper with a fake driver: its devices, and what goes wrong.
const (
	devicesVariable = "CRYO_KEEPER_TEST_DEVICES"
	ordersVariable  = "CRYO_KEEPER_TEST_ORDERS"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "keeper" {
		c, err := channel.Open(3)
		if err == nil {
			err = Serve(context.Background(), c, openFake)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openFake() (Driver, error) {
	var devices []*fakeDevice
	for _, one := range strings.Fields(os.Getenv(devicesVariable)) {
		uuid, total, _ := strings.Cut(one, "=")
		n, _ := strconv.ParseInt(total, 10, 64)
		devices = append(devices, &fakeDevice{uuid: uuid, total: n})
	}
	f := newFake(os.Getenv(ordersVariable), devices...)
	return f, f.call("open")
}

const mib = 1 << 20

// small is a ring that is soon full.
var small = ring.Geometry{Slots: 4, SlotBytes: 64 << 10}

var uuids = []string{"GPU-00000001-0000-4000-8000-00000000000a", "GPU-00000002-0000-4000-8000-00000000000a"}

// start starts a keeper of two fake devices of a GiB each.
func start(t *testing.T, orders string, totals ...int64) *Client {
	t.Helper()
	var devices []string
	for i, uuid := range uuids {
		total := int64(1 << 30)
		if i < len(totals) {
			total = totals[i]
		}
		devices = append(devices, fmt.Sprintf("%s=%d", uuid, total))
	}
	t.Setenv(devicesVariable, strings.Join(devices, " "))
	t.Setenv(ordersVariable, orders)
	c, err := Start(t.Context(), Options{Path: os.Args[0], Ring: small})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Open(uuids[:1]); err != nil {
		t.Fatal(err)
	}
	return c
}

// given is memory that processes have given away.
type given struct {
	pieces   []spec.GPUPiece
	files    []*os.File
	contents [][]byte
}

// give makes memory of random contents: sizes in MiB, one behind the other, on the two devices by turns.
func give(t *testing.T, sizes ...int64) (g given) {
	t.Helper()
	r := rand.NewChaCha8([32]byte{byte(len(sizes))})
	address := uint64(3*ring.Window - 10*mib) // soon in the next window
	for i, n := range sizes {
		file, err := fakeFile(n * mib)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		content := make([]byte, n*mib)
		_, _ = r.Read(content)
		if _, err := file.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		g.pieces = append(g.pieces, spec.GPUPiece{Device: uuids[i%len(uuids)], Size: n * mib, Address: address})
		address += uint64(n * mib)
		g.files = append(g.files, file)
		g.contents = append(g.contents, content)
	}
	return g
}

// same fails the test unless a is b.
func same(t *testing.T, what string, a, b [][]byte) {
	t.Helper()
	if len(a) != len(b) {
		t.Fatalf("%s: %d pieces, not %d", what, len(a), len(b))
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			t.Errorf("%s: piece %d is another", what, i)
		}
	}
}

// sockets are both ends of what a ring goes over.
func sockets(t *testing.T) (a, b *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// drain has send send pieces, and gives what came. It fails the test where parts of a window come in another order.
func drain(t *testing.T, pieces []spec.GPUPiece, send func(peer *os.File) error) ([][]byte, error) {
	t.Helper()
	ours, theirs := sockets(t)
	got := make([][]byte, len(pieces))
	sizes := make([]int64, len(pieces))
	for i, p := range pieces {
		got[i], sizes[i] = make([]byte, p.Size), p.Size
	}
	var wait sync.WaitGroup
	var sent, received error
	wait.Go(func() { sent = send(theirs) })
	next := make(map[string]uint64) // by device and window: the least address that may come
	wait.Go(func() {
		received = ring.Receive(t.Context(), ours, sizes, func(c ring.Chunk, release func()) error {
			at := pieces[c.Piece].Address + uint64(c.Offset)
			window := fmt.Sprint(pieces[c.Piece].Device, at/ring.Window)
			if last := at + uint64(len(c.Data)) - 1; at < next[window] || last/ring.Window != at/ring.Window {
				return fmt.Errorf("piece %d, offset %d comes late, or is of two windows", c.Piece, c.Offset)
			}
			next[window] = at + uint64(len(c.Data))
			copy(got[c.Piece][c.Offset:], c.Data)
			release()
			return nil
		})
	})
	wait.Wait()
	return got, errors.Join(sent, received)
}

// load has receive take what give gives.
func load(t *testing.T, sizes []int64, receive func(peer *os.File) error, give func(context.Context, *ring.Sender) error) error {
	t.Helper()
	ours, theirs := sockets(t)
	var wait sync.WaitGroup
	var sent, received error
	wait.Go(func() { received = receive(theirs) })
	wait.Go(func() { sent = ring.Send(t.Context(), ours, sizes, give) })
	wait.Wait()
	return errors.Join(sent, received)
}
