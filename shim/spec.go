package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// spec reads the bundle's specification.
func (b bundle) spec() (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(b.dir, specFile))
	if err != nil {
		return nil, fmt.Errorf("read the bundle: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("read the bundle's %s: %w", specFile, err)
	}
	return &spec, nil
}

// changeSpec changes the bundle's specification. Only members that change are written anew: others may hold what this
// program's types do not know.
func (b bundle) changeSpec(change func(*specs.Spec) error) error {
	path := filepath.Join(b.dir, specFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the bundle: %w", err)
	}
	var all map[string]json.RawMessage
	var spec specs.Spec
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("read the bundle's %s: %w", specFile, err)
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("read the bundle's %s: %w", specFile, err)
	}
	before, err := members(&spec)
	if err != nil {
		return err
	}
	if err := change(&spec); err != nil {
		return err
	}
	after, err := members(&spec)
	if err != nil {
		return err
	}
	for name, value := range after {
		if !bytes.Equal(before[name], value) {
			all[name] = value
		}
	}
	for name := range before {
		if _, left := after[name]; !left {
			delete(all, name)
		}
	}
	if data, err = json.Marshal(all); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		return fmt.Errorf("write the bundle's %s: %w", specFile, err)
	}
	return nil
}

func members(spec *specs.Spec) (all map[string]json.RawMessage, err error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(data, &all)
}
