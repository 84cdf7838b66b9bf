//go:build cgo

package main

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include "libcuda.h"
*/
import "C"

import (
	"fmt"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// cuda is NVIDIA's, through libcuda for processes and NVML for facts. It makes no CUDA context: the helper takes no
// device memory.
type cuda struct{ version int }

var _ device.DriverAPI = cuda{}

// openDriver loads and initialises libcuda.
func openDriver() (device.DriverAPI, error) {
	d, err := load()
	if err != nil {
		return nil, err
	}
	return d, nil
}

func load() (cuda, error) {
	var why *C.char
	if missing := C.cuda_open(&why); missing != nil {
		name, message := C.GoString(missing), C.GoString(why)
		if name == "libcuda.so.1" {
			return cuda{}, &device.UnusableError{Fault: device.FaultAbsent, Call: name, Message: message}
		}
		return cuda{}, old(name)
	}
	var version C.int
	if code := int(C.cuda_version(&version)); code != 0 {
		return cuda{}, refused("cuDriverGetVersion", code)
	}
	if code := int(C.cuda_init()); code != 0 {
		return cuda{}, refused("cuInit", code)
	}
	return cuda{version: int(version)}, nil
}

// old is the error of a driver that lacks a function.
func old(function string) error {
	return &device.UnusableError{Fault: device.FaultOld, Call: function, Message: "it has no " + function}
}

func refused(call string, code int) error {
	name := errorName(code)
	return &device.UnusableError{Fault: device.FaultRefused, Call: call, Code: code, Name: name, Message: fmt.Sprintf("%s: %s (%d)", call, name, code)}
}

func errorName(code int) string {
	if name := C.GoString(C.cuda_error_name(C.int(code))); name != "" {
		return name
	}
	return "an error without a name"
}

// Name implements [device.DriverAPI].
func (cuda) Name(code int) string { return errorName(code) }

// State implements [device.DriverAPI]. The driver returns an error for a process that does not use it.
func (cuda) State(pid int) device.ProcessState {
	var state C.int
	if C.cuda_state(C.int(pid), &state) != 0 {
		return device.StateNone
	}
	switch state {
	case C.STATE_RUNNING:
		return device.StateRunning
	case C.STATE_LOCKED:
		return device.StateLocked
	case C.STATE_CHECKPOINTED:
		return device.StateCheckpointed
	default:
		return device.StateFailed // the driver's own, and any that later drivers add in between
	}
}

// RestoreThread implements [device.DriverAPI].
func (cuda) RestoreThread(pid int) (tid int, ok bool) {
	var id C.int
	ok = C.cuda_restore_thread(C.int(pid), &id) == 0
	return int(id), ok
}

// Do implements [device.DriverAPI].
func (cuda) Do(pid int, c device.DriverCall) int {
	switch p := C.int(pid); c.Function {
	case device.FunctionLock:
		return int(C.cuda_lock(p, C.uint(c.Timeout.Milliseconds())))
	case device.FunctionCheckpoint:
		return int(C.cuda_checkpoint(p))
	case device.FunctionRestore:
		return restore(p, c.Pairs)
	case device.FunctionUnlock:
		return int(C.cuda_unlock(p))
	}
	return device.InvalidValue
}

func restore(pid C.int, pairs []device.DevicePair) int {
	if len(pairs) == 0 {
		return int(C.cuda_restore(pid, nil, 0))
	}
	given := make([]C.struct_gpu_pair, len(pairs))
	for i, p := range pairs {
		before, err := device.ParseUUID(p.Old)
		if err != nil {
			return device.InvalidValue
		}
		after, err := device.ParseUUID(p.New)
		if err != nil {
			return device.InvalidValue
		}
		for j := range before {
			given[i].old.bytes[j], given[i].new.bytes[j] = C.uchar(before[j]), C.uchar(after[j])
		}
	}
	return int(C.cuda_restore(pid, &given[0], C.uint(len(given))))
}
