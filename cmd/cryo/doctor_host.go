package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
)

func checkUser(context.Context, *patient) []Diagnosis {
	if os.Geteuid() != 0 {
		return found("user", trouble, "run cryo as root (sudo)", "not root: what needs rights to be found out is left out")
	}
	return found("user", good, "", "root")
}

func checkConfig(_ context.Context, p *patient) []Diagnosis {
	if p.ConfigErr != nil {
		return found("configuration", trouble, failure.Hint(p.ConfigErr), "%v", p.ConfigErr)
	}
	all := found("configuration", good, "", "root %s", p.Config.Root)
	for _, repository := range p.Config.Restore.Policy.Repositories {
		if !p.Config.Trust.Settles(repository) {
			all = append(all, found("signatures", worry, fmt.Sprintf("write under [trust.repositories] %q = [\"PUBLIC-KEY-FILE\"], and sign what is there with cryo sign; or \"unsigned\", if whoever may push there is trusted", repository),
				"[restore.policy] allows %s, and [trust] has no key for it: no container is restored from there by its image or annotation", repository)...)
		}
	}
	if p.Config.Restore.ShareMemory {
		if err := guard.SharingSupported(p.root); err != nil {
			all = append(all, found("shared memory", worry, failure.Hint(err), "[restore] has share-memory = true, and restored containers share nothing: %v", err)...)
		}
	}
	return all
}

func checkKernel(ctx context.Context, p *patient) []Diagnosis {
	facts, _, err := host.Collect(ctx, host.Options{Root: p.root, CRIU: p.criu})
	if err != nil {
		return found("kernel", trouble, "mount /proc", "%v", err)
	}
	if err := guard.ConfinementSupported(); err != nil {
		return found("kernel", trouble, "install Linux 5.12 or newer; this one can dump containers, and restores none", "%s: %v", facts.Kernel, err)
	}
	return found("kernel", good, "", "%s %s, %s", facts.Kernel, facts.Architecture, facts.CPUModel)
}

func checkCgroup(_ context.Context, p *patient) []Diagnosis {
	if host.CgroupVersion(p.root) == 2 {
		return found("cgroups", good, "", "version 2")
	}
	return found("cgroups", worry, "start the kernel with systemd.unified_cgroup_hierarchy=1; snapshots go only between hosts of one version",
		"version 1: freezing takes several attempts at times")
}

func checkNetwork(ctx context.Context, p *patient) []Diagnosis {
	if path, err := exec.LookPath("iptables-restore"); err == nil {
		return found("network lock", good, "", "%s", path)
	}
	if p.criu != "" {
		if _, err := host.Check(ctx, p.criu, "--feature", "network_lock_nftables"); err == nil {
			return found("network lock", good, "", "nftables, by CRIU's own library")
		}
		if os.Geteuid() != 0 {
			return found("network lock", note, "", "no iptables in PATH; whether CRIU has nftables it tells to root alone")
		}
	}
	return found("network lock", worry, "install iptables, or a CRIU with nftables", "neither iptables nor CRIU's nftables: containers with a network namespace of their own cannot be dumped")
}

func checkOverlay(_ context.Context, p *patient) []Diagnosis {
	known, err := os.ReadFile(filepath.Join(p.root, "proc/filesystems"))
	if err == nil && strings.Contains(string(known), "\toverlay\n") {
		return found("overlayfs", good, "", "in the kernel")
	}
	return found("overlayfs", worry, "modprobe overlay", "not loaded: files are compared instead of copied while the container stands still")
}

func checkDisk(_ context.Context, p *patient) []Diagnosis {
	dir := p.Config.Root
	var s unix.Statfs_t
	for {
		err := unix.Statfs(dir, &s)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return found("disk", trouble, "choose another root in the configuration", "%s: %v", dir, err)
		}
		dir = filepath.Dir(dir)
	}
	free := int64(s.Bavail) * s.Bsize
	const little = 4 << 30
	if free < little {
		return found("disk", worry, "make room under "+p.Config.Root+", or choose another root in the configuration", "%s free under %s", config.Size(free), p.Config.Root)
	}
	return found("disk", good, "", "%s free under %s", config.Size(free), p.Config.Root)
}
