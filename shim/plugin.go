package shim

import (
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/cryo-project/cryo/shim/config"
)

// register makes the service the shim's task plugin, in the place of containerd's task/plugin.
func register(c config.Config) {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			collectLater()
			p, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			s, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			publisher := &deletions{Publisher: p.(shim.Publisher), ids: make(map[string]struct{})}
			stock, err := task.NewTaskService(ic.Context, publisher, s.(shutdown.Service))
			if err != nil {
				return nil, err
			}
			return newService(ic.Context, stock, publisher, c), nil
		},
	})
}
