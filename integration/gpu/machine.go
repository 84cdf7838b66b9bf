package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// machine is what results depend on.
type machine struct {
	Kernel     string            `json:"kernel"`
	System     string            `json:"system"`
	Cores      int               `json:"cores"`
	Memory     int64             `json:"memory"` // bytes, as it was at the start
	Store      string            `json:"store"`  // kind of file system that images and snapshots are on
	Driver     string            `json:"driver"`
	CUDA       int               `json:"cuda"`
	GPUs       []device.Device   `json:"gpus"`
	Versions   map[string]string `json:"versions"`
	CDI        string            `json:"cdi"` // how the specification was used
	CDIRefused []string          `json:"cdiRefused,omitempty"`
	Doctor     string            `json:"doctor"` // what cryo doctor says
	Warning    string            `json:"warning,omitempty"`
	Touched    []string          `json:"touched,omitempty"` // host memory, before the first case that needs as much

	criu string // path
}

// readMachine reads what needs no lab.
func readMachine(ctx context.Context) machine {
	m := machine{Cores: runtime.NumCPU(), Versions: map[string]string{}}
	m.Kernel = first(command(ctx, "uname", "-r").Stdout)
	release, _ := os.ReadFile("/etc/os-release") // a machine may do without
	if name := regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)`).FindSubmatch(release); name != nil {
		m.System = string(name[1])
	}
	m.Memory = meminfo("MemTotal")
	m.Versions["nvcc"] = pick(command(ctx, "nvcc", "--version").Stdout, `release ([0-9.]+)`)
	python := command(ctx, "python3", "-c", `import importlib.metadata as m
for n in ("torch", "transformers", "triton", "cupy-cuda13x", "jax", "nvidia-nccl-cu13", "nvidia-cudnn-cu13"):
    try: print(n, m.version(n))
    except m.PackageNotFoundError: pass`)
	for line := range strings.Lines(python.Stdout) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			m.Versions[name] = version
		}
	}
	return m
}

// readVersions asks the programs of the lab, and the driver.
func (m *machine) readVersions(ctx context.Context, l *lab.Lab) {
	m.Versions["cryo"] = first(command(ctx, l.Tool("cryo"), "version").Stdout)
	m.Versions["containerd"] = pick(command(ctx, l.Tool("containerd"), "--version").Stdout, `(v?[0-9]+\.[0-9]+\.\S+)`)
	m.Versions["runc"] = pick(command(ctx, l.Tool("runc"), "--version").Stdout, `version (\S+)`)
	m.criu = "criu"
	for _, path := range []string{os.Getenv("CRYO_CRIU"), "/opt/cryo/criu/bin/criu"} {
		if _, err := os.Stat(path); path != "" && err == nil {
			m.criu = path
			break
		}
	}
	if path, err := exec.LookPath(m.criu); err == nil {
		m.criu = path
	}
	m.Versions["criu"] = pick(command(ctx, m.criu, "--version").Stdout, `Version: (\S+)`)
	m.Store = first(command(ctx, "stat", "--file-system", "--format", "%T", l.Dir).Stdout)
	facts, err := device.ReadFacts(ctx, l.Tool("cryo-gpu-keeper"))
	if err != nil {
		m.Warning = err.Error()
		return
	}
	m.Driver, m.CUDA, m.GPUs = facts.Driver, facts.CUDA, facts.Devices
}

func first(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

func pick(text, pattern string) string {
	if found := regexp.MustCompile(pattern).FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return first(text)
}

// meminfo reads a value of /proc/meminfo, bytes; 0 if it is not there. Source: proc_meminfo(5).
func meminfo(name string) int64 {
	content, _ := os.ReadFile("/proc/meminfo") // it is always there
	for line := range strings.Lines(string(content)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			kilobytes, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes numbers
			return kilobytes << 10
		}
	}
	return 0
}

// facts asks the driver.
func (b *bench) facts(ctx context.Context) (f device.Facts, err error) {
	run := command(ctx, b.lab.Tool("cryo-gpu-keeper"), "facts")
	if run.Err() != nil {
		return f, run.Err()
	}
	if err := json.Unmarshal([]byte(run.Stdout), &f); err != nil {
		return f, fmt.Errorf("read the helper's facts: %w", err)
	}
	return f, nil
}

// usedBy makes sure that, by NVML, the container's first process uses that GPU and no other.
func (b *bench) usedBy(ctx context.Context, h *lab.Host, c *container, number int) error {
	pid, _, err := h.Task(ctx, c.id)
	if err != nil {
		return err
	}
	facts, err := b.facts(ctx)
	if err != nil {
		return err
	}
	var on []string
	for _, u := range facts.Uses {
		if u.PID == pid {
			on = append(on, u.UUID)
		}
	}
	if len(on) != 1 || on[0] != b.machine.GPUs[number].UUID {
		return fmt.Errorf("process %d is on %v, not on GPU %d (%s)", pid, on, number, b.machine.GPUs[number].UUID)
	}
	return nil
}

// grow makes sure that so many GiB of memory are there, and have been used. A virtual machine may begin with little and get more only as
// it is used, and cryo goes by what is there; or it may show all, and get a page when that is first touched, which takes longer than
// everything that is measured here. So it is used once, by as many threads as there are cores. What leaves nothing for others is not asked for.
func (b *bench) grow(ctx context.Context, gib int) error {
	const rest = 4 << 30
	want := int64(gib) << 30
	for range 2 {
		have := meminfo("MemAvailable")
		if have >= want && want <= b.touched {
			return nil
		}
		touch := want
		if have >= want {
			touch = min(want, have-rest)
		}
		began := time.Now()
		self, err := os.Executable()
		if err != nil {
			return err
		}
		c := exec.CommandContext(ctx, self)
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", growVariable, touch))
		r := lab.Finish(c)
		took := time.Since(began).Seconds()
		after := meminfo("MemAvailable")
		fmt.Printf("memory: %d GiB were available, %d are after %.1f s of touching %d (exit %d)\n", have>>30, after>>30, took, touch>>30, r.Code)
		if r.Code == 0 {
			b.touched = want
			b.machine.Touched = append(b.machine.Touched, fmt.Sprintf("%d GiB in %.1f s", touch>>30, took))
		}
		if after >= want {
			return nil
		}
	}
	if have := meminfo("MemAvailable"); have < want {
		fmt.Printf("memory: %d GiB are wanted, %d are available: it is tried all the same\n", gib, have>>30)
	}
	return nil
}
