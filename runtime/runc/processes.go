package runc

import "context"

// Processes lists the container's processes by their ids in this process's pid namespace. runc is asked where they cannot be found without.
func (c Container) Processes(ctx context.Context) ([]int, error) {
	if groups, err := c.cgroups(); err == nil {
		if pids, err := groups.processes(); err == nil {
			return pids, nil
		}
	}
	pids, err := c.Runtime.Ps(ctx, c.ID)
	if err != nil {
		return nil, c.explain("ps", err)
	}
	return pids, nil
}
