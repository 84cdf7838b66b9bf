package worker

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/storetest"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// memory is device memory, by piece.
type memory struct {
	pieces [][]byte
	fail   error
}

func (m memory) Read(piece int, offset int64, dst []byte) (bool, error) {
	copy(dst, m.pieces[piece][offset:])
	return !bytes.Equal(dst, make([]byte, len(dst))), m.fail
}

func (memory) Close() {}

// TestSplit sends pieces of which some are zero through a ring with slots that are smaller than they are.
func TestSplit(t *testing.T) {
	const slot, mib = 256 << 10, 1 << 20
	for _, fail := range []error{nil, os.ErrPermission} {
		r := rand.New(rand.NewPCG(1, 2))
		m := memory{fail: fail}
		var sizes []int64
		for _, size := range []int{3 * mib, mib / 2, 2*mib + mib/4} {
			b := make([]byte, size)
			for j := range b {
				if j/mib != 1 {
					b[j] = byte(r.Uint32())
				}
			}
			m.pieces = append(m.pieces, b)
			sizes = append(sizes, int64(size))
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		keeper, loader := os.NewFile(uintptr(pair[0]), "keeper"), os.NewFile(uintptr(pair[1]), "loader")
		defer keeper.Close()
		buffers, err := device.NewRing(device.RingGeometry{Slots: 3, SlotBytes: slot})
		if err != nil {
			t.Fatal(err)
		}
		defer buffers.Close()
		sent := make(chan error, 1)
		go func() {
			defer loader.Close()
			sent <- device.SendPieces(t.Context(), loader, sizes, func(ctx context.Context, s *device.Sender) error {
				return send(ctx, newQueue(sizes, slot, nil), func() (deviceReader, error) { return m, nil }, s)
			})
		}()
		link, err := device.OfferRing(keeper, buffers)
		if err != nil {
			t.Fatal(err)
		}
		got, slots := make([][]byte, len(sizes)), 0
		for i, size := range sizes {
			got[i] = make([]byte, size)
		}
		err = link.Receive(t.Context(), sizes, func(c device.Chunk, release func()) error {
			defer release()
			slots++
			copy(got[c.Piece][c.Offset:], c.Data)
			return nil
		})
		link.Close()
		if fail != nil {
			if err == nil || !errors.Is(<-sent, fail) {
				t.Errorf("a read that fails: %v", err)
			}
			continue
		}
		if err := errors.Join(err, <-sent); err != nil {
			t.Fatal(err)
		}
		for i, p := range m.pieces {
			if !bytes.Equal(got[i], p) {
				t.Errorf("piece %d is another", i)
			}
		}
		if want := 12 + 2 + 9 - 4 - 4; slots != want {
			t.Errorf("%d slots were sent, want %d", slots, want)
		}
	}
}

// testLoadServer loads m.
type testLoadServer struct {
	m      DeviceMemory
	served chan error
}

func (s testLoadServer) Load(c, keeper *os.File) error {
	fd, err := unix.Dup(int(c.Fd()))
	if err != nil {
		return err
	}
	own, err := channel.Open(fd)
	if err != nil {
		return err
	}
	if fd, err = unix.Dup(int(keeper.Fd())); err != nil {
		return err
	}
	go func() { s.served <- s.m.Serve(context.Background(), own, os.NewFile(uintptr(fd), "keeper")) }()
	return nil
}

// TestLoadServeRefuses is the server with a snapshot that it cannot open: it says why and ends.
func TestLoadServeRefuses(t *testing.T) {
	s := testLoadServer{DeviceMemory{From: storetest.Open(t), Snapshot: ocispec.Descriptor{Digest: "sha256:x"}}, make(chan error, 1)}
	l, err := StartLoading(s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Wait(); err == nil || !strings.Contains(err.Error(), "descriptor") {
		t.Errorf("gives %v", err)
	}
	if err := <-s.served; err == nil {
		t.Error("it succeeds")
	}
}

// silent is a server that says nothing, until its channel is closed.
type silent struct{ closed chan struct{} }

func (s silent) Load(c, _ *os.File) error {
	fd, err := unix.Dup(int(c.Fd()))
	if err != nil {
		return err
	}
	own, err := channel.Open(fd)
	if err != nil {
		return err
	}
	go func() {
		var none struct{}
		_, _ = own.Receive(&none)
		own.Close()
		close(s.closed)
	}()
	return nil
}

// TestClose ends a loading while the server has said nothing: both hear of it.
func TestClose(t *testing.T) {
	s := silent{make(chan struct{})}
	l, err := StartLoading(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-s.closed
	if err := l.Wait(); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
}
