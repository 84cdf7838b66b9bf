package library

import (
	"os"
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Inner is where the library is in a container. /dev is a tmpfs of the container's own, so nothing of this shows in its image.
const Inner = "/dev/cryo/" + File

// A program gets managed memory from the library, unless its environment has ManagedByDriver. With ManagedOnHost all of that memory is the host's.
const (
	ManagedByDriver = "CRYO_GPU_MANAGED=driver"
	ManagedOnHost   = "CRYO_GPU_MANAGED=host"
)

// Inject has the programs of a container load the library: a read-only mount of its file, and LD_PRELOAD. Why is empty where that is done,
// and says otherwise why it is not. The loader ignores LD_PRELOAD for programs that gain rights (set-user-ID), and there is no loader in those that are
// linked statically; both run as without cryo, and the driver saves their memory.
func (l Lib) Inject(spec *specs.Spec, rootfs string) (why string) {
	if spec.Process == nil {
		return "the container has no process"
	}
	if why := devWhy(spec.Mounts); why != "" {
		return why
	}
	if musl(rootfs) {
		return "the image has the musl C library, and the library needs glibc"
	}
	for _, m := range spec.Mounts {
		if path.Clean(m.Destination) == Inner {
			return ""
		}
	}
	// Private as the mounts of NVIDIA's CDI files: what the host mounts later does not show.
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: Inner, Type: "bind", Source: l.Path, Options: []string{"bind", "ro", "nosuid", "nodev", "rprivate"},
	})
	spec.Process.Env = preload(spec.Process.Env)
	return ""
}

// devWhy returns why nothing can be mounted below /dev without leaving a trace.
func devWhy(mounts []specs.Mount) string {
	why := "the container has no /dev of its own"
	for _, m := range mounts {
		if path.Clean(m.Destination) != "/dev" {
			continue
		}
		if why = ""; m.Type != "tmpfs" {
			why = "the container's /dev is not a tmpfs of its own"
		}
	}
	return why
}

// preload puts the library ahead of what LD_PRELOAD has. The last of several in an environment is what most programs see, and all are
// given.
func preload(env []string) []string {
	const name = "LD_PRELOAD="
	found := false
	env = append([]string(nil), env...)
	for i, v := range env {
		if before, ok := strings.CutPrefix(v, name); ok {
			found = true
			env[i] = name + Inner
			if before != "" {
				env[i] += ":" + before
			}
		}
	}
	if !found {
		env = append(env, name+Inner)
	}
	return env
}

// musl is true where an image has musl's loader and not glibc; a loader by glibc's name may be a link to musl's. Links of the image are not
// followed out of it.
func musl(rootfs string) bool {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return false
	}
	defer root.Close()
	found := false
	for _, dir := range []string{"lib", "lib64", "usr/lib", "usr/lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"} {
		d, err := root.Open(dir)
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(-1)
		_ = d.Close()
		for _, n := range names {
			if n == "libc.so.6" {
				return false
			}
			found = found || strings.HasPrefix(n, "ld-musl-")
		}
	}
	return found
}
