package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/daemon"
)

func checkContainerd(ctx context.Context, p *patient) []Diagnosis {
	p.paths = filepath.SplitList(os.Getenv("PATH"))
	ctx, client, err := p.Connect(ctx)
	if err != nil {
		return found("containerd", trouble, failure.Hint(err), "%v", err)
	}
	defer client.Close()
	version, err := client.Version(ctx)
	if err != nil {
		return found("containerd", trouble, "see containerd's log", "%v", err)
	}
	if paths := daemonPaths(p.Address); paths != nil {
		p.paths = paths
	}
	return judgeContainerd(version.Version, p.Address)
}

// Oldest versions that cryo's shim works with. containerd before 1.7 does not speak its protocol, and 1.7 is not tested.
const (
	oldestContainerd, wantedContainerd = "1.7", "2.0"
	oldestRunc                         = "1.2"
)

func judgeContainerd(version, address string) []Diagnosis {
	const hint = "use containerd 2.0 or later; on Debian 12, Docker's package containerd.io has it. cryo is tested with 2.4"
	switch plain := plainVersion(version); {
	case plain != "" && !criu.AtLeast(plain, oldestContainerd):
		return found("containerd", trouble, hint, "%s at %s is older than %s: it cannot start cryo's shim", version, address, oldestContainerd)
	case plain != "" && !criu.AtLeast(plain, wantedContainerd):
		return found("containerd", worry, hint, "%s at %s", version, address)
	}
	return found("containerd", good, "", "%s at %s", version, address)
}

// plainVersion returns the numbers at the beginning of a version such as v1.6.20~ds1; empty if there are none, as in a build without a version.
func plainVersion(version string) string {
	return regexp.MustCompile(`^\d+(\.\d+)*`).FindString(strings.TrimPrefix(version, "v"))
}

// daemonPaths is the PATH of the process behind a unix socket, where containerd looks for shims and shims for runc and
// criu; nil where it cannot be told.
func daemonPaths(address string) []string {
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), time.Second)
	if err != nil {
		return nil
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || peerErr != nil {
		return nil
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", peer.Pid))
	if err != nil {
		return nil
	}
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			return filepath.SplitList(path)
		}
	}
	return nil
}

// lookup finds a program in directories.
func lookup(program string, dirs []string) (string, error) {
	for _, dir := range dirs {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil && filepath.IsAbs(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s", program, strings.Join(dirs, ":"))
}

func checkShim(_ context.Context, p *patient) []Diagnosis {
	path, err := lookup(daemon.ShimName, p.paths)
	if err != nil {
		return found("shim", trouble, "put "+daemon.ShimName+" into a directory of containerd's PATH, such as /usr/local/bin", "%v", err)
	}
	if _, err := guard.Program(path); err != nil {
		return found("shim", trouble, failure.Hint(err), "%s: %v", path, err)
	}
	return found("shim", good, "", "%s", path)
}

func checkRunc(ctx context.Context, p *patient) []Diagnosis {
	path, err := lookup("runc", p.paths)
	if err != nil {
		return found("runc", trouble, "install runc 1.2 or later", "%v", err)
	}
	r, err := host.RuncVersion(ctx, path)
	switch {
	case err != nil:
		return found("runc", trouble, "install runc 1.2 or later", "%v", err)
	case plainVersion(r.Version) != "" && !criu.AtLeast(plainVersion(r.Version), oldestRunc):
		return found("runc", trouble, "install runc 1.2 or later; on Debian 12, Docker's package containerd.io has it", "%s at %s is older than %s", r.Version, path, oldestRunc)
	case !r.Seccomp:
		return found("runc", worry, "install a runc with seccomp", "%s at %s, built without seccomp: containers with a seccomp profile cannot be restored", r.Version, r.Path)
	}
	return found("runc", good, "", "%s at %s", r.Version, r.Path)
}

func checkCRIU(ctx context.Context, p *patient) []Diagnosis {
	path, err := p.Config.FindCRIU()
	if err != nil {
		return found("criu", trouble, failure.Hint(err), "%v", err)
	}
	version, err := host.CRIUVersion(ctx, path)
	if err != nil {
		return found("criu", trouble, criu.InstallHint(criu.Needed(kernelRelease(p.root))), "%v", err)
	}
	if !criu.AtLeast(version, criu.Minimum) {
		return found("criu", trouble, criu.InstallHint(criu.Needed(kernelRelease(p.root))), "%s at %s is older than %s", version, path, criu.Minimum)
	}
	all := found("criu", good, "", "%s at %s", version, path)
	if needed := criu.Needed(kernelRelease(p.root)); !criu.AtLeast(version, needed) {
		all = found("criu", worry, criu.InstallHint(needed), "%s at %s cannot dump network sockets on Linux %s and later: %s can", version, path, criu.SocketsKernel, criu.ForSockets)
	}
	if os.Geteuid() != 0 {
		return append(all, found("criu check", note, "", "CRIU looks at the kernel for root alone: run cryo doctor as root")...)
	}
	out, err := host.Check(ctx, path)
	if err != nil {
		return append(all, found("criu check", trouble, "use a kernel with CONFIG_CHECKPOINT_RESTORE and what else criu check names", "%s", out)...)
	}
	return append(all, found("criu check", good, "", "%s", out)...)
}

// kernelRelease returns the release of the running kernel; nothing where /proc does not tell.
func kernelRelease(root string) string {
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease")) // doctor says what is wrong with /proc
	return strings.TrimSpace(string(release))
}

// checkFeatures are those of the kernel that make things faster, or that only some containers need.
func checkFeatures(ctx context.Context, p *patient) []Diagnosis {
	if p.criu == "" || os.Geteuid() != 0 {
		return nil
	}
	var all []Diagnosis
	for _, f := range []struct{ name, feature, without string }{
		{"userfaultfd", "uffd-noncoop", "containers run only when all of their memory was read, as with cryo restore --eager"},
		{"time namespaces", "timens", "containers that have one cannot be restored"},
	} {
		_, err := host.Check(ctx, p.criu, "--feature", f.feature)
		var exit *exec.ExitError
		switch {
		case err == nil && f.feature == "uffd-noncoop" && !p.Config.Restore.Lazy:
			all = append(all, found(f.name, note, "", "in the kernel, but restore.lazy is false in the configuration: %s", f.without)...)
		case err == nil:
			all = append(all, found(f.name, good, "", "in the kernel")...)
		case errors.As(err, &exit):
			all = append(all, found(f.name, note, "", "not in the kernel: %s", f.without)...)
		default:
			all = append(all, found(f.name, note, "", "%v", err)...)
		}
	}
	return all
}
