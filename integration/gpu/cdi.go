package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cryo-project/cryo/integration/lab"
)

// generate has nvidia-ctk describe this machine's GPUs. Its hooks are run by runc when a container is made.
func (b *bench) generate(ctx context.Context) error {
	file, err := os.CreateTemp("", "cryo-gpu-*.json")
	if err != nil {
		return err
	}
	file.Close()
	defer os.Remove(file.Name())
	r := command(ctx, b.lab.Tool("nvidia-ctk"), "cdi", "generate", "--format", "json", "--output", file.Name(),
		"--nvidia-cdi-hook-path", b.lab.Tool("nvidia-cdi-hook"))
	if r.Err() != nil {
		return r.Err()
	}
	b.cdi, err = os.ReadFile(file.Name())
	return err
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

// settle starts a container with all GPUs. Containers see this machine's /usr read-only, where hooks cannot make links and mounts cannot
// make directories; what they would make is there. So if the specification as it is does not do, it is tried with less, and
// the report says with how much.
func (b *bench) settle(ctx context.Context) error {
	attempts := []struct {
		name string
		keep func(hook string) bool
		drop bool // all mounts: /usr has what they would bring
	}{
		{"as nvidia-ctk made it", func(string) bool { return true }, false},
		{"without the create-symlinks hook", func(hook string) bool { return hook != "create-symlinks" }, false},
		{"without hooks", func(string) bool { return false }, false},
		{"without hooks and mounts", func(string) bool { return false }, true},
	}
	whole := b.cdi
	var last error
	for i, attempt := range attempts {
		var err error
		if b.cdi, err = reduce(whole, attempt.keep, attempt.drop); err != nil {
			return err
		}
		for _, h := range []*lab.Host{b.a, b.b} {
			if err := b.putCDI(h); err != nil {
				return err
			}
		}
		devices := make([]int, len(b.machine.GPUs))
		for i := range devices {
			devices[i] = i
		}
		id := fmt.Sprintf("probe-%d", i)
		args := append([]string{"run", "--rm", "--runtime", runtimeName}, b.flags(devices)...)
		r := b.a.Ctr(ctx, append(args, b.image, id, "/gpu/app", "--probe")...)
		if r.Code == 0 && strings.Contains(r.Stdout, fmt.Sprintf("devices %d", len(devices))) {
			b.machine.CDI = attempt.name
			return nil
		}
		last = fmt.Errorf("%s: exit status %d: %s", attempt.name, r.Code, strings.TrimSpace(r.Stdout+r.Stderr))
		b.machine.CDIRefused = append(b.machine.CDIRefused, last.Error())
		b.a.Ctr(ctx, "tasks", "delete", "--force", id)
		b.a.Ctr(ctx, "containers", "delete", id)
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("start a container with GPUs: %w", last)
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
