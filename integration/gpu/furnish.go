package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A container's root is the lab's small image, this machine's /usr and /opt mounted read-only, and what makes those work: links such
// as /lib64, the linker's cache, Debian's alternatives. So PyTorch and CUDA need not be in an image. The image also has the programs,
// in /gpu: a snapshot that is restored elsewhere finds them there.

// hosts is the file /etc/hosts as container managers make it, for containers of this name.
const (
	hostname = "gpu"
	hosts    = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 " + hostname + "\n"
)

// furnish fills a directory with what the image gets, and sets what every container is started with.
func (b *bench) furnish(add string) error {
	if err := copyTree(b.programs, filepath.Join(add, "gpu")); err != nil {
		return fmt.Errorf("copy programs: %w", err)
	}
	roots := []string{"/usr", "/opt"}
	for _, name := range []string{"lib", "lib32", "lib64", "libx32", "sbin"} {
		target, err := os.Readlink("/" + name)
		switch {
		case err == nil:
			if err := os.Symlink(target, filepath.Join(add, name)); err != nil {
				return err
			}
		case exists("/" + name):
			roots = append(roots, "/"+name)
		}
	}
	for _, name := range []string{"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives"} {
		if err := copyTree("/etc/"+name, filepath.Join(add, "etc", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("copy /etc/%s: %w", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(add, "etc/hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	roots = append(roots, pythonRoot(roots)...)
	mounts, err := withMounts(roots)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		b.mounts = append(b.mounts, "--mount", fmt.Sprintf("type=bind,src=%s,dst=%s,options=bind:ro", m, m))
	}
	b.env = environment()
	return nil
}

// environment is what programs find on this machine by.
func environment() (flags []string) {
	env := []string{
		"PATH=" + os.Getenv("PATH") + ":/bin", "HOME=/root", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
		"HF_HUB_OFFLINE=1", "TRITON_CACHE_DIR=/tmp/triton", "CUPY_CACHE_DIR=/tmp/cupy",
		// NVLink multicast is of no use here, and a fault in it reaches other users of the GPUs.
		"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1",
	}
	for _, name := range []string{"LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	for _, v := range env {
		flags = append(flags, "--env", v)
	}
	return flags
}

// withMounts adds to directories what is mounted below them. A mount that brought others along could not be dumped.
func withMounts(roots []string) ([]string, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(slices.Clone(roots), func(root string) bool { return !exists(root) })
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		for _, root := range roots {
			if strings.HasPrefix(fields[4], root+"/") && exists(fields[4]) && !slices.Contains(all, fields[4]) {
				all = append(all, fields[4])
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// pythonRoot is where Python itself is, if that is elsewhere: the PyTorch that is first in PATH may be of a virtual environment.
func pythonRoot(roots []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := command(ctx, "python3", "-c", "import sys; print(sys.base_prefix); print(sys.prefix)")
	var more []string
	for _, dir := range strings.Fields(r.Stdout) {
		if !slices.ContainsFunc(slices.Concat(roots, more), func(root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }) {
			more = append(more, dir)
		}
	}
	return more
}

// python3 is the path of the interpreter; the one in PATH may be a script that finds it.
func python3() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := command(ctx, "python3", "-c", "import sys; print(sys.executable)")
	if path := strings.TrimSpace(r.Stdout); r.Code == 0 && path != "" {
		return path
	}
	return "/usr/bin/python3"
}

// copyTree copies a file, a link or a directory with both.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case d.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.Symlink(link, target))
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, content, info.Mode().Perm())
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
