package integration

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/cryo-project/cryo/integration/lab"
)

var corpusAdd = flag.String("corpus-add", "", "a release, of which TestCorpus adds snapshots to integration/corpus")

const (
	corpusImage = "cryo.test/corpus:1"
	corpusDir   = "corpus/format-1"
)

// TestCorpus restores a snapshot of every release: see corpus/README.md.
func TestCorpus(t *testing.T) {
	if *corpusAdd != "" {
		addToCorpus(t, filepath.Join(corpusDir, *corpusAdd))
	}
	releases, err := os.ReadDir(corpusDir)
	if err != nil || len(releases) == 0 {
		t.Fatalf("no releases in %s: %v", corpusDir, err)
	}
	for name, o := range corpusHosts(t) {
		h := newHost(t, "corpus-"+name, o)
		for _, r := range releases {
			t.Run(r.Name()+" "+name, func(t *testing.T) {
				dir, err := filepath.Abs(filepath.Join(corpusDir, r.Name()))
				if err != nil {
					t.Fatal(err)
				}
				must(t, h.Ctr(t.Context(), "images", "import", "--snapshotter", "overlayfs", filepath.Join(dir, "image.tar")))
				id := "corpus-" + r.Name()
				cleanup(t, h, id)
				// The program uses no features of a processor that another may lack.
				must(t, h.Cryo(t.Context(), "restore", "oci-archive:"+filepath.Join(dir, name+".tar"), "--name", id, "--force", "cpu-features", "--force", "xsave-size"))
				ticks := func() int {
					out := must(t, h.Cryo(t.Context(), "logs", id)).Stdout
					if strings.Contains(out, "wrong") {
						t.Fatalf("its memory is another: %s", out)
					}
					n := tick.FindAllStringSubmatch(out, -1)
					if n == nil {
						return 0
					}
					last, err := strconv.Atoi(n[len(n)-1][1])
					if err != nil {
						t.Fatal(err)
					}
					return last
				}
				eventually(t, "a word", 10*time.Second, func() bool { return ticks() > 0 })
				first := ticks()
				if first <= corpusTicks {
					t.Errorf("it begins anew: %d", first)
				}
				eventually(t, "more", 10*time.Second, func() bool { return ticks() > first+2 })
				remove(t.Context(), h, id)
			})
		}
	}
}

var tick = regexp.MustCompile(`(?m)^(\d+) sound$`)

// corpusTicks is how often the program has spoken at least before its snapshot.
const corpusTicks = 20

// corpusHosts are hosts of both versions of cgroups, if the machine has v1.
func corpusHosts(t *testing.T) map[string]lab.HostOptions {
	t.Helper()
	hosts := map[string]lab.HostOptions{"cgroup2": {Unified: true}}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); errors.Is(err, os.ErrNotExist) {
		hosts["cgroup1"] = lab.HostOptions{}
	}
	return hosts
}

func addToCorpus(t *testing.T, dir string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ticker")
	if out, err := exec.Command("gcc", "-Os", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-mno-sse", "-s", "-Wl,--build-id=none", "-o", program, "corpus/ticker.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err) // what is there stays
	}
	image := filepath.Join(dir, "image.tar")
	if err := lab.WriteImage(image, corpusImage, []string{"/ticker"}, []lab.File{{Name: "ticker", Mode: 0o755, Content: content}}); err != nil {
		t.Fatal(err)
	}
	for name, o := range corpusHosts(t) {
		h := newHost(t, "corpus-add-"+name, o)
		must(t, h.Ctr(t.Context(), "images", "import", "--snapshotter", "overlayfs", image))
		id := "corpus"
		cleanup(t, h, id)
		c, ctx := client(t, h), inDefault(t) // ctr asks for controllers that a host with cgroup v2 may lack here
		img, err := c.GetImage(ctx, corpusImage)
		if err != nil {
			t.Fatal(err)
		}
		container, err := c.NewContainer(ctx, id, containerd.WithImage(img), containerd.WithNewSnapshot(id, img),
			containerd.WithNewSpec(oci.WithImageConfig(img), oci.WithoutRunMount), containerd.WithRuntime(cryoRuntime, nil))
		if err != nil {
			t.Fatal(err)
		}
		task, err := container.NewTask(ctx, cio.LogFile(logFile(h, id)))
		if err == nil {
			err = task.Start(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep((corpusTicks + 5) * 100 * time.Millisecond)
		must(t, h.Cryo(t.Context(), "checkpoint", id, "corpus/ticker:1"))
		remove(t.Context(), h, id)
		made := filepath.Join(h.Dir, name+".tar")
		must(t, h.Cryo(t.Context(), "push", "corpus/ticker:1", "oci-archive:"+made))
		whole, err := os.ReadFile(made)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".tar"), whole, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(whole) > 512<<10 {
			t.Errorf("%s has %d bytes", name, len(whole))
		}
		must(t, h.Cryo(t.Context(), "rm", "corpus/ticker:1"))
	}
}
