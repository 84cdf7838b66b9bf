package shim

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/tmpfs"
)

// giveTar has CRIU find the shim's program where it looks for tar: in PATH, which runc and CRIU inherit. Restores run through the
// stock service, so it is this process's PATH. Without it CRIU takes the host's tar, which is slow and right.
func giveTar(ctx context.Context) {
	if err := exportTar(); err != nil {
		log.G(ctx).WithError(err).Warn("the contents of tmpfs mounts go through the host's tar")
	}
}

func exportTar() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := tmpfs.Link(program)
	if err != nil {
		return err
	}
	path := os.Getenv("PATH")
	if path == dir || strings.HasPrefix(path, dir+string(filepath.ListSeparator)) {
		return nil
	}
	return os.Setenv("PATH", strings.TrimSuffix(dir+string(filepath.ListSeparator)+path, string(filepath.ListSeparator)))
}
