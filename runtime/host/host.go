package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/procfs"
)

// Facts are what a snapshot records of its host and what a restore compares with it. Fields are those of image.Host,
// so that one converts into the other.
type Facts struct {
	OS            string   // as GOOS
	Architecture  string   // as GOARCH
	Kernel        string   // release, uname -r
	PageSize      int      // bytes
	CPUModel      string   // for people
	CPUFeatures   []string // flags of /proc/cpuinfo, sorted
	XSaveSize     uint32   // bytes, CPUID leaf 0xD; 0 where there is none
	CgroupVersion int      // 1 (also hybrid) or 2
	CRIU          string   // version; empty: not there, or does not run
	Runc          string   // version; empty: not there, or does not run
	LSM           string   // apparmor, selinux or empty
	Features      []string // those of Options.Features that the host has
}

// Options say where to look. The zero value is this host, with criu and runc of PATH.
type Options struct {
	Root string // of /proc and /sys; empty: /
	CRIU string // program; empty: criu
	Runc string // program; empty: runc
	// Features are CRIU's names of kernel features to ask for, see criu check --feature. Other names are not passed on.
	Features []string
}

func (o Options) root() string {
	if o.Root == "" {
		return "/"
	}
	return o.Root
}

// Collect returns the facts of the host, and what runc says of itself. Programs that are missing leave their fields empty; an error
// means that /proc cannot be read or that ctx ended. Programs run side by side: they take most of the time.
func Collect(ctx context.Context, o Options) (Facts, Runc, error) {
	root := o.root()
	kernel, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return Facts{}, Runc{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	model, flags, err := cpu(root)
	if err != nil {
		return Facts{}, Runc{}, err
	}
	f := Facts{
		OS:            runtime.GOOS,
		Architecture:  runtime.GOARCH,
		Kernel:        strings.TrimSpace(string(kernel)),
		PageSize:      os.Getpagesize(),
		CPUModel:      model,
		CPUFeatures:   flags,
		XSaveSize:     xsaveSize(),
		CgroupVersion: CgroupVersion(root),
		LSM:           lsm(root),
	}
	var runc Runc
	var programs sync.WaitGroup
	programs.Go(func() { runc, _ = RuncVersion(ctx, o.Runc) })
	programs.Go(func() { f.CRIU, _ = CRIUVersion(ctx, o.CRIU) })
	programs.Go(func() { f.Features = Features(ctx, o.CRIU, o.Features) })
	programs.Wait()
	f.Runc = runc.Version
	if f.CRIU == "" {
		f.Features = nil
	}
	if err := ctx.Err(); err != nil {
		return Facts{}, Runc{}, fmt.Errorf("look over the host: %w", err)
	}
	return f, runc, nil
}

// CgroupVersion is 2 where /sys/fs/cgroup is the unified hierarchy, else 1; hybrid counts as 1 since controllers are
// there. Source: cgroups(7), runc's IsCgroup2UnifiedMode.
func CgroupVersion(root string) int {
	if _, err := os.Stat(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")); err == nil {
		return 2
	}
	return 1
}

// lsm names the major security module that labels processes.
func lsm(root string) string {
	if _, err := os.Stat(filepath.Join(root, "sys/fs/selinux/enforce")); err == nil {
		return "selinux"
	}
	enabled, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	if err == nil && strings.HasPrefix(string(enabled), "Y") {
		return "apparmor"
	}
	return ""
}

// AvailableMemory is what the kernel can give without swapping or ending any process, in bytes. root is of /proc. Source: proc_meminfo(5).
func AvailableMemory(root string) (int64, error) {
	proc, err := procfs.NewFS(filepath.Join(root, "proc"))
	if err != nil {
		return 0, fmt.Errorf("look at available memory: %w", err)
	}
	m, err := proc.Meminfo()
	if err != nil {
		return 0, fmt.Errorf("look at available memory: %w", err)
	}
	if m.MemAvailableBytes == nil {
		return 0, fmt.Errorf("look at available memory: no MemAvailable: %w", os.ErrNotExist)
	}
	return int64(*m.MemAvailableBytes), nil
}
