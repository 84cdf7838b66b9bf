//go:build cgo

package main

/*
#include <stdlib.h>

#include "memory.h"
*/
import "C"

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"unsafe"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// sumKernel is the source of a kernel that sums memory with a key. The driver compiles it.
//
//go:embed sum.ptx
var sumKernel string

const (
	sumSize  = C.SUMS   // of the sums of a unit, bytes
	sumUnit  = 32 << 10 // what has a sum of its own, bytes
	sumPass  = 4        // passes, and the words by which each pass shifts the key
	keyBytes = C.KEY
)

// sumKey is what a device sums its memory with. Only this process has it, and it is never used again.
type sumKey [keyBytes / 4]uint32

func newSumKey() *sumKey {
	var random [keyBytes]byte
	_, _ = rand.Read(random[:]) // which ends the program where it fails
	k := &sumKey{}
	for i := range k {
		k[i] = binary.LittleEndian.Uint32(random[4*i:])
	}
	return k
}

// sum is what the kernel computes of one [device.Unit], in the host's arithmetic: NH of RFC 4418, of each sumUnit, in four passes.
func (k *sumKey) sum(unit []byte) (sums [sumSize]byte) {
	for n := 0; n < len(unit); n += sumUnit {
		for pass := range sumPass {
			var total uint64
			for i := 0; i < sumUnit/4; i += 2 {
				x, y := binary.LittleEndian.Uint32(unit[n+4*i:]), binary.LittleEndian.Uint32(unit[n+4*i+4:])
				at := i + sumPass*pass
				total += uint64(x+k[at]) * uint64(y+k[at+1])
			}
			binary.LittleEndian.PutUint64(sums[n/sumUnit*8*sumPass+8*pass:], total)
		}
	}
	return sums
}

// openSums gets a device ready to sum its memory, unless it is. It returns false where the device cannot: it has no room, or its driver does not take the kernel, or what the kernel computes is not what the host
// does.
func (d *cudaDevice) openSums() bool {
	if d.key != nil {
		return d.c.sum != nil
	}
	d.key = newSumKey()
	text := C.CString(sumKernel)
	defer C.free(unsafe.Pointer(text))
	C.memory_open_sums(&d.c, text, unsafe.Pointer(d.key))
	if d.c.sum == nil {
		return false
	}
	if !d.provesSums() {
		C.memory_close_sums(&d.c)
		return false
	}
	d.zeroSums = d.key.sum(make([]byte, device.Unit))
	return true
}

// provesSums reports whether the kernel computes what the host does: of random bytes, of zeros, and with single bytes changed, in several units at once.
func (d *cudaDevice) provesSums() bool {
	const units = 3
	data := make([]byte, units*device.Unit)
	_, _ = rand.Read(data[:2*device.Unit])
	stage := &memory{device: d, c: C.struct_memory{address: d.c.stage}}
	for round := range 4 {
		if round > 0 {
			for unit := range units {
				data[unit*device.Unit+(round*345679+unit*7919)%device.Unit] ^= 1 << round
			}
		}
		if stage.Write(0, data, 0) != nil {
			return false
		}
		sums, err := stage.Sums(0, 0, units*device.Unit)
		if err != nil {
			return false
		}
		for unit := range units {
			want := d.key.sum(data[unit*device.Unit:][:device.Unit])
			if !bytes.Equal(sums[unit*sumSize:][:sumSize], want[:]) {
				return false
			}
		}
	}
	return true
}

// closeStage frees the device memory through which Stage copies.
func (d *cudaDevice) closeStage() { C.memory_close_stage(&d.c) }

// stageBytes is how much can be copied ahead at once.
const stageBytes = int64(C.STAGE)

// Stage copies to pinned host memory, by way of memory that is the device's own, and returns the sums of what was copied. One goroutine does so at a time.
func (m *memory) Stage(stream int, to []byte, offset int64) ([]byte, error) {
	sums := make([]byte, len(to)/device.Unit*sumSize)
	err := failed(C.memory_stage(&m.device.c, C.int(stream), unsafe.Pointer(&to[0]), m.at(offset), C.size_t(len(to)), (*C.uchar)(unsafe.Pointer(&sums[0]))))
	return sums, err
}

// Sums returns the sums of a range of whole units, no longer than a window.
func (m *memory) Sums(stream int, offset, length int64) ([]byte, error) {
	sums := make([]byte, length/device.Unit*sumSize)
	err := failed(C.memory_sums(&m.device.c, C.int(stream), m.at(offset), C.uint(length/device.Unit), (*C.uchar)(unsafe.Pointer(&sums[0]))))
	return sums, err
}
