package runc

import "context"

// Processes lists the container's processes by their ids in this process's pid namespace.
func (c Container) Processes(ctx context.Context) ([]int, error) {
	pids, err := c.Runtime.Ps(ctx, c.ID)
	if err != nil {
		return nil, c.explain("ps", err)
	}
	return pids, nil
}
