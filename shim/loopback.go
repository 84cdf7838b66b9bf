package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/confinement"
	"github.com/cryo-project/cryo/runtime/setns"
)

// loopbackCommand is the argument that makes the shim's program a hook of a container that is restored: it sets the
// loopback device of the container's network up.
const loopbackCommand = "loopback"

// addLoopback makes sure that a container to be restored with a network namespace of its own has a loopback device that
// is up before its sockets are made anew. runc sets it up when it creates a container, but not when it restores one, and
// has CRIU leave devices alone. It runs hooks of createRuntime though, as soon as there are namespaces.
func addLoopback(spec *specs.Spec) {
	if path, has := setns.In(spec, specs.NetworkNamespace); !has || path != "" {
		return
	}
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	// By this process, not by name: an update may have replaced the file.
	hook := specs.Hook{Path: fmt.Sprintf("/proc/%d/exe", os.Getpid()), Args: []string{Name, loopbackCommand}}
	spec.Hooks.CreateRuntime = slices.Insert(spec.Hooks.CreateRuntime, 0, hook)
}

// setLoopback is the hook: state is what a hook gets on standard input, see the OCI runtime specification, Hooks. It must
// run in a process of its own, whose thread it leaves in the container's network namespace.
func setLoopback(state io.Reader) error {
	var s specs.State
	if err := json.NewDecoder(state).Decode(&s); err != nil {
		return fmt.Errorf("read the container's state: %w", err)
	}
	runtime.LockOSThread()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.Pid))
	if err != nil {
		return fmt.Errorf("find the container's network: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the container's network: %w", err)
	}
	return confinement.Loopback()
}
