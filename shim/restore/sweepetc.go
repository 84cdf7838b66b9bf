package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// sweepEtcFiles removes the files of containers that are gone. It leaves fresh files, whose container may just be being made.
func (m *making) sweepEtcFiles(ctx context.Context) error {
	const fresh = time.Hour
	dir := filepath.Dir(EtcDir(m.Config.Root, m.Address, m.Namespace, "any"))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep files for /etc: %w", err)
	}
	containers, err := m.Client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("sweep files for /etc: %w", err)
	}
	there := map[string]bool{}
	for _, c := range containers {
		there[c.ID] = true
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || there[e.Name()] || time.Since(info.ModTime()) < fresh {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("sweep files for /etc: %w", err)
		}
	}
	return nil
}
