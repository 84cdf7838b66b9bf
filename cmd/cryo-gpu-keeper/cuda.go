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

	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// driver is NVIDIA's, through libcuda for processes and NVML for facts. It makes no CUDA context: the keeper takes no
// device memory.
type driver struct{ cuda int }

var _ keeper.Driver = driver{}

// openDriver loads and initialises libcuda.
func openDriver() (keeper.Driver, error) {
	d, err := load()
	if err != nil {
		return nil, err
	}
	return d, nil
}

func load() (driver, error) {
	var why *C.char
	if missing := C.cuda_open(&why); missing != nil {
		name, message := C.GoString(missing), C.GoString(why)
		if name == "libcuda.so.1" {
			return driver{}, &keeper.DriverError{Fault: keeper.Absent, Call: name, Message: message}
		}
		return driver{}, old(name)
	}
	var version C.int
	if code := int(C.cuda_version(&version)); code != 0 {
		return driver{}, refused("cuDriverGetVersion", code)
	}
	if code := int(C.cuda_init()); code != 0 {
		return driver{}, refused("cuInit", code)
	}
	return driver{cuda: int(version)}, nil
}

// old is the error of a driver that lacks a function.
func old(function string) error {
	return &keeper.DriverError{Fault: keeper.Old, Call: function, Message: "it has no " + function}
}

func refused(call string, code int) error {
	name := errorName(code)
	return &keeper.DriverError{Fault: keeper.Refused, Call: call, Code: code, Name: name, Message: fmt.Sprintf("%s: %s (%d)", call, name, code)}
}

func errorName(code int) string {
	if name := C.GoString(C.cuda_error_name(C.int(code))); name != "" {
		return name
	}
	return "an error without a name"
}

// Name implements [keeper.Driver].
func (driver) Name(code int) string { return errorName(code) }

// State implements [keeper.Driver]. The driver gives an error for a process that does not use it.
func (driver) State(pid int) keeper.State {
	var state C.int
	if C.cuda_state(C.int(pid), &state) != 0 {
		return keeper.None
	}
	switch state {
	case C.STATE_RUNNING:
		return keeper.Running
	case C.STATE_LOCKED:
		return keeper.Locked
	case C.STATE_CHECKPOINTED:
		return keeper.Checkpointed
	default:
		return keeper.Failed // the driver's own, and any that later drivers add in between
	}
}

// Do implements [keeper.Driver].
func (driver) Do(pid int, c keeper.Call) int {
	switch p := C.int(pid); c.Function {
	case keeper.Lock:
		return int(C.cuda_lock(p, C.uint(c.Timeout.Milliseconds())))
	case keeper.Checkpoint:
		return int(C.cuda_checkpoint(p))
	case keeper.Restore:
		return restore(p, c.Pairs)
	case keeper.Unlock:
		return int(C.cuda_unlock(p))
	}
	return keeper.InvalidValue
}

func restore(pid C.int, pairs []keeper.Pair) int {
	if len(pairs) == 0 {
		return int(C.cuda_restore(pid, nil, 0))
	}
	given := make([]C.struct_gpu_pair, len(pairs))
	for i, p := range pairs {
		before, err := keeper.ParseUUID(p.Old)
		if err != nil {
			return keeper.InvalidValue
		}
		after, err := keeper.ParseUUID(p.New)
		if err != nil {
			return keeper.InvalidValue
		}
		for j := range before {
			given[i].old.bytes[j], given[i].new.bytes[j] = C.uchar(before[j]), C.uchar(after[j])
		}
	}
	return int(C.cuda_restore(pid, &given[0], C.uint(len(given))))
}
