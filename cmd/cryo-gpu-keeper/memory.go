//go:build cgo

package main

/*
#include <stdlib.h>

#include "memory.h"
*/
import "C"

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// zeroKernel is the source of a kernel that finds memory which contains only zeros. The driver compiles it.
//
//go:embed zero.ptx
var zeroKernel string

// cudaMemory is NVIDIA's, with a primary context on each device that is used.
type cudaMemory struct {
	mu      sync.Mutex
	devices map[string]*cudaDevice // by UUID; guarded by mu
}

// openMemory loads and initialises libcuda, with the functions for memory.
func openMemory() (*cudaMemory, error) {
	if _, err := load(); err != nil {
		return nil, err
	}
	if missing := C.memory_open(); missing != nil {
		return nil, old(C.GoString(missing))
	}
	return &cudaMemory{devices: make(map[string]*cudaDevice)}, nil
}

// failed is nil for a call that succeeded.
func failed(o C.struct_outcome) error {
	if o.code == 0 {
		return nil
	}
	code := int(o.code)
	return &device.CallError{Call: C.GoString(o.call), Code: code, Name: errorName(code)}
}

// Device opens the device with this UUID, once. Its error is of kind NotFound if there is none.
func (m *cudaMemory) Device(uuid string) (*cudaDevice, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.devices[uuid]; d != nil {
		return d, nil
	}
	id, err := device.ParseUUID(uuid)
	if err != nil {
		return nil, err
	}
	var given C.struct_uuid
	for i, b := range id {
		given.bytes[i] = C.uchar(b)
	}
	d := &cudaDevice{}
	if err := failed(C.memory_device(&given, &d.c)); err != nil {
		return nil, fmt.Errorf("open %s: %w", uuid, err)
	}
	if d.c.context == nil {
		return nil, fmt.Errorf("open %s: the driver has no such device: %w", uuid, errdefs.ErrNotFound)
	}
	text := C.CString(zeroKernel)
	defer C.free(unsafe.Pointer(text))
	C.memory_find_zero(&d.c, text)
	m.devices[uuid] = d
	return d, nil
}

// Pin makes host memory, which is page-aligned, reachable for all devices, until the process ends. At least one device is open.
func (m *cudaMemory) Pin(host []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.devices { // any: it is for all contexts
		return failed(C.memory_pin(&d.c, unsafe.Pointer(&host[0]), C.size_t(len(host))))
	}
	return fmt.Errorf("pin memory: no device is open: %w", errdefs.ErrFailedPrecondition)
}

// streams is how many of a device copy side by side: one copies while the slots of others are handed on, by threads that wait for a processor.
const streams = int(C.STREAMS)

// cudaDevice is one of the driver's. All that it and [memory] do may be called from several goroutines, but for one memory never by two that change it. Errors of the
// driver's calls are [device.CallError].
type cudaDevice struct {
	c        C.struct_device
	key      *sumKey       // nil: it was not asked to sum
	zeroSums [sumSize]byte // of a unit of zeros
}

// Import maps memory of this device and size by its descriptor, which remains the caller's.
func (d *cudaDevice) Import(file *os.File, size int64) (*memory, error) {
	m := &memory{device: d}
	if err := failed(C.memory_import(&d.c, C.int(file.Fd()), C.size_t(size), &m.c)); err != nil {
		return nil, err
	}
	return m, nil
}

// Make maps new memory, whose contents are undefined.
func (d *cudaDevice) Make(size int64) (*memory, error) {
	m := &memory{device: d}
	if err := failed(C.memory_make(&d.c, C.size_t(size), &m.c)); err != nil {
		return nil, err
	}
	return m, nil
}

// Clear makes memory of this device all zero, and waits once, for all of it.
func (d *cudaDevice) Clear(all []*memory) error {
	var err error
	for _, m := range all {
		if err = failed(C.memory_clear(&d.c, m.at(0), m.c.bytes)); err != nil {
			break
		}
	}
	// Also after an error: what has begun is over when this returns.
	return errors.Join(err, failed(C.memory_cleared(&d.c)))
}

// Copy copies all of one to another of this device and size, and waits for it.
func (d *cudaDevice) Copy(to, from *memory) error {
	return failed(C.memory_copy(&d.c, to.at(0), from.at(0), to.c.bytes))
}

// Room returns how much could be made, in bytes.
func (d *cudaDevice) Room() (int64, error) {
	var bytes C.size_t
	if err := failed(C.memory_room(&d.c, &bytes)); err != nil {
		return 0, err
	}
	return int64(bytes), nil
}

// memory is mapped memory of a device. What it does is done when it returns.
type memory struct {
	device *cudaDevice
	c      C.struct_memory
}

// at is the address of what is at the offset.
func (m *memory) at(offset int64) C.uint64_t { return m.c.address + C.uint64_t(offset) }

// Read copies to pinned host memory, on one of the device's [streams].
func (m *memory) Read(stream int, to []byte, offset int64) error {
	return failed(C.memory_read(&m.device.c, C.int(stream), unsafe.Pointer(&to[0]), m.at(offset), C.size_t(len(to))))
}

// Write copies from pinned host memory, on one of the device's [streams].
func (m *memory) Write(stream int, from []byte, offset int64) error {
	return failed(C.memory_write(&m.device.c, C.int(stream), m.at(offset), unsafe.Pointer(&from[0]), C.size_t(len(from))))
}

// findsZero reports whether the device has a kernel that finds zeros.
func (d *cudaDevice) findsZero() bool { return d.c.kernel != nil }

// Zero returns, for each unit of a range, whether the unit contains only zeros. The search uses one of the device's streams, and the device must have a kernel for it. The range has whole
// units. Zero returns nil for a range that is longer than a window.
func (m *memory) Zero(stream int, offset, length int64) ([]bool, error) {
	var written [C.UNITS]C.uchar
	units := length / device.Unit
	if units > C.UNITS {
		return nil, nil
	}
	if err := failed(C.memory_written(&m.device.c, C.int(stream), m.at(offset), C.uint(units), &written[0])); err != nil {
		return nil, err
	}
	zero := make([]bool, units)
	for i := range zero {
		zero[i] = written[i] == 0
	}
	return zero, nil
}

// Export returns a descriptor; imported memory has none.
func (m *memory) Export() (*os.File, error) {
	var fd C.int
	if err := failed(C.memory_export(&m.device.c, &m.c, &fd)); err != nil {
		return nil, err
	}
	unix.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "device memory"), nil
}

// Free unmaps the memory and releases it.
func (m *memory) Free() error { return failed(C.memory_free(&m.device.c, &m.c)) }
