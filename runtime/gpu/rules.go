package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Rules is the table. DECISIONS.md has the evidence.
func Rules() []Rule {
	return []Rule{
		severalRule,
		sharedRule,
		peerRule,
		{"gpu-mps", "contexts are shared with a server outside of the container, which the driver does not save", mps},
		{"gpu-mig", "it was never seen that the driver restores instances of a divided GPU", mig},
		{"gpu-fabric", "memory that other machines have imported is not theirs any more afterwards", fabric},
		{"gpu-rdma", "network adapters that were given device memory go on reading and writing it, and CRIU cannot dump their connections", rdma},
		hostMemoryRule,
	}
}

var severalRule = Rule{"gpu-several", "a process that has imported another's device memory is lost: the driver saves it and cannot restore it", several}

var sharedRule = Rule{"gpu-shared", "once the driver has restored a program, its kernels do not give way to those of other programs; kernels of two such programs that wait for each other on several GPUs stand until, after some seconds, the driver ends both", shared}

var peerRule = Rule{"gpu-peer", "a process that reads one GPU's memory from another is lost: the driver saves it and may not be able to restore it", peer}

var hostMemoryRule = Rule{"gpu-host-memory", "device memory becomes memory of the processes, and the kernel ends those it has none for", hostMemory}

// ncclSettings make NCCL share no device memory between processes. Source: NCCL, environment variables; measured with 2.28.
var ncclSettings = []struct{ name, value string }{{"NCCL_P2P_DISABLE", "1"}, {"NCCL_CUMEM_ENABLE", "0"}, {"NCCL_CUMEM_HOST_ENABLE", "0"}}

// several: imported memory leaves no trace outside of the process: not in its mappings, its descriptors or what NVML tells. But it
// takes a second process to import from, and a context to import into. Processes that use NCCL in a way that shares nothing are the one case that can be told.
func several(s examination) ([]Finding, error) {
	near, err := s.neighbours()
	if err != nil {
		return nil, err
	}
	holders := s.holders()
	all := append(slices.Clone(near), names(holders)...)
	if len(all) < 2 || len(near) == 0 && !slices.ContainsFunc(holders, func(p cudaProcess) bool { return !p.shown() }) {
		return nil, nil
	}
	nccl, harmless := false, len(near) == 0
	var unshown []string
	for _, p := range holders {
		unshown = append(unshown, p.unshown())
		uses, set, err := s.nccl(p.PID)
		if err != nil {
			return nil, err
		}
		nccl, harmless = nccl || uses, harmless && uses && set
	}
	if harmless {
		return nil, nil
	}
	m := Finding{
		Problem: fmt.Sprintf("%s use GPUs, and may share device memory, which the driver cannot restore%s", list(all), strings.Join(unshown, "")),
		Hint:    "if they share none (no CUDA IPC, no NCCL with its defaults), override it",
	}
	if nccl {
		var settings []string
		for _, v := range ncclSettings {
			settings = append(settings, v.name+"="+v.value)
		}
		m.Hint = "start them with " + strings.Join(settings, " ") + ", with which NCCL shares none; " + m.Hint
	}
	return []Finding{m}, nil
}

// shown reports whether all that a process shares is known, and goes with its memory.
func (p cudaProcess) shown() bool { return p.shared != nil && p.shared.Unknown == "" }

// unshown returns what of its sharing is not known, as the end of a sentence; empty: its library has no books, or all is in them.
func (p cudaProcess) unshown() string {
	if p.shared == nil || p.shared.Unknown == "" {
		return ""
	}
	return fmt.Sprintf("; process %d: %s", p.PID, p.shared.Unknown)
}

// nccl reports whether a process has loaded NCCL, and was started with the settings that make it share nothing.
func (s examination) nccl(pid int) (uses, set bool, err error) {
	uses, err = s.host.maps(pid, func(path string) bool { return strings.Contains(path, "/libnccl.so") })
	if err != nil || !uses {
		return false, false, ended(err)
	}
	environment, err := s.host.environment(pid)
	if err != nil {
		return false, false, ended(err)
	}
	return true, !slices.ContainsFunc(ncclSettings, func(v struct{ name, value string }) bool { return environment[v.name] != v.value }), nil
}

// neighbours are processes outside of the container that use GPUs and share its IPC namespace, as those of other
// containers of a pod do.
func (s examination) neighbours() (names []string, err error) {
	if len(s.processes) == 0 {
		return nil, nil
	}
	own, err := os.Readlink(s.host.path(s.processes[0].PID, "ns/ipc"))
	if err != nil {
		return nil, ended(err)
	}
	return s.outside(func(u device.DeviceUse, _ Process) bool {
		other, err := os.Readlink(s.host.path(u.PID, "ns/ipc"))
		return err == nil && other == own
	}), nil
}

// outside names the processes outside of the container that use GPUs, of those for which is holds.
func (s examination) outside(is func(device.DeviceUse, Process) bool) (names []string) {
	seen := map[int]bool{}
	for _, p := range s.processes {
		seen[p.PID] = true
	}
	for _, u := range s.facts.Uses {
		if seen[u.PID] {
			continue
		}
		if p, err := s.host.process(u.PID); err == nil && is(u, p) { // else it has ended
			seen[u.PID] = true
			names = append(names, p.String()+" outside of the container")
		}
	}
	return names
}

// ended passes over the end of a process that is being looked at: nothing of it stands in the way then.
func ended(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// keeperCommand is the command of the process that takes device memory, in this container's checkpoint or in another's. It runs no kernels that wait for others.
const keeperCommand = "cryo-gpu-keeper"

// shared: ranks wait for each other in kernels, on several GPUs at once. On GPUs of their own they come back.
func shared(s examination) ([]Finding, error) {
	var devices, sharing []string
	imports := 0
	for _, p := range s.processes {
		if p.shared == nil || p.shared.Exports+p.shared.Imports == 0 {
			continue
		}
		imports += p.shared.Imports
		sharing = append(sharing, p.String())
		for _, uuid := range p.uuids() {
			if !slices.Contains(devices, uuid) {
				devices = append(devices, uuid)
			}
		}
	}
	if imports == 0 || len(devices) < 2 {
		return nil, nil
	}
	others := s.outside(func(u device.DeviceUse, p Process) bool {
		return slices.Contains(devices, u.UUID) && p.Command != keeperCommand
	})
	if len(others) == 0 {
		return nil, nil
	}
	return []Finding{{
		Problem: fmt.Sprintf("%s share device memory of %s, which other programs use, too: %s", list(sharing), s.label(devices), list(others)),
		Hint:    "let the container have its GPUs to itself; override it if none of the others shares memory of several GPUs",
	}}, nil
}

// peer: access of one device to another's memory cannot be seen from outside, contexts on several devices can.
func peer(s examination) (found []Finding, err error) {
	for _, p := range s.processes {
		var devices []string
		for _, u := range p.uses {
			if !slices.Contains(devices, u.UUID) {
				devices = append(devices, u.UUID)
			}
		}
		if len(devices) < 2 || p.shown() {
			continue
		}
		found = append(found, Finding{
			Problem: fmt.Sprintf("%s uses %d GPUs (%s), and may have made the memory of one accessible to another%s", p, len(devices), s.label(devices), p.unshown()),
			Hint:    "use one process for each GPU, or, if it does not copy between them, override it",
		})
	}
	return found, nil
}

func mps(s examination) ([]Finding, error) {
	if !s.facts.MPS {
		return nil, nil
	}
	return []Finding{{"", "the Multi-Process Service (MPS) runs on this host", "end it: echo quit | nvidia-cuda-mps-control"}}, nil
}

func mig(s examination) (found []Finding, err error) {
	for _, d := range s.devices {
		if d.MIG {
			found = append(found, Finding{"", fmt.Sprintf("GPU %d (%s) is divided into instances (MIG)", d.Index, d.UUID), "use a GPU that is not"})
		}
	}
	return found, nil
}

// fabric: memory is shared between machines through channels of the IMEX daemon. Source: NVIDIA IMEX service guide.
func fabric(s examination) ([]Finding, error) {
	return s.opened("/dev/nvidia-caps-imex-channels/", "shares device memory with other machines (it has opened an IMEX channel)", "start it without IMEX channels")
}

// rdma: a process whose device memory an adapter reads and writes has registered it there, through a device node. Source: rdma-core,
// Documentation/udev.md; NVIDIA, GPUDirect RDMA.
func rdma(s examination) ([]Finding, error) {
	return s.opened("/dev/infiniband/", "uses RDMA (it has opened a device in /dev/infiniband)",
		"have it close its RDMA connections first, or start it without them; NCCL uses none with NCCL_IB_DISABLE=1")
}

// opened finds processes that have opened a file whose path begins so, and says of each what it does, and what to do about it.
func (s examination) opened(prefix, does, hint string) (found []Finding, err error) {
	for _, p := range s.processes {
		opened, err := s.host.opened(p.PID, prefix)
		if ended(err) != nil {
			return nil, err
		}
		if opened {
			found = append(found, Finding{"", fmt.Sprintf("%s %s", p, does), hint})
		}
	}
	return found, nil
}

// holders are the processes that have contexts, as NVML lists them. One that has only initialised CUDA, as a compile worker of PyTorch that waits, has none. Where NVML lists none at all, all count.
func (s examination) holders() []cudaProcess {
	holders := slices.DeleteFunc(slices.Clone(s.processes), cudaProcess.idle)
	if len(holders) == 0 {
		return s.processes
	}
	return holders
}

func names(all []cudaProcess) (names []string) {
	for _, p := range all {
		names = append(names, p.String())
	}
	return names
}

// label names devices for people: numbers where they are known.
func (s examination) label(uuids []string) string { return label(s.facts.Devices, uuids) }

// list puts names together, not too many of them.
func list(names []string) string {
	const most = 8
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
