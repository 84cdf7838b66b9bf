package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// machine is what figures depend on.
type machine struct {
	CPU        string   `json:"cpu"`
	Cores      int      `json:"cores"`
	Memory     int64    `json:"memory"` // bytes
	System     string   `json:"system"`
	Kernel     string   `json:"kernel"`
	HugePages  string   `json:"hugePages"`  // /sys/kernel/mm/transparent_hugepage/enabled
	FileSystem string   `json:"fileSystem"` // of images, snapshots and registry
	Cryo       string   `json:"cryo"`
	CRIU       string   `json:"criu"`
	Containerd string   `json:"containerd"`
	Runc       string   `json:"runc"`
	Load       []string `json:"load"` // /proc/loadavg at the start of each run
}

// same tells whether figures of both can be in one table.
func (m machine) same(o machine) bool {
	m.Load, o.Load = nil, nil
	return fmt.Sprint(m) == fmt.Sprint(o)
}

func readMachine(ctx context.Context, l *lab.Lab) machine {
	m := machine{Cores: runtime.NumCPU()}
	m.CPU = pick(read("/proc/cpuinfo"), `(?m)^model name\s*: (.*)$`)
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		m.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	m.System = pick(read("/etc/os-release"), `(?m)^PRETTY_NAME="?([^"\n]*)`)
	m.Kernel = read("/proc/sys/kernel/osrelease")
	m.HugePages = pick(read("/sys/kernel/mm/transparent_hugepage/enabled"), `\[(\w+)\]`)
	m.Load = []string{read("/proc/loadavg")}
	m.FileSystem = output(ctx, "stat", "--file-system", "--format", "%T", l.Dir)
	m.Cryo = output(ctx, l.Tool("cryo"), "version")
	m.CRIU = pick(output(ctx, l.CRIU(), "--version"), `Version: (\S+)`)
	m.Containerd = pick(output(ctx, l.Tool("containerd"), "--version"), `(v?[0-9]+\.[0-9]+\.\S+)`)
	m.Runc = pick(output(ctx, l.Tool("runc"), "--version"), `version (\S+)`)
	return m
}

func (m machine) text() string {
	return fmt.Sprintf("%d cores of %s, %.0f GiB, %s, Linux %s, huge pages: %s, on %s; cryo %s, containerd %s, runc %s, CRIU %s; load at the start: %s\n",
		m.Cores, m.CPU, float64(m.Memory)/(1<<30), m.System, m.Kernel, m.HugePages, m.FileSystem, m.Cryo, m.Containerd, m.Runc, m.CRIU, strings.Join(m.Load, "; "))
}

// read gives what is in a file of the system's; "" where it has none, which the report shows.
func read(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// output is the first line that a program prints; "" where it cannot be run, which the report shows.
func output(ctx context.Context, name string, args ...string) string {
	r := lab.Finish(exec.CommandContext(ctx, name, args...))
	line, _, _ := strings.Cut(strings.TrimSpace(r.Stdout), "\n")
	return line
}

func pick(text, pattern string) string {
	if found := regexp.MustCompile(pattern).FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}
