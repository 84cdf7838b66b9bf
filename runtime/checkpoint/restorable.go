package checkpoint

import (
	"context"

	"github.com/cryo-project/cryo/runtime/criu"
)

// restorable refuses a container that CRIU would never be done with, or whose dump a restore would not make whole.
func (s *sequence) restorable(ctx context.Context) error {
	if err := s.Dumpable(ctx); err != nil {
		return err
	}
	pids, err := s.dumped(ctx)
	if err != nil {
		return err
	}
	if err := criu.CheckRestorable(pids); err != nil || s.Devices != nil && !s.saved && !s.Parked { // what is open on devices is closed when it is saved
		return err
	}
	return criu.CheckKinds(pids)
}

// dumped lists the processes that CRIU dumps, the first one first: it and its descendants, and not what exec has started in the container.
func (s *sequence) dumped(ctx context.Context) ([]int, error) {
	if s.First == 0 {
		return s.Processes(ctx)
	}
	return criu.ProcessTree(s.First), nil
}

// untraced refuses a container of which another program traces a process: CRIU could not.
func (s *sequence) untraced(ctx context.Context) error {
	pids, err := s.dumped(ctx)
	if err != nil {
		return err
	}
	return criu.CheckTraced(pids)
}
