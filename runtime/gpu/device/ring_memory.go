package device

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// RingGeometry is that of a ring.
type RingGeometry struct {
	Slots     int
	SlotBytes int64 // a multiple of the host's page size
}

// DefaultRing keeps the copy engines of a device and 16 cores busy, with 128 MiB.
var DefaultRing = RingGeometry{Slots: 32, SlotBytes: 4 << 20}

// Limits of what is believed of a peer.
const (
	maxSlots     = 1 << 10
	maxSlotBytes = 1 << 30
	maxBytes     = 8 << 30
)

// Bytes is the size of all slots.
func (g RingGeometry) Bytes() int64 { return int64(g.Slots) * g.SlotBytes }

func (g RingGeometry) check() error {
	if g.Slots < 1 || g.Slots > maxSlots || g.SlotBytes < 1 || g.SlotBytes > maxSlotBytes || g.Bytes() > maxBytes || g.SlotBytes%int64(os.Getpagesize()) != 0 {
		return broken("a ring of %d slots of %d bytes", g.Slots, g.SlotBytes)
	}
	return nil
}

// Ring is a ring's: a sealed memfd that is mapped here. It is unmapped when it is not used any more.
type Ring struct {
	geometry RingGeometry
	file     *os.File
	data     []byte
	users    atomic.Int64
}

// seals keep a peer from taking mapped memory away, which would end this process by SIGBUS.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// NewRing makes the memory of a ring. The caller closes it.
func NewRing(g RingGeometry) (*Ring, error) {
	if err := g.check(); err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("cryo-gpu-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a ring: memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "cryo-gpu-ring")
	if err := file.Truncate(g.Bytes()); err != nil {
		return nil, errors.Join(fmt.Errorf("make a ring: %w", err), file.Close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("seal a ring: %w", err), file.Close())
	}
	return mapped(file, g)
}

// adopt maps what a peer has sent. It owns the file.
func adopt(file *os.File, g RingGeometry) (*Ring, error) {
	err := g.check()
	var size int64
	if err == nil {
		var has int
		if has, err = unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0); err == nil && has&seals != seals {
			err = broken("its ring is not sealed (%#x)", has)
		}
	}
	if err == nil {
		var info os.FileInfo
		if info, err = file.Stat(); err == nil {
			size = info.Size()
		}
	}
	if err == nil && size < g.Bytes() {
		err = broken("its ring has %d bytes, not %d", size, g.Bytes())
	}
	if err != nil {
		file.Close()
		if !errdefs.IsInvalidArgument(err) {
			err = fmt.Errorf("look at the other process's ring: %w", err)
		}
		return nil, err
	}
	return mapped(file, g)
}

func mapped(file *os.File, g RingGeometry) (*Ring, error) {
	data, err := unix.Mmap(int(file.Fd()), 0, int(g.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map a ring of %d bytes: %w", g.Bytes(), err), file.Close())
	}
	m := &Ring{geometry: g, file: file, data: data}
	m.users.Store(1)
	return m, nil
}

// Geometry is what it was made with.
func (m *Ring) Geometry() RingGeometry { return m.geometry }

// Bytes is all of it, page-aligned, one slot after the other.
func (m *Ring) Bytes() []byte { return m.data }

// Fill has the kernel give memory to all of it, which costs more than to pin it afterwards. Where it cannot, each page comes when it is needed.
func (m *Ring) Fill() {
	if unix.Madvise(m.data, unix.MADV_POPULATE_WRITE) == nil { // since Linux 5.14
		return
	}
	for at := 0; at < len(m.data); at += os.Getpagesize() {
		m.data[at] = 0 // no other process has it yet
	}
}

func (m *Ring) slot(n int) []byte {
	size := int(m.geometry.SlotBytes)
	return m.data[n*size : (n+1)*size : (n+1)*size]
}

func (m *Ring) use() { m.users.Add(1) }

func (m *Ring) leave() {
	if m.users.Add(-1) == 0 {
		_ = unix.Munmap(m.data)
	}
}

// Close closes the file, and unmaps the memory when the last slot in use is given back.
func (m *Ring) Close() error {
	err := m.file.Close()
	m.leave()
	return err
}
