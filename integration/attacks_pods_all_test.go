package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// Here the attacker can create pods, or shares a directory with one. Other tests restore or send several snapshots at once.

// TestAttackVolume: an attacker shares a directory with a container that is being restored. When CRIU's images have been reviewed, it replaces a file that CRIU will open there by a
// symlink to a file of the host. The container must not run with that file.
func TestAttackVolume(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	volume := filepath.Join(b.Dir, "volumes", name(t))
	inside := filepath.Join(volume, "self")
	reset := func() {
		if err := os.RemoveAll(volume); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(inside, "exe"), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	reset()
	f := freezeImage(t, shared.image, []string{"--mount", "type=bind,src=" + volume + ",dst=/data,options=rbind:rw"}, []string{"files"})
	const ref = "cryo.test/forged-volume:1"
	newForger(t, f).forgeImages(t, b, ref, func(dir string) {
		rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
			i := slices.IndexFunc(all, func(e *fdinfo.FileEntry) bool { return strings.HasSuffix(e.GetReg().GetName(), "/read") })
			e := all[i].Reg
			e.Name, e.Flags, e.Size, e.Mode = proto.String("/data/self/exe"), proto.Uint32(unix.O_RDONLY), nil, proto.Uint32(unix.S_IFREG|0o755)
			return all
		})
	})
	restore := []string{"restore", ref, "--name", "forged", "--mount", volume + ":/data"}
	cleanup(t, b, "forged")
	must(t, b.Cryo(t.Context(), restore...)) // what it has open is the volume's
	remove(t.Context(), b, "forged")

	swapped := make(chan error, 1)
	go func() {
		relay := filepath.Join(b.Dir, "run/containerd/io.containerd.runtime.v2.task/default/forged/criu.sock") // the shim makes it when it has reviewed
		for end := time.Now().Add(time.Minute); !there(relay); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				swapped <- fmt.Errorf("%s did not come", relay)
				return
			}
		}
		err := os.Rename(inside, inside+"-before")
		if err == nil {
			err = os.Symlink("/proc/self", inside)
		}
		swapped <- err
	}()
	r := harmless(t, b, nil, 128<<20, restore...)
	if err := <-swapped; err != nil {
		t.Fatal(err)
	}
	refusal(t, r, codeAborted, "symbolic links") // CRIU's words
}

// TestAttackLabels: an image sets the labels with which an earlier cryo named a container's last snapshot. A new snapshot of such a container must not share segments with the snapshot that
// is named there, since it would then contain the memory of another container.
func TestAttackLabels(t *testing.T) {
	a, _ := pair(t)
	victim, id := name(t), name(t)+"-labelled"
	secret, ref := "cryo.test/"+victim+":1", "cryo.test/"+id+":1"
	away(t, secret)
	away(t, ref)
	start(t, a, victim, nil, "workload", "region", "--memory", "16")
	await(t, a, victim)
	must(t, a.Cryo(t.Context(), "checkpoint", victim, secret))
	remove(t.Context(), a, victim)
	d := inspect(t, a, secret).Digest.String()
	var labels []string
	for _, key := range []string{"io.cryo.snapshot", "io.cryo.checkpoint"} {
		labels = append(labels, "--label", key+"="+d)
	}
	start(t, a, id, labels, "workload", "region", "--memory", "16")
	await(t, a, id)
	var r taken
	if err := json.Unmarshal([]byte(must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--json")).Stdout), &r); err != nil {
		t.Fatal(err)
	}
	if r.Parent != "" || r.Shared != 0 {
		t.Errorf("it shares memory with the snapshot of another container: %+v", r)
	}
	remove(t.Context(), a, id)
}

// TestAttackAtOnce restores two containers from one image at once, on a host that has none of its snapshot, while cryo rm removes that snapshot again and again.
func TestAttackAtOnce(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	path := "atonce/" + id + ":1"
	ref := shared.registry.Reference(path)
	start(t, a, id, nil, "workload", "count", "--memory", "32")
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "mark", id, "touch", marker))
	before := await(t, a, id)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http", "--segment-size", "4MiB"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))
	h := annotationHost(t, "atonce", shared.registry.Address)
	pullImage(t, h, ref)
	for round := range 4 {
		ids := []string{fmt.Sprintf("%s-first%d", id, round), fmt.Sprintf("%s-other%d", id, round)}
		over := make(chan struct{})
		var removing, restoring sync.WaitGroup
		removing.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					for _, known := range strings.Fields(h.Cryo(t.Context(), "ls", "-q").Stdout) {
						h.Cryo(t.Context(), "rm", known) // the other command, or nobody, may have it by now
					}
				}
			}
		})
		for _, id := range ids {
			cleanup(t, h, id)
			restoring.Go(func() {
				if r := runPod(t, h, id, ref, inPod(id, ref, fallbackAnnotation+"=fail"), "workload", "count"); r.Code != 0 {
					t.Errorf("round %d: %s", round, r.Stderr)
				}
			})
		}
		restoring.Wait()
		for _, id := range ids {
			goneOn(t, before, await(t, h, id))
			if !marked(t, h, id) {
				t.Error("the root file system lacks what the snapshot's container had changed")
			}
		}
		restoreOver(t, h)
		close(over)
		removing.Wait()
		for _, id := range ids {
			if a := await(t, h, id); !a.OK {
				t.Errorf("round %d: %+v", round, a)
			}
			remove(t.Context(), h, id)
		}
	}
}

// TestAttackOneTag sends snapshots of two containers to one tag at once, several times. Each time, the tag must stand for one of the two snapshots and for that snapshot's image.
func TestAttackOneTag(t *testing.T) {
	h := newHost(t, "onetag", lab.HostOptions{})
	allowSending(t, h, "", shared.registry.Address)
	ref := shared.registry.Reference("send/" + name(t) + ":one")
	ids := []string{name(t) + "-a", name(t) + "-b"}
	for _, id := range ids {
		start(t, h, id, []string{"--annotation", sendAnnotation + "=" + ref}, "workload", "count", "--memory", "8")
		await(t, h, id)
	}
	for range 4 {
		var both sync.WaitGroup
		got := make([]sent, len(ids))
		for i, id := range ids {
			both.Go(func() { got[i] = sentBy(t, h, id) })
		}
		both.Wait()
		var index ocispec.Index
		var m ocispec.Manifest
		var config ocispec.Image
		if err := json.Unmarshal(fetched(t, ref), &index); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(index.Manifests, image.IsEntry)
		if len(index.Manifests) != 2 || i < 0 {
			t.Fatalf("the tag stands for %+v", index.Manifests)
		}
		frozen, made := index.Manifests[i].Digest, index.Manifests[1-i].Digest
		if err := json.Unmarshal(fetched(t, strings.TrimSuffix(ref, ":one")+"@"+made.String()), &m); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(blob(t, ref, m.Config.Digest), &config); err != nil {
			t.Fatal(err)
		}
		if named := config.Config.Labels["io.cryo.image.snapshot"]; named != frozen.String() || !slices.ContainsFunc(got, func(s sent) bool { return s.Digest == named }) {
			t.Errorf("%v were sent, the tag stands for %s, and the image beside it is of %s", got, frozen, named)
		}
	}
	for _, id := range ids {
		counts(t, h, id)
		remove(t.Context(), h, id)
	}
	keptNothing(t, h)
}
