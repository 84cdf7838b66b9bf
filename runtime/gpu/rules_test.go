package gpu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// TestRules: each case as it looked on hardware, from outside.
func TestRules(t *testing.T) {
	harmless := "NCCL_P2P_DISABLE=1\x00NCCL_CUMEM_ENABLE=0\x00NCCL_CUMEM_HOST_ENABLE=0\x00"
	for _, test := range []struct {
		name string
		pids []int
		set  func(*world)
		want string // rules that refuse
		says string
	}{
		{name: "one process", pids: []int{101}},
		{name: "two processes", pids: []int{101, 102}, want: "gpu-several", says: "process 101 (app), process 102 (app) use GPUs"},
		{name: "two, of which one has no context", pids: []int{101, 102}, set: func(w *world) {
			w.facts.Uses = slices.DeleteFunc(w.facts.Uses, func(u device.DeviceUse) bool { return u.PID == 102 })
		}},
		{name: "two, where NVML lists none", pids: []int{101, 102}, set: func(w *world) { w.facts.Uses = nil }, want: "gpu-several"},
		{name: "two with NCCL's defaults", pids: []int{101, 102}, set: func(w *world) {
			w.write("proc/101/maps", ncclMaps)
			w.write("proc/102/maps", ncclMaps)
		}, want: "gpu-several", says: "NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0"},
		{name: "two with NCCL that shares nothing", pids: []int{101, 102}, set: func(w *world) {
			for _, pid := range []int{101, 102} {
				w.write(fmt.Sprintf("proc/%d/maps", pid), ncclMaps)
				w.write(fmt.Sprintf("proc/%d/environ", pid), "A=B\x00"+harmless)
			}
		}},
		{name: "one of the settings missing in one of them", pids: []int{101, 102}, set: func(w *world) {
			for _, pid := range []int{101, 102} {
				w.write(fmt.Sprintf("proc/%d/maps", pid), ncclMaps)
				w.write(fmt.Sprintf("proc/%d/environ", pid), harmless)
			}
			w.write("proc/102/environ", "NCCL_P2P_DISABLE=1\x00NCCL_CUMEM_ENABLE=0\x00")
		}, want: "gpu-several"},
		{name: "the settings without NCCL", pids: []int{101, 102}, set: func(w *world) {
			w.write("proc/101/environ", harmless)
			w.write("proc/102/environ", harmless)
		}, want: "gpu-several"},
		{name: "a setting given twice, the first counts", pids: []int{101, 102}, set: func(w *world) {
			for _, pid := range []int{101, 102} {
				w.write(fmt.Sprintf("proc/%d/maps", pid), ncclMaps)
				w.write(fmt.Sprintf("proc/%d/environ", pid), "NCCL_P2P_DISABLE=0\x00"+harmless)
			}
		}, want: "gpu-several"},
		{name: "a neighbour in the pod", pids: []int{101}, set: func(w *world) {
			w.process(201)
			w.facts.Uses = append(w.facts.Uses, device.DeviceUse{PID: 201, UUID: uuidA, Memory: 1})
		}, want: "gpu-several", says: "process 201 (app) outside of the container"},
		{name: "a stranger on the same GPU", pids: []int{101}, set: func(w *world) {
			w.stranger(uuidA, "other")
		}},
		{name: "two GPUs in one process", pids: []int{101}, set: func(w *world) {
			w.facts.Uses = append(w.facts.Uses, device.DeviceUse{PID: 101, UUID: uuidB, Memory: 1})
		}, want: "gpu-peer", says: "process 101 (app) uses 2 GPUs (GPU 0, GPU 1)"},
		{name: "ranks on two GPUs", pids: []int{101, 102}, set: ranks},
		{name: "ranks on two GPUs, and a stranger on one", pids: []int{101, 102}, set: func(w *world) {
			ranks(w)
			w.stranger(uuidB, "other")
		}, want: "gpu-shared", says: "which other programs use, too: process 201 (other) outside of the container"},
		{name: "ranks on two GPUs, and another's keeper on one", pids: []int{101, 102}, set: func(w *world) {
			ranks(w)
			w.stranger(uuidB, keeperCommand)
		}},
		{name: "ranks on one GPU, and a stranger", pids: []int{101, 102}, set: func(w *world) {
			w.books = library.Books{Exports: 1, Imports: 1}
			w.stranger(uuidA, "other")
		}},
		{name: "two GPUs in one process, with access between them", pids: []int{101}, set: func(w *world) {
			w.facts.Uses = append(w.facts.Uses, device.DeviceUse{PID: 101, UUID: uuidB, Memory: 1})
			w.books = library.Books{Peers: 2}
		}},
		{name: "two GPUs in one process, with access between them and pools", pids: []int{101}, set: func(w *world) {
			w.facts.Uses = append(w.facts.Uses, device.DeviceUse{PID: 101, UUID: uuidB, Memory: 1})
			w.books = library.Books{Peers: 2, Unknown: "it has memory pools"}
		}, want: "gpu-peer", says: "it has memory pools"},
		{name: "MPS", pids: []int{101}, set: func(w *world) { w.facts.MPS = true }, want: "gpu-mps"},
		{name: "MIG", pids: []int{101}, set: func(w *world) { w.facts.Devices[0].MIG = true }, want: "gpu-mig"},
		{name: "MIG on another GPU", pids: []int{101}, set: func(w *world) { w.facts.Devices[1].MIG = true }},
		{name: "IMEX", pids: []int{101}, set: func(w *world) { w.link("proc/101/fd/9", "/dev/nvidia-caps-imex-channels/channel0") }, want: "gpu-fabric"},
		{name: "RDMA", pids: []int{101}, set: func(w *world) { w.link("proc/101/fd/9", "/dev/infiniband/uverbs0") }, want: "gpu-rdma", says: "NCCL_IB_DISABLE=1"},
		{name: "not enough memory", pids: []int{101}, set: func(w *world) { w.write("proc/meminfo", "MemAvailable: 1048576 kB\n") }, want: "gpu-host-memory", says: "1152 MiB of this host's memory"},
		{name: "all at once", pids: []int{101, 102}, set: func(w *world) { w.facts.MPS = true }, want: "gpu-several gpu-mps"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.pids...)
			if test.set != nil {
				test.set(w)
			}
			s := subjectOf(t, w, test.pids)
			findings, forced, err := preflight(s, Rules(), nil)
			if err != nil || len(forced) > 0 {
				t.Fatal(err, forced)
			}
			var rules []string
			for _, f := range findings {
				if !slices.Contains(rules, f.Rule) {
					rules = append(rules, f.Rule)
				}
			}
			if got := strings.Join(rules, " "); got != test.want {
				t.Errorf("refused by %q, want %q", got, test.want)
			}
			if len(findings) == 0 {
				return
			}
			refused := refusedToSave(findings)
			if text := refused.Error() + failure.Hint(refused); !strings.Contains(text, test.says) {
				t.Errorf("%s does not say %s", text, test.says)
			}
			if left, forced, err := preflight(s, Rules(), rules); len(left) > 0 || !slices.Equal(forced, rules) || err != nil {
				t.Errorf("forced: left %v, %v, %v", left, forced, err)
			}
			if left, _, _ := preflight(s, Rules(), []string{"all"}); len(left) > 0 {
				t.Errorf("all forced: left %v", left)
			}
		})
	}
}

// ranks are processes with a GPU each that share memory, which their libraries know.
func ranks(w *world) {
	for i, u := range w.facts.Uses {
		if u.PID == 102 {
			w.facts.Uses[i].UUID = uuidB
		}
	}
	w.books = library.Books{Exports: 1, Imports: 1}
}

// stranger starts a process with an IPC namespace of its own on a device.
func (w *world) stranger(uuid, command string) {
	w.link("proc/201/ns/ipc", "ipc:[2]")
	w.write("proc/201/comm", command+"\n")
	w.write("proc/201/status", "NSpid:\t201\n")
	w.facts.Uses = append(w.facts.Uses, device.DeviceUse{PID: 201, UUID: uuid, Memory: 1})
}

func subjectOf(t *testing.T, w *world, pids []int) examination {
	t.Helper()
	s := examination{facts: w.facts, devices: w.facts.Devices[:1], host: proc{w.root}}
	for _, pid := range pids {
		p, err := s.host.process(pid)
		if err != nil {
			t.Fatal(err)
		}
		c := cudaProcess{Process: p}
		if w.books != (library.Books{}) {
			c.shared = &w.books
		}
		for _, u := range w.facts.Uses {
			if u.PID == pid {
				c.uses = append(c.uses, u)
			}
		}
		s.processes = append(s.processes, c)
	}
	return s
}

// TestRulesOfTheEnded: that a process ends while it is looked at stands in nobody's way.
func TestRulesOfTheEnded(t *testing.T) {
	w := newWorld(t, 101)
	s := subjectOf(t, w, []int{101})
	w.end(101)
	if findings, _, err := preflight(s, Rules(), nil); err != nil || len(findings) > 0 {
		t.Errorf("got %v, %v", findings, err)
	}
}
