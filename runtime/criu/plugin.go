package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/standin"
)

// AMDPlugin saves and restores AMD GPUs. Source: CRIU, plugins/amdgpu.
const AMDPlugin = "amdgpu_plugin.so"

// pluginDirs are where distributions put CRIU's plugins.
var pluginDirs = []string{"/usr/lib/criu", "/usr/libexec/criu", "/usr/lib64/criu", "/usr/lib/x86_64-linux-gnu/criu", "/usr/local/lib/criu"}

// LinkPlugin makes a plugin the only one in the directory dir, which CRIU is then told to look into. It is looked for beside
// the criu program in PATH and where distributions put it; the error is FailedPrecondition if it is not there.
func LinkPlugin(name, dir string) error {
	path, err := findPlugin(name, pluginPath())
	if err != nil {
		return err
	}
	link := filepath.Join(dir, name)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link CRIU's plugin: %w", err)
	}
	if err := os.Symlink(path, link); err != nil {
		return fmt.Errorf("link CRIU's plugin: %w", err)
	}
	return nil
}

func pluginPath() []string {
	if program, err := standin.Find(standin.CRIU); err == nil {
		return append([]string{filepath.Join(filepath.Dir(filepath.Dir(program)), "lib/criu")}, pluginDirs...)
	}
	return pluginDirs
}

func findPlugin(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", failure.New(errdefs.ErrFailedPrecondition,
		"install CRIU with its plugin for AMD GPUs (criu-amdgpu-plugin, or make amdgpu_plugin in CRIU's sources), which containers with /dev/kfd need",
		"find CRIU's plugin %s: it is not in %s", name, strings.Join(dirs, ", "))
}
