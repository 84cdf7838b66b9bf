package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/criu"
)

// transport is the descriptor of the socket that runc gives CRIU. Source: runc, libcontainer/criu_linux.go, criuSwrk.
const transport = 3

// ConfineMain is criu as runc calls it. It becomes CRIU, and so gives an exit status only where it cannot.
func ConfineMain(args []string) int {
	// The mount namespace is the thread's, and so is what it becomes.
	runtime.LockOSThread()
	err := confine(args)
	if err == nil {
		err = BecomeProgram(args)
	}
	fmt.Fprintf(os.Stderr, "Error (%s): %v\n", CRIUName, err)
	answer(err)
	return 1
}

// answer says to runc that nothing was restored. CRIU's log has nothing of it.
func answer(err error) {
	if data, err := (&rpc.CriuResp{Type: new(rpc.CriuReqType_RESTORE), Success: new(false), CrErrmsg: new(err.Error())}).MarshalVT(); err == nil {
		_ = unix.Send(transport, data, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
}

// confine confines this process where it is to become CRIU for a restore, and does nothing else.
func confine(args []string) error {
	if !slices.Equal(args[1:], []string{"swrk", fmt.Sprint(transport)}) {
		return nil
	}
	request, err := receive(unix.MSG_PEEK)
	if err != nil || request.GetType() != rpc.CriuReqType_RESTORE {
		return err
	}
	bundle := filepath.Dir(request.GetOpts().GetConfigFile())
	if err := shareAsDecided(bundle); err != nil {
		return err
	}
	if err := os.Setenv(NodesVariable, filepath.Join(bundle, nodesSocket)); err != nil || !confines {
		return err
	}
	if _, err := receive(0); err != nil {
		return err
	}
	return restore(request)
}

// receive reads runc's request.
func receive(flags int) (*rpc.CriuReq, error) {
	// The length of what is there, as CRIU asks for it.
	n, _, err := unix.Recvfrom(transport, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	data := make([]byte, n)
	if err == nil {
		n, _, err = unix.Recvfrom(transport, data, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("receive runc's request: %w", err)
	}
	var request rpc.CriuReq
	if err := request.UnmarshalVT(data[:n]); err != nil {
		return nil, fmt.Errorf("read runc's request: %w", err)
	}
	return &request, nil
}

// restore makes ready for the restore that runc has asked for: this process's mount namespace, the request in the socket that takes the place of runc's, and
// whoever passes on what is said.
func restore(request *rpc.CriuReq) (err error) {
	o := request.GetOpts()
	config := o.GetConfigFile()
	if config == "" || o.GetRoot() == "" {
		return fmt.Errorf("restore: runc's request names no configuration or no root: config %q, root %q", config, o.GetRoot())
	}
	shim, err := dial(filepath.Dir(config))
	if err != nil {
		return err
	}
	defer shim.Close()
	runc, err := unix.GetsockoptUcred(transport, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("find runc: %w", err)
	}
	images, err := directoryOf(int(runc.Pid), o.GetImagesDirFd())
	if err != nil {
		return err
	}
	work := images
	if o.WorkDirFd != nil {
		if work, err = directoryOf(int(runc.Pid), o.GetWorkDirFd()); err != nil {
			return err
		}
	}
	log, err := unix.Open(work, unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // where it can be written to, whatever comes
	if err != nil {
		return fmt.Errorf("open CRIU's work directory: %w", err)
	}
	defer func() {
		if err != nil {
			complain(log, err)
		}
		_ = unix.Close(log)
	}()
	spec, err := specified(filepath.Dir(config))
	if err != nil {
		return err
	}
	readonly := map[string]bool{}
	for _, m := range spec.Mounts {
		readonly[filepath.Clean(m.Destination)] = trust.IsReadonlyMount(m.Options)
	}
	if err := criu.CheckWrites(images, func(key string) bool { return readonly[filepath.Clean(key)] }); err != nil {
		return fmt.Errorf("confine CRIU: %w", err)
	}
	if err := joinKeyring(filepath.Dir(config), slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })); err != nil {
		return fmt.Errorf("confine CRIU: %w", err)
	}
	var sources []source
	paths := map[string]string{criu.RootKey: o.GetRoot()}
	for _, m := range o.GetExtMnt() {
		sources = append(sources, source{path: m.Val, readonly: readonly[filepath.Clean(m.GetKey())]})
		paths[m.GetKey()] = m.GetVal()
	}
	propagates, err := propagation(paths)
	if err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if IsPrivateMount(m.Options) {
			propagates[filepath.Clean(m.Destination)] = false
		}
	}
	changed, err := criu.SeparateMasters(images, propagates)
	if err != nil {
		return err
	}
	has := map[specs.LinuxNamespaceType]bool{}
	for _, n := range spec.Linux.Namespaces {
		has[n.Type] = true
	}
	opened, err := enter(places{root: o.Root, sources: sources, work: work, images: images, changed: changed, config: config, has: has})
	if err != nil {
		return fmt.Errorf("confine CRIU: %w", err)
	}
	if err := bound(spec.Process.Capabilities); err != nil {
		return fmt.Errorf("confine CRIU: %w", err)
	}
	o.ImagesDirFd, o.WorkDirFd = new(int32(opened.images)), new(int32(opened.work))
	o.ConfigFile = new(fmt.Sprintf("/proc/self/fd/%d", opened.config))
	data, err := request.MarshalVT()
	if err != nil {
		return fmt.Errorf("write CRIU's request: %w", err)
	}
	// CRIU opens descriptors of the process that has made its socket: of itself.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make CRIU's socket: %w", err)
	}
	if err := unix.Send(pair[0], data, 0); err != nil {
		return fmt.Errorf("write CRIU's request: %w", err)
	}
	if err := shim.SendBytes([]byte{0}, transport, pair[0]); err != nil {
		return fmt.Errorf("give the shim CRIU's socket: %w", err)
	}
	if err := unix.Dup3(pair[1], transport, 0); err != nil {
		return fmt.Errorf("take CRIU's socket: %w", err)
	}
	return nil
}

// complain writes an error where CRIU would have, in its form: runc reports no more than that CRIU failed.
func complain(dir int, err error) {
	fd, openErr := unix.Openat(dir, "restore.log", unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
	if openErr != nil {
		return
	}
	_, _ = unix.Write(fd, fmt.Appendf(nil, "Error (%s): %v\n", "confinement", err))
	_ = unix.Close(fd)
}

// directoryOf returns the path of a directory that another process has open.
func directoryOf(pid int, fd int32) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	if err != nil || !filepath.IsAbs(path) {
		return "", fmt.Errorf("find the directory that runc gives CRIU: %q, %w", path, err)
	}
	return path, nil
}

// specification is what confinement asks of a container's specification.
type specification struct {
	Process struct {
		Capabilities    *specs.LinuxCapabilities
		User            specs.User
		NoNewPrivileges bool
	}
	Mounts []specs.Mount
	Linux  struct {
		Namespaces []specs.LinuxNamespace
		Devices    []specs.LinuxDevice
	}
}

// specified reads the specification of the container with this bundle.
func specified(bundle string) (spec specification, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if err != nil {
		return spec, fmt.Errorf("read the bundle: %w", err)
	}
	return spec, nil
}
