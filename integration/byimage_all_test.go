package integration

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

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
		{"unsigned, by default", "signature: ", "signature", own, nil, "[trust]", nil},
		{"unsigned", "signature: ", "signature", own, nil, "[trust]\ndefault = \"signed\"", nil},
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
