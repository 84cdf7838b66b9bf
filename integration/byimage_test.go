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

// TestImage restores a pod's container by its image alone, from the registry and from the store: its root file system has what the snapshot's had changed by a layer, which nobody
// fetches for the snapshot again.
func TestImage(t *testing.T) {
	path, before := pushedMarked(t, nil, "count", "--memory", "16")
	own := shared.registry.Reference(path)
	frozen, ref := frozenAs(t, path)
	h := annotationHost(t, "image", shared.registry.Address)
	pullImage(t, h, own)
	heard := eventsOf(t, h)
	for _, from := range []string{"registry", "store"} {
		id := name(t)
		must(t, runPod(t, h, id, own, inPod("app", own)))
		goneOn(t, before, await(t, h, id))
		heard.warm(t, id, own, frozen)
		if !marked(t, h, id) {
			t.Error("the root file system lacks what the snapshot's container had changed")
		}
		if entries := upper(t, h, id); slices.Contains(entries, marker[1:]) || !slices.Contains(entries, ".cryo") {
			t.Errorf("from the %s: the container's own layer has %v", from, entries)
		}
		restoreOver(t, h)
		must(t, h.Cryo(t.Context(), "verify", "--pull", "never", ref))
		remove(t.Context(), h, id)
	}
	must(t, h.Cryo(t.Context(), "rm", ref))
	var m ocispec.Manifest
	if err := json.Unmarshal(manifestOf(t, ref), &m); err != nil {
		t.Fatal(err)
	}
	difference := m.Layers[2].Digest.Encoded()
	if n := strings.Count(read(t, filepath.Join(shared.registry.Dir, "registry.log")), "\"GET /v2/"+strings.Split(path, ":")[0]+"/blobs/sha256:"+difference); n != 1 {
		t.Errorf("the difference was fetched %d times, and not once, by containerd", n)
	}
}

// upper lists what is in the container's own layer.
func upper(t *testing.T, h *lab.Host, id string) []string {
	t.Helper()
	mounts, err := client(t, h).SnapshotService("overlayfs").Mounts(inDefault(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range mounts[0].Options {
		if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
			return names(t, dir)
		}
	}
	return nil
}

// TestImageCold has containers of a snapshot's image that cannot be restored, for each reason: they are started, and the reason is told. What is no snapshot's image is started as always.
func TestImageCold(t *testing.T) {
	path, _ := pushedMarked(t, nil, "count")
	other, _ := pushedMarked(t, nil, "count")
	own := shared.registry.Reference(path)
	_, ref := frozenAs(t, path)
	another, _ := frozenAs(t, other)
	second, _ := frozenAs(t, pushedSecond(t, path))
	label := func(value string) func(*ocispec.Image) {
		return func(i *ocispec.Image) { i.Config.Labels["io.cryo.image.snapshot"] = value }
	}
	h := annotationHost(t, "imagecold")
	heard := eventsOf(t, h)
	for _, test := range []struct {
		name   string
		says   string // empty: there is no event
		class  string // of that
		image  string
		flags  []string
		config string
		allow  []string
	}{
		{"not allowed", "", "", own, nil, "", []string{"cryo.test"}},
		{"nothing allowed", "", "", own, nil, "", []string{}},
		{"ordinary", "", "", forgedImage(t, path, "ordinary", func(i *ocispec.Image) { i.Config.Labels = nil }), nil, "", nil},
		{"nonsense", "label io.cryo.image.snapshot", "invalid argument", forgedImage(t, path, "nonsense", label("sha256:12")), nil, "", nil},
		{"gone", "the registry has no", "not found", forgedImage(t, path, "gone", label(digest.FromString("gone").String())), nil, "", nil},
		{"another repository's", another, "not found", forgedImage(t, path, "elsewhere", label(another)), nil, "", nil},
		{"another image's", "base-image: ", "base-image", forgedImage(t, path, "mispaired", label(second)), nil, "", nil},
		{"unsigned", "signature: ", "permission denied", own, nil, "[trust]\ndefault = \"signed\"", nil},
		{"another mount", "mounts: this container has a mount at /more", "mounts", own, []string{"--mount", "type=bind,src=/tmp,dst=/more,options=rbind:ro"}, "", nil},
		{"shared processes", "pid-namespace: ", "pid-namespace", own, []string{"--with-ns", "pid:/proc/self/ns/pid"}, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			allow := test.allow
			if allow == nil {
				allow = []string{shared.registry.Address}
			}
			allowAnnotation(t, h, test.config, allow...)
			forget(t, h, ref)
			pullImage(t, h, test.image)
			id := name(t)
			must(t, runPod(t, h, id, test.image, slices.Concat(inPod("app", test.image), test.flags), "sleep", "1000"))
			if _, status, err := h.Task(t.Context(), id); status != "RUNNING" {
				t.Errorf("it is %q, %v", status, err)
			}
			if !marked(t, h, id) {
				t.Error("the root file system is not the image's")
			}
			if entries := upper(t, h, id); slices.Contains(entries, ".cryo") {
				t.Errorf("the container's own layer has %v", entries)
			}
			if test.says == "" {
				heard.nothing(t, id)
				for _, line := range strings.Split(read(t, h.Log()), "\n") {
					if strings.Contains(line, id) && strings.Contains(line, "level=warning") {
						t.Errorf("containerd's log tells of an ordinary container: %s", line)
					}
				}
			}
			if left := restorers(t, h); len(left) > 0 {
				t.Errorf("restore processes %v", left)
			}
			remove(t.Context(), h, id)
			if test.says != "" {
				heard.fallback(t, id, test.says, test.class)
			}
		})
	}
	// Who wants to know asks for a failure.
	allowAnnotation(t, h, "[trust]\ndefault = \"signed\"", shared.registry.Address)
	id := name(t)
	if r := runPod(t, h, id, own, inPod("app", own, fallbackAnnotation+"=fail"), "sleep", "1000"); r.Code == 0 || !strings.Contains(r.Stderr, "signature: ") || !strings.Contains(r.Stderr, own) {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
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

// TestImageRestarted has a pod's container that the kubelet starts again: it is started, and restored where it asks for that.
func TestImageRestarted(t *testing.T) {
	path, before := pushedMarked(t, nil, "count")
	ref, own := shared.registry.Reference(path), shared.registry.Reference(path)
	frozen, _ := frozenAs(t, path)
	h := annotationHost(t, "restarted", shared.registry.Address)
	pullImage(t, h, own)
	heard := eventsOf(t, h)
	for _, test := range []struct {
		name        string
		annotations []string
		image       string
		warm        string // what it is restored from; empty: it is started
		says        string // why, if that is told
	}{
		{"first", []string{restartCount + "=0"}, own, own, ""},
		{"second", []string{restartCount + "=1"}, own, "", ""},
		{"restored", []string{restartCount + "=1", restartAnnotation + "=restore"}, own, own, ""},
		{"annotated", []string{restartCount + "=1", restoreAnnotation + "=" + ref}, lab.ImageName, "", "restart: "},
		{"annotated, restored", []string{restartCount + "=2", restoreAnnotation + "=" + ref, restartAnnotation + "=restore"}, lab.ImageName, ref, ""},
	} {
		id := name(t)
		must(t, runPod(t, h, id, test.image, inPod("app", test.image, test.annotations...), "workload", "count"))
		after := await(t, h, id)
		switch {
		case test.warm != "":
			goneOn(t, before, after)
			heard.warm(t, id, test.warm, frozen)
		case after.Life == before.Life:
			t.Errorf("%s: it was restored", test.name)
		case test.says != "":
			eventually(t, "the reason", 10*time.Second, func() bool {
				heard.mu.Lock()
				defer heard.mu.Unlock()
				return strings.HasPrefix(heard.reasons[id], test.says)
			})
		default:
			heard.nothing(t, id)
		}
		restoreOver(t, h)
		remove(t.Context(), h, id)
	}
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

// TestAnnotationUserMappings restores into a container with a user namespace, whose files containerd's client gives to other users.
func TestAnnotationUserMappings(t *testing.T) {
	maps := []string{"--uidmap", "0:100000:65536", "--gidmap", "0:200000:65536"}
	path, before := pushedMarked(t, maps, "count")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "usermaps", shared.registry.Address)
	id := name(t)
	must(t, runFrom(t, h, id, ref, maps, "workload", "count"))
	goneOn(t, before, await(t, h, id))
	if !marked(t, h, id) {
		t.Error("the root file system lacks what the snapshot's container had changed")
	}
	if r := must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "note", id, "stat", "-c", "%u:%g %a", "/.cryo", "/.cryo/restored.json")); r.Stdout != "0:0 755\n0:0 400\n" {
		t.Errorf("the file that says that it was restored: %s", r.Stdout)
	}
	restoreOver(t, h)
	remove(t.Context(), h, id)
	id = name(t)
	if r := runFrom(t, h, id, ref, []string{"--uidmap", "0:100001:65536", "--gidmap", "0:200000:65536"}, "workload", "count"); r.Code == 0 || !strings.Contains(r.Stderr, "user-mappings: ") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
	must(t, h.Cryo(t.Context(), "rm", ref))
}

// listener is a program that says which signal it has got.
const listener = `trap 'cat /.cryo/restored.json >/srv/told.new; mv /srv/told.new /srv/told' USR1; while :; do sleep 0.05; done`

// TestImagePod restores a container of a pod into another pod: with its network, hostname and files from the host, of all kinds that the kubelet mounts. The program hears of it, and reads
// what has changed.
func TestImagePod(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	path := "annotation/" + id + ":1"
	flags := newPod(t, a, "old")
	start := func(h *lab.Host, id, image string, flags ...string) {
		must(t, runPod(t, h, id, image, flags, "sh", "-c", listener))
	}
	start(a, id, lab.ImageName, append(flags, inPod("app", lab.ImageName)...)...)
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "mark", id, "sh", "-c", "echo kept >/emptydir/kept; touch "+marker))
	ref := shared.registry.Reference(path)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))
	own := ref
	frozen, byImage := frozenAs(t, path)

	h := annotationHost(t, "pod", shared.registry.Address)
	pullImage(t, h, own)
	flags = newPod(t, h, "new")
	heard := eventsOf(t, h)
	start(h, id, own, append(flags, inPod("app", own, signalAnnotation+"=SIGUSR1")...)...)
	heard.warm(t, id, own, frozen)
	in := func(command string) string {
		return must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", digest.FromString(command).Encoded()[:8], id, "sh", "-c", command)).Stdout
	}
	var note struct {
		Snapshot, Digest string
		Time             time.Time
		Hostname         struct{ Was, Is string }
		Environment      map[string]*string
		Annotations      map[string]*string
	}
	var told string
	eventually(t, "the signal", 30*time.Second, func() bool { told = in("cat /srv/told 2>/dev/null; true"); return told != "" })
	if err := json.Unmarshal([]byte(told), &note); err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	text := func(m map[string]*string, key string) string {
		if v := m[key]; v != nil {
			return *v
		}
		return ""
	}
	if note.Snapshot != byImage || note.Digest != frozen || time.Since(note.Time) > time.Hour || note.Hostname.Was != "old" || note.Hostname.Is != "new" ||
		text(note.Environment, "POD_NAME") != "new" || text(note.Annotations, "io.kubernetes.cri.image-name") != own {
		t.Errorf("the program reads %s", told)
	}
	for _, test := range []struct{ command, want string }{
		{"hostname", "new\n"}, {"cat /etc/hostname", "new\n"}, {"cat /etc/hosts", "new hosts\n"}, {"cat /etc/resolv.conf", "new resolver\n"}, {"cat /settings/value", "new settings\n"},
		{"cat /var/run/secrets/kubernetes.io/serviceaccount/token", "new token\n"}, {"ls /emptydir", ""}, {"echo end >/dev/termination-log", ""}, {"ls " + marker, marker + "\n"},
		{"touch /settings/x 2>/dev/null && echo written; true", ""}, {"touch /emptydir/x && echo written", "written\n"},
	} {
		if got := in(test.command); got != test.want {
			t.Errorf("%s: %q, want %q", test.command, got, test.want)
		}
	}
	if got := read(t, filepath.Join(h.Dir, "pods/new/termination-log")); got != "end\n" {
		t.Errorf("the message of its end is %q", got)
	}
	restoreOver(t, h)
	remove(t.Context(), h, id)
	must(t, h.Cryo(t.Context(), "rm", byImage))
}

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
