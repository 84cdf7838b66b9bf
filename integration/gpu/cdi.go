package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// generate has nvidia-ctk describe this machine's GPUs. Its hooks are run by runc when a container is made.
func (b *bench) generate(ctx context.Context) ([]byte, error) {
	file, err := os.CreateTemp("", "cryo-gpu-*.json")
	if err != nil {
		return nil, err
	}
	file.Close()
	defer os.Remove(file.Name())
	r := command(ctx, b.lab.Tool("nvidia-ctk"), "cdi", "generate", "--format", "json", "--output", file.Name(),
		"--nvidia-cdi-hook-path", b.lab.Tool("nvidia-cdi-hook"))
	if r.Err() != nil {
		return nil, r.Err()
	}
	return os.ReadFile(file.Name())
}

// nodes is a CDI specification of device nodes alone.
func (b *bench) nodes() ([]byte, error) {
	type object = map[string]any
	node := func(name string) object { return object{"path": "/dev/" + name} }
	var common, devices []object
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		if exists("/dev/" + name) {
			common = append(common, node(name))
		}
	}
	for i, g := range b.machine.GPUs {
		edits := object{"deviceNodes": []object{node(fmt.Sprintf("nvidia%d", g.Minor))}}
		devices = append(devices, object{"name": fmt.Sprint(i), "containerEdits": edits})
	}
	return json.Marshal(object{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": object{"deviceNodes": common}})
}

// putCDI gives a host its CDI specification. Hosts have a /run of their own, and so /var/run/cdi.
func (b *bench) putCDI(h *lab.Host) error {
	if b.cdi == nil {
		return nil
	}
	dir := filepath.Join(h.Dir, "run/cdi")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make CDI directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nvidia.json"), b.cdi, 0o644); err != nil {
		return fmt.Errorf("write CDI specification: %w", err)
	}
	return nil
}

// settle finds out how much of the CDI specification can be used here. Containers see this machine's /usr read-only, where hooks cannot
// make links and mounts cannot make directories; what they would make is there. So if the specification as it is does not do, it is
// tried with less, and the report says with how much.
func (b *bench) settle(ctx context.Context) error {
	without := func(dropMounts bool, hooks ...string) func([]byte) ([]byte, error) {
		keep := func(hook string) bool { return !slices.Contains(hooks, hook) && !slices.Contains(hooks, "all") }
		return func(whole []byte) ([]byte, error) { return reduce(whole, keep, dropMounts) }
	}
	attempts := []struct {
		name string
		spec func(whole []byte) ([]byte, error)
	}{
		{"as nvidia-ctk made it", without(false)},
		{"without the hook create-symlinks", without(false, "create-symlinks")},
		{"without the hooks create-symlinks and disable-device-node-modification", without(false, "create-symlinks", "disable-device-node-modification")},
		{"without hooks", without(false, "all")},
		{"without hooks and mounts: /usr has what they would bring", without(true, "all")},
		{"none of nvidia-ctk's, but device nodes alone", func([]byte) ([]byte, error) { return b.nodes() }},
	}
	whole, err := b.generate(ctx)
	if err != nil {
		b.machine.CDIRefused = append(b.machine.CDIRefused, err.Error())
		attempts = attempts[len(attempts)-1:]
	}
	for i, attempt := range attempts {
		if b.cdi, err = attempt.spec(whole); err != nil {
			return err
		}
		if err = b.probe(ctx, fmt.Sprintf("probe-%d", i)); err == nil {
			b.machine.CDI = attempt.name
			return nil
		}
		fmt.Printf("CDI specification %s: %s\n", attempt.name, err)
		b.machine.CDIRefused = append(b.machine.CDIRefused, fmt.Sprintf("%s: %s", attempt.name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("start a container with GPUs: %w", err)
}

// probe starts a container with all GPUs, which counts them, and takes one with the first to the other host.
func (b *bench) probe(ctx context.Context, id string) error {
	for _, h := range []*lab.Host{b.a, b.b} {
		if err := b.putCDI(h); err != nil {
			return err
		}
	}
	devices := make([]int, len(b.machine.GPUs))
	for i := range devices {
		devices[i] = i
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := b.container(id, "/gpu/app", "--gib", "0.125")
	defer b.clear(ctx, c)
	args := append([]string{"run", "--rm", "--runtime", runtimeName}, b.flags(devices)...)
	r := b.a.Ctr(ctx, append(args, b.image, id, "/gpu/app", "--probe")...)
	if r.Code != 0 || !strings.Contains(r.Stdout, fmt.Sprintf("devices %d", len(devices))) {
		return fmt.Errorf("start a container: exit status %d: %s", r.Code, strings.TrimSpace(r.Stdout+r.Stderr))
	}
	return b.journey(ctx, &result{Case: id, Times: map[string][]float64{}}, c, route{})
}

// reduce takes hooks and mounts out of a CDI specification. Source: CDI, SPEC.md.
func reduce(spec []byte, keep func(hook string) bool, dropMounts bool) ([]byte, error) {
	var whole map[string]any
	if err := json.Unmarshal(spec, &whole); err != nil {
		return nil, fmt.Errorf("read CDI specification: %w", err)
	}
	holders := []any{whole}
	if devices, ok := whole["devices"].([]any); ok {
		holders = append(holders, devices...)
	}
	for _, holder := range holders {
		h, _ := holder.(map[string]any)
		edits, ok := h["containerEdits"].(map[string]any)
		if !ok {
			continue
		}
		if hooks, ok := edits["hooks"].([]any); ok {
			kept := []any{}
			for _, hook := range hooks {
				if keep(hookName(hook)) {
					kept = append(kept, hook)
				}
			}
			edits["hooks"] = kept
			if len(kept) == 0 {
				delete(edits, "hooks")
			}
		}
		if dropMounts {
			delete(edits, "mounts")
		}
	}
	return json.MarshalIndent(whole, "", " ")
}

// hookName is the first argument after the program's name, or after its word "hook".
func hookName(hook any) string {
	h, _ := hook.(map[string]any)
	args, _ := h["args"].([]any)
	for i, arg := range args {
		if name, ok := arg.(string); ok && i > 0 && name != "hook" {
			return name
		}
	}
	return ""
}
