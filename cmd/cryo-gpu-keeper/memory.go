//go:build cgo

package main

/*
#include "memory.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// hold holds memory until the shim hangs up.
func hold(ctx context.Context, c *channel.Channel) error {
	// The shim's environment says two. A copy keeps one until the scheduler notices, and who hears of free slots waits for that.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), 4*keeper.Streams))
	return keeper.Serve(ctx, c, openMemory)
}

// memoryDriver is NVIDIA's, with a primary context on each device that is used.
type memoryDriver struct {
	mu      sync.Mutex
	devices map[string]*device // by UUID; guarded by mu
}

var _ keeper.Driver = (*memoryDriver)(nil)

// openMemory loads and initialises libcuda, with the functions for memory.
func openMemory() (keeper.Driver, error) {
	if _, err := load(); err != nil {
		return nil, err
	}
	if missing := C.memory_open(); missing != nil {
		return nil, old(C.GoString(missing))
	}
	return &memoryDriver{devices: make(map[string]*device)}, nil
}

// failed is nil for a call that succeeded.
func failed(o C.struct_outcome) error {
	if o.code == 0 {
		return nil
	}
	code := int(o.code)
	return &driver.CallError{Call: C.GoString(o.call), Code: code, Name: errorName(code)}
}

// Device implements [keeper.Driver].
func (m *memoryDriver) Device(uuid string) (keeper.Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.devices[uuid]; d != nil {
		return d, nil
	}
	id, err := driver.ParseUUID(uuid)
	if err != nil {
		return nil, err
	}
	var given C.struct_uuid
	for i, b := range id {
		given.bytes[i] = C.uchar(b)
	}
	d := &device{}
	if err := failed(C.memory_device(&given, &d.c)); err != nil {
		return nil, fmt.Errorf("open %s: %w", uuid, err)
	}
	if d.c.context == nil {
		return nil, fmt.Errorf("open %s: the driver has no such device: %w", uuid, errdefs.ErrNotFound)
	}
	m.devices[uuid] = d
	return d, nil
}

// Pin implements [keeper.Driver].
func (m *memoryDriver) Pin(host []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.devices { // any: it is for all contexts
		return failed(C.memory_pin(&d.c, unsafe.Pointer(&host[0]), C.size_t(len(host))))
	}
	return fmt.Errorf("pin memory: no device is open: %w", errdefs.ErrFailedPrecondition)
}

// device implements [keeper.Device].
type device struct{ c C.struct_device }

// Import implements [keeper.Device].
func (d *device) Import(file *os.File, size int64) (keeper.Memory, error) {
	m := &memory{device: d}
	if err := failed(C.memory_import(&d.c, C.int(file.Fd()), C.size_t(size), &m.c)); err != nil {
		return nil, err
	}
	return m, nil
}

// Make implements [keeper.Device].
func (d *device) Make(size int64) (keeper.Memory, error) {
	m := &memory{device: d}
	if err := failed(C.memory_make(&d.c, C.size_t(size), &m.c)); err != nil {
		return nil, err
	}
	return m, nil
}

// Clear implements [keeper.Device].
func (d *device) Clear(all []keeper.Memory) error {
	var err error
	for _, one := range all {
		m, ok := one.(*memory)
		if !ok || m.device != d {
			err = fmt.Errorf("clear device memory: it is not of the device: %w", errdefs.ErrInvalidArgument)
		} else {
			err = failed(C.memory_clear(&d.c, m.at(0), m.c.bytes))
		}
		if err != nil {
			break
		}
	}
	// Also after an error: what has begun is over when this returns.
	return errors.Join(err, failed(C.memory_cleared(&d.c)))
}

// Copy implements [keeper.Device].
func (d *device) Copy(to, from keeper.Memory) error {
	t, ok := to.(*memory)
	f, well := from.(*memory)
	if !ok || !well || t.device != d || f.device != d || t.c.bytes != f.c.bytes {
		return fmt.Errorf("copy device memory: it is not of the device, or of another size: %w", errdefs.ErrInvalidArgument)
	}
	return failed(C.memory_copy(&d.c, t.at(0), f.at(0), t.c.bytes))
}

// Room implements [keeper.Device].
func (d *device) Room() (int64, error) {
	var bytes C.size_t
	if err := failed(C.memory_room(&d.c, &bytes)); err != nil {
		return 0, err
	}
	return int64(bytes), nil
}

// memory implements [keeper.Memory].
type memory struct {
	device *device
	c      C.struct_memory
}

// at is the address of what is at the offset.
func (m *memory) at(offset int64) C.uint64_t { return m.c.address + C.uint64_t(offset) }

// Read implements [keeper.Memory].
func (m *memory) Read(stream int, to []byte, offset int64) error {
	return failed(C.memory_read(&m.device.c, C.int(stream), unsafe.Pointer(&to[0]), m.at(offset), C.size_t(len(to))))
}

// Write implements [keeper.Memory].
func (m *memory) Write(stream int, from []byte, offset int64) error {
	return failed(C.memory_write(&m.device.c, C.int(stream), m.at(offset), unsafe.Pointer(&from[0]), C.size_t(len(from))))
}

// Export implements [keeper.Memory].
func (m *memory) Export() (*os.File, error) {
	var fd C.int
	if err := failed(C.memory_export(&m.device.c, &m.c, &fd)); err != nil {
		return nil, err
	}
	unix.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "device memory"), nil
}

// Free implements [keeper.Memory].
func (m *memory) Free() error { return failed(C.memory_free(&m.device.c, &m.c)) }
