package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestImage have containers restored since their image is a snapshot's runnable one: by stock ctr, which says what CRI says of a pod's container.

const (
	restartAnnotation = "io.cryo.restart"
	signalAnnotation  = "io.cryo.restore.signal"
	restartCount      = "io.kubernetes.container.restartCount"
)

// inPod are flags of ctr run for a pod's container, as CRI has it.
func inPod(name, image string, more ...string) []string {
	all := []string{"--runtime", cryoRuntime}
	for _, a := range append([]string{"io.kubernetes.cri.container-type=container", "io.kubernetes.cri.container-name=" + name, "io.kubernetes.cri.image-name=" + image}, more...) {
		all = append(all, "--annotation", a)
	}
	return all
}

// forgedImage pushes an image of a snapshot's base image and difference, and gives its name. The snapshot is in the registry as path. change may forge the image; nil: it is as cryo makes it.
func forgedImage(t *testing.T, path, tag string, change func(*ocispec.Image)) string {
	t.Helper()
	r := shared.registry
	repository, _, _ := strings.Cut(path, ":")
	repo, err := remote.NewRepository(r.Reference(repository))
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	var base, snapshot ocispec.Manifest
	var config ocispec.Image
	manifest := manifestOf(t, r.Reference(path))
	err = errors.Join(json.Unmarshal(manifestOf(t, shared.image), &base), json.Unmarshal(manifest, &snapshot))
	if err == nil {
		err = json.Unmarshal(blob(t, shared.image, base.Config.Digest), &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	frozen := digest.FromBytes(manifest)
	layers := slices.Clone(base.Layers)
	for _, d := range layers {
		if err := repo.Mount(t.Context(), d, "base", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range snapshot.Layers {
		if d.MediaType == image.MediaTypeRootFS {
			layers = append(layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerZstd, Digest: d.Digest, Size: d.Size})
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.Digest(d.Annotations[image.AnnotationRawDigest]))
		}
	}
	config.Config.Labels = map[string]string{"io.cryo.image.snapshot": frozen.String()}
	if change != nil {
		change(&config)
	}
	push := func(mediaType string, v any) ocispec.Descriptor {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		if err := repo.Push(t.Context(), d, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: push(ocispec.MediaTypeImageConfig, config), Layers: layers}
	if err := repo.Tag(t.Context(), push(ocispec.MediaTypeImageManifest, m), tag); err != nil {
		t.Fatal(err)
	}
	return r.Reference(repository) + ":" + tag
}

// pullImage has containerd pull an image.
func pullImage(t *testing.T, h *lab.Host, ref string) {
	t.Helper()
	must(t, h.Ctr(t.Context(), "images", "pull", "--plain-http", "--snapshotter", "overlayfs", ref))
}

// frozenAs is the digest of the snapshot in the registry, and what cryo calls it that has it from there by its image.
func frozenAs(t *testing.T, path string) (frozen, ref string) {
	t.Helper()
	repository, _, _ := strings.Cut(path, ":")
	frozen = digest.FromBytes(manifestOf(t, shared.registry.Reference(path))).String()
	return frozen, shared.registry.Reference(repository) + "@" + frozen
}

// pushedSecond pushes another snapshot into the repository of one, of a container that has changed other files, and gives its path.
func pushedSecond(t *testing.T, first string) (path string) {
	t.Helper()
	a, _ := pair(t)
	id := name(t)
	repository, _, _ := strings.Cut(first, ":")
	path = repository + ":2"
	start(t, a, id, nil, "workload", "count")
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "change", id, "touch", "/second"))
	must(t, a.Cryo(t.Context(), "checkpoint", id, shared.registry.Reference(path), "--push", "--plain-http"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", shared.registry.Reference(path)))
	return path
}

// runPod has ctr run a pod's container in the background.
func runPod(t *testing.T, h *lab.Host, id, image string, flags []string, args ...string) lab.Result {
	t.Helper()
	cleanup(t, h, id)
	return h.Ctr(t.Context(), slices.Concat([]string{"run", "--detach", "--log-uri", "file://" + logFile(h, id)}, flags, []string{image, id}, args)...)
}

// restoreOver waits for the end of the restore process.
func restoreOver(t *testing.T, h *lab.Host) {
	t.Helper()
	eventually(t, "the end of the restore process", time.Minute, func() bool { return len(restorers(t, h)) == 0 })
}

// upper lists what is in the container's own layer.
func upper(t *testing.T, h *lab.Host, id string) []string {
	t.Helper()
	return names(t, upperDir(t, h, id))
}

// upperDir is where the container's own layer is.
func upperDir(t *testing.T, h *lab.Host, id string) string {
	t.Helper()
	mounts, err := client(t, h).SnapshotService("overlayfs").Mounts(inDefault(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range mounts[0].Options {
		if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
			return dir
		}
	}
	t.Fatalf("%s has no layer of its own", id)
	return ""
}

// TestImageMovedTag: an image is restored from the snapshot that it was made with, although its name has come to mean another.
func TestImageMovedTag(t *testing.T) {
	first, before := pushedMarked(t, nil, "count")
	own := forgedImage(t, first, "moving", nil)
	frozen, _ := frozenAs(t, first)
	h := annotationHost(t, "moved", shared.registry.Address)
	pullImage(t, h, own)
	second := pushedSecond(t, first)
	if moved := forgedImage(t, second, "moving", nil); moved != own {
		t.Fatalf("%s is not %s", moved, own)
	}
	heard, id := eventsOf(t, h), name(t)
	must(t, runPod(t, h, id, own, inPod("app", own), "workload", "count"))
	goneOn(t, before, await(t, h, id))
	heard.warm(t, id, own, frozen)
	restoreOver(t, h)
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", frozen))
}

// TestAnnotationContainer restores one container of a pod: the one that the pod's annotation names.
func TestAnnotationContainer(t *testing.T) {
	path, before := pushedMarked(t, nil, "count")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "container", shared.registry.Address)
	for _, test := range []struct {
		container string
		warm      bool
	}{{"sidecar", false}, {"app", true}} {
		id := name(t)
		must(t, runPod(t, h, id, lab.ImageName, inPod(test.container, lab.ImageName, restoreAnnotation+".app="+ref), "workload", "count"))
		if after := await(t, h, id); test.warm {
			goneOn(t, before, after)
		} else if after.Life == before.Life {
			t.Errorf("%s was restored", test.container)
		}
		restoreOver(t, h)
		remove(t.Context(), h, id)
	}
	must(t, h.Cryo(t.Context(), "rm", ref))
}

// listener is a program that says which signal it has got.
const listener = `trap 'cat /.cryo/restored.json >/srv/told.new; mv /srv/told.new /srv/told' USR1; while :; do sleep 0.05; done`

// newPod makes a pod's sandbox, and gives the flags of ctr run for a container in it: namespaces, mounts and environment as CRI and the kubelet have them.
func newPod(t *testing.T, h *lab.Host, pod string) (flags []string) {
	t.Helper()
	dir := filepath.Join(h.Dir, "pods", pod)
	for _, d := range []string{"settings", "token", "emptydir", "shm"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for file, content := range map[string]string{
		"hosts": pod + " hosts\n", "hostname": pod + "\n", "resolv.conf": pod + " resolver\n", "termination-log": "", "settings/value": pod + " settings\n", "token/token": pod + " token\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	sandbox := name(t)
	cleanup(t, h, sandbox)
	must(t, h.Ctr(t.Context(), slices.Concat([]string{"run", "--detach", "--null-io", "--hostname", pod, "--runtime", cryoRuntime}, []string{"--annotation", "io.kubernetes.cri.container-type=sandbox",
		"--annotation", restoreAnnotation + "=" + shared.registry.Address + "/nothing:1"}, []string{lab.ImageName, sandbox, "sleep", "10000"})...))
	pid, _, err := h.Task(t.Context(), sandbox)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"network", "ipc", "uts"} {
		file := strings.Replace(ns, "network", "net", 1)
		flags = append(flags, "--with-ns", fmt.Sprintf("%s:/proc/%d/ns/%s", ns, pid, file))
	}
	for destination, source := range map[string]string{
		"/etc/hosts": "hosts:rw", "/etc/hostname": "hostname:rw", "/etc/resolv.conf": "resolv.conf:rw", "/dev/termination-log": "termination-log:rw", "/settings": "settings:ro",
		"/var/run/secrets/kubernetes.io/serviceaccount": "token:ro", "/emptydir": "emptydir:rw",
	} {
		from, how, _ := strings.Cut(source, ":")
		flags = append(flags, "--mount", fmt.Sprintf("type=bind,src=%s,dst=%s,options=rbind:%s", filepath.Join(dir, from), destination, how))
	}
	return append(flags, "--env", "HOSTNAME="+pod, "--env", "POD_NAME="+pod, "--env", "SAME=1")
}
