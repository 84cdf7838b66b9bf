//go:build cgo

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Facts implements [device.DriverAPI].
func (d cuda) Facts() (f device.Facts, err error) {
	if r := nvml.Init(); r == nvml.ERROR_LIBRARY_NOT_FOUND {
		return f, &device.UnusableError{Fault: device.FaultAbsent, Call: "libnvidia-ml.so.1", Message: "libnvidia-ml.so.1 cannot be loaded"}
	} else if r != nvml.SUCCESS {
		return f, nvmlError("nvmlInit", r)
	}
	defer func() {
		if r := nvml.Shutdown(); r != nvml.SUCCESS {
			err = errors.Join(err, nvmlError("nvmlShutdown", r))
		}
	}()
	version, r := nvml.SystemGetDriverVersion()
	if r != nvml.SUCCESS {
		return f, nvmlError("nvmlSystemGetDriverVersion", r)
	}
	count, r := nvml.DeviceGetCount()
	if r != nvml.SUCCESS {
		return f, nvmlError("nvmlDeviceGetCount", r)
	}
	f = device.Facts{Driver: version, CUDA: d.version, Devices: []device.Device{}, Uses: []device.DeviceUse{}, MPS: mpsRuns("/proc")}
	for i := range count {
		handle, r := nvml.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			return f, nvmlError("nvmlDeviceGetHandleByIndex", r)
		}
		device, err := readDevice(i, handle)
		if err != nil {
			return f, err
		}
		f.Devices = append(f.Devices, device)
		uses, err := readUses(device, handle)
		if err != nil {
			return f, err
		}
		f.Uses = append(f.Uses, uses...)
	}
	return f, nil
}

// nvmlError makes a failed call of NVML a [device.UnusableError].
func nvmlError(call string, r nvml.Return) error {
	return &device.UnusableError{Fault: device.FaultRefused, Call: call, Code: int(r), Message: fmt.Sprintf("%s: %s (%d)", call, nvml.ErrorString(r), int(r))}
}

func readDevice(index int, handle nvml.Device) (device.Device, error) {
	d := device.Device{Index: index}
	var major, minor int
	var memory nvml.Memory
	var pci nvml.PciInfo
	for _, fact := range []struct {
		call string
		read func() nvml.Return
	}{
		{"nvmlDeviceGetUUID", func() (r nvml.Return) { d.UUID, r = handle.GetUUID(); return }},
		{"nvmlDeviceGetMinorNumber", func() (r nvml.Return) { d.Minor, r = handle.GetMinorNumber(); return }},
		{"nvmlDeviceGetName", func() (r nvml.Return) { d.Name, r = handle.GetName(); return }},
		{"nvmlDeviceGetCudaComputeCapability", func() (r nvml.Return) { major, minor, r = handle.GetCudaComputeCapability(); return }},
		{"nvmlDeviceGetMemoryInfo", func() (r nvml.Return) { memory, r = handle.GetMemoryInfo(); return }},
		{"nvmlDeviceGetPciInfo", func() (r nvml.Return) { pci, r = handle.GetPciInfo(); return }},
	} {
		if r := fact.read(); r != nvml.SUCCESS {
			return d, nvmlError(fact.call, r)
		}
	}
	d.Architecture = fmt.Sprintf("%d.%d", major, minor)
	d.Memory, d.Free = bytesOf(memory.Total), bytesOf(memory.Free)
	d.PCI = text(pci.BusId[:])
	mode, _, r := handle.GetMigMode()
	if r != nvml.SUCCESS && r != nvml.ERROR_NOT_SUPPORTED { // most devices cannot be divided
		return d, nvmlError("nvmlDeviceGetMigMode", r)
	}
	d.MIG = r == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	return d, nil
}

// readUses lists the processes that hold compute contexts, also those that do so through MPS.
func readUses(d device.Device, handle nvml.Device) ([]device.DeviceUse, error) {
	var uses []device.DeviceUse
	seen := map[uint32]bool{}
	for call, read := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
		"nvmlDeviceGetComputeRunningProcesses":    handle.GetComputeRunningProcesses,
		"nvmlDeviceGetMPSComputeRunningProcesses": handle.GetMPSComputeRunningProcesses,
	} {
		processes, r := read()
		if r == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if r != nvml.SUCCESS {
			return nil, nvmlError(call, r)
		}
		for _, p := range processes {
			if !seen[p.Pid] {
				seen[p.Pid] = true
				uses = append(uses, device.DeviceUse{PID: int(p.Pid), UUID: d.UUID, Memory: bytesOf(p.UsedGpuMemory)})
			}
		}
	}
	return uses, nil
}

// bytesOf is 0 for what NVML does not know: NVML_VALUE_NOT_AVAILABLE, all ones.
func bytesOf(n uint64) int64 {
	if n > math.MaxInt64 {
		return 0
	}
	return int64(n)
}

// text is that of an array of C characters.
func text(chars []int8) string {
	var b []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

// mpsRuns looks for nvidia-cuda-mps-control and nvidia-cuda-mps-server; the kernel cuts names after 15 characters.
func mpsRuns(proc string) bool {
	names, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(comm)) == "nvidia-cuda-mps" {
			return true
		}
	}
	return false
}
