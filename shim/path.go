package shim

import (
	"context"
	"sync"

	"github.com/cryo-project/cryo/shim/config"
)

// pathMu guards this process's PATH: the containers of a pod may change it side by side.
var pathMu sync.Mutex

// giveCRIU has runc find the CRIU to use, and CRIU its tar, in PATH, which they inherit. It is done before each dump and restore,
// and not when the shim starts: a container that is neither dumped nor restored must not wait for a program that it does not need.
func (s *service) giveCRIU(ctx context.Context) error {
	program, err := s.config.CheckCRIU()
	if err != nil {
		return err
	}
	pathMu.Lock()
	defer pathMu.Unlock()
	if err := config.ExportPath(program); err != nil {
		return err
	}
	giveTar(ctx)
	return nil
}
