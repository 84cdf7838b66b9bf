package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/confinement"
)

// loopbackCommand is the argument that makes the shim's program a hook of a container that is restored: it sets the
// loopback device of the container's network up.
const loopbackCommand = "loopback"

// addLoopback makes sure that a container to be restored with a network namespace of its own has a loopback device that
// is up before its sockets are made anew. runc sets it up when it creates a container, but not when it restores one, and
// has CRIU leave devices alone. It runs hooks of createRuntime though, as soon as there are namespaces.
func (b bundle) addLoopback() error {
	path := filepath.Join(b.dir, specFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the bundle: %w", err)
	}
	var spec map[string]json.RawMessage // the rest is not touched
	var linux struct {
		Namespaces []specs.LinuxNamespace `json:"namespaces"`
	}
	hooks := map[string]json.RawMessage{}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("read the bundle's %s: %w", specFile, err)
	}
	for _, field := range []struct {
		raw  func() json.RawMessage
		into any
	}{
		{func() json.RawMessage { return spec["linux"] }, &linux},
		{func() json.RawMessage { return spec["hooks"] }, &hooks},
		{func() json.RawMessage { return hooks["createRuntime"] }, &list},
	} {
		if raw := field.raw(); raw != nil {
			if err := json.Unmarshal(raw, field.into); err != nil {
				return fmt.Errorf("read the bundle's %s: %w", specFile, err)
			}
		}
	}
	if !slices.ContainsFunc(linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace && n.Path == "" }) {
		return nil
	}
	// By this process, not by name: an update may have replaced the file.
	hook, err := json.Marshal(specs.Hook{Path: fmt.Sprintf("/proc/%d/exe", os.Getpid()), Args: []string{Name, loopbackCommand}})
	if err != nil {
		return err
	}
	if hooks == nil {
		hooks = map[string]json.RawMessage{}
	}
	if hooks["createRuntime"], err = json.Marshal(append([]json.RawMessage{hook}, list...)); err != nil {
		return err
	}
	if spec["hooks"], err = json.Marshal(hooks); err != nil {
		return err
	}
	if data, err = json.Marshal(spec); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		return fmt.Errorf("write the bundle's %s: %w", specFile, err)
	}
	return nil
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
