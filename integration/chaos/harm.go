package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// spoilLine makes the line to the registry bad for a while.
func spoilLine(_ context.Context, r *round, _ int) error {
	l := r.world.line
	defer l.become(lineState{})
	switch r.choice.Target {
	case "slow": // 1 to 100 MB/s
		l.become(lineState{rate: int(1e6 * math.Pow(100, r.choice.Amount)), latency: time.Duration(r.choice.Pick) * 5 * time.Millisecond})
	case "lossy":
		l.become(lineState{loss: 0.01 + 0.2*r.choice.Amount})
	case "dark":
		l.become(lineState{dark: true})
	case "answers":
		answer := badAnswers[r.choice.Pick%len(badAnswers)]
		r.note("%s", answer)
		l.become(lineState{answer: answer})
		l.cut()
	case "cut":
		l.become(lineState{refuse: true})
		l.cut()
	}
	time.Sleep(r.choice.Away)
	return nil
}

// badAnswers are those of registries, and of what stands before them, while something is amiss.
var badAnswers = []string{
	"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 24\r\nConnection: close\r\n\r\n<html>maintenance</html>",
}

// flip changes a bit of one blob of the snapshot, in the local store or in the registry, until the operation is over.
func flip(_ context.Context, r *round, _ int) error {
	path, err := r.blob()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	at := int64(r.choice.Amount * float64(info.Size()))
	var was [1]byte
	if _, err := f.ReadAt(was[:], at); err != nil {
		return err
	}
	change := func(b byte) error {
		out, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer out.Close()
		_, err = out.WriteAt([]byte{b}, at)
		return err
	}
	r.note("byte %d of %d of %s", at, info.Size(), path)
	r.mend = func(context.Context) error { return change(was[0]) }
	return change(was[0] ^ 1<<r.choice.Pick)
}

// blob is the file of one of the snapshot's blobs: one of memory, which is nearly all of it, as often as any other.
func (r *round) blob() (string, error) {
	w := r.world
	store := filepath.Join(w.a.CryoRoot(), "store")
	content, err := os.ReadFile(filepath.Join(store, "index.json"))
	if err != nil {
		return "", err
	}
	var index ocispec.Index
	if err := json.Unmarshal(content, &index); err != nil {
		return "", err
	}
	for _, d := range index.Manifests {
		if d.Annotations[ocispec.AnnotationRefName] != r.golden() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(store, "blobs/sha256", d.Digest.Encoded()))
		if err != nil {
			return "", err
		}
		var manifest ocispec.Manifest
		if err := json.Unmarshal(content, &manifest); err != nil {
			return "", err
		}
		all := append([]ocispec.Descriptor{d, manifest.Config}, manifest.Layers...)
		slices.SortFunc(all, func(a, b ocispec.Descriptor) int { return int(b.Size - a.Size) })
		chosen := all[0]
		if r.choice.Pick%2 == 0 {
			chosen = all[int(r.choice.Amount*1000)%len(all)]
		}
		name := chosen.Digest.Encoded()
		if r.choice.Target == "registry-data" {
			return filepath.Join(w.registry.Dir, "data/docker/registry/v2/blobs/sha256", name[:2], name, "data"), nil
		}
		return filepath.Join(store, "blobs/sha256", name), nil
	}
	return "", fmt.Errorf("the store has no %s", r.golden())
}

// places are the directories of a host that are file systems of their own, and can be full.
var places = map[string]string{"store": "cryo", "containerd-root": "containerd", "run": "run"}

// placeSize is how large they are, in bytes.
const placeSize = 4 << 30

// fill leaves up to 100 MiB on a file system, and often next to nothing, until the operation is over.
func fill(_ context.Context, r *round, _ int) error {
	place := filepath.Join(r.host.Dir, places[r.choice.Target]) // with a disk that forgets this fault is not drawn
	free := int64(100 * (1 << 20) * math.Pow(r.choice.Amount, 3))
	free -= free % 4096
	r.note("%d KiB are left on %s", free>>10, place)
	r.mend = func(context.Context) error { return resize(place, placeSize) }
	if r.op.second && r.choice.Target == "store" { // also when the container runs
		defer func() { time.Sleep(time.Duration((1 + 3*r.choice.Amount) * float64(time.Second))) }()
	}
	for {
		var fs unix.Statfs_t
		if err := unix.Statfs(place, &fs); err != nil {
			return os.NewSyscallError("statfs "+place, err)
		}
		used := int64(fs.Blocks-fs.Bfree) * fs.Bsize
		if err := resize(place, max(used+free, 4096)); !errors.Is(err, unix.EINVAL) {
			return err
		}
		free += 64 << 10 // more is used, by now or by the kernel's exact count
	}
}

// mountPlace makes a directory a file system of its own.
func mountPlace(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	return os.NewSyscallError("mount "+dir, unix.Mount("chaos", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0711", placeSize)))
}

func resize(dir string, size int64) error {
	return os.NewSyscallError("resize "+dir, unix.Mount("chaos", dir, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size)))
}

// reboot resets the host.
func reboot(ctx context.Context, r *round, _ int) error { return r.host.Reboot(ctx, nil) }

// twice gives the same command beside the first.
func twice(ctx context.Context, r *round, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	second := r.host.Run(ctx, r.op.words(r)...)
	r.note("the second: exit %d: %s", second.Code, strings.TrimSpace(second.Stderr))
	r.second = &second
	return nil
}
