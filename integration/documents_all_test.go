package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The commands of README.md and contrib/examples are run as they are written, on hosts that have what README.md says. Only names of registries and
// images are replaced: the registry is the lab's, which these hosts trust as they would one on the internet.

// typed is a command of a document, and what it prints there.
type typed struct {
	host, command string
	output        []string
}

// console collects the commands of a document's console blocks: lines that begin with the name of a host and #.
func console(t *testing.T, document string) (all []typed) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", document))
	if err != nil {
		t.Fatal(err)
	}
	prompt := regexp.MustCompile(`^(\w+)# (.+)$`)
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimRight(line, "\n")
			if m := prompt.FindStringSubmatch(line); m != nil {
				all = append(all, typed{host: m[1], command: m[2]})
			} else if len(all) == 0 {
				t.Fatalf("%s: %q is no command", document, line)
			} else {
				last := &all[len(all)-1]
				last.output = append(last.output, line)
			}
		}
	}
	return all
}

// plain is a line without what differs from run to run: numbers, and how wide columns are.
func plain(line string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`\d+`).ReplaceAllString(line, "0")), " ")
}

// stage is what the commands of a document run on.
type stage struct {
	hosts    map[string]*lab.Host
	registry *lab.Registry
	replaced *strings.Replacer
}

// newStage starts a registry with TLS and two hosts with GPUs that trust it. The names of images, on the left, stand for those of images that the first
// host has, on the right.
func newStage(t *testing.T, images map[string]string) *stage {
	t.Helper()
	s := &stage{hosts: map[string]*lab.Host{}, registry: newRegistry(t, "documents-"+name(t), lab.RegistryOptions{TLS: true})}
	for which, gpus := range map[string]lab.GPUs{"first": gpusOfA, "second": gpusOfB} {
		s.hosts[which] = newHost(t, which+"-"+name(t), lab.HostOptions{GPUs: &gpus, Env: []string{"SSL_CERT_FILE=" + s.registry.CA}})
	}
	first := s.hosts["first"]
	if err := first.ImportGPU(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.ImportPrograms(t.Context(), "cryo.test/redis:alpine", []string{"redis-server"}, map[string]string{
		"redis-server": "/usr/bin/redis-check-rdb", "redis-cli": "/usr/bin/redis-cli", // one program by two names
	}); err != nil {
		t.Fatal(err)
	}
	var replaced []string
	for public, ours := range images {
		if _, err := first.Seed(t.Context(), s.registry, ours); err != nil {
			t.Fatal(err)
		}
		replaced = append(replaced, public, s.registry.Reference(path.Base(ours)))
	}
	// The first that fits counts. The server is fakeapp of integration/fakecuda, with as much device memory as is handed over.
	replaced = append([]string{"registry.example.com/llm:1 llm", s.registry.Reference(path.Base(lab.GPUImageName)) + " llm /fake/fakeapp --quiet --blocks 3,40"}, replaced...)
	s.replaced = strings.NewReplacer(append(replaced, "registry.example.com", s.registry.Address)...)
	return s
}

// run types a document's commands one after the other. Each must succeed, and print the lines that the document shows. after is called after each command.
func (s *stage) run(t *testing.T, document string, env []string, after func(ctx context.Context, c typed)) *recording {
	t.Helper()
	seen := new(recording)
	all := console(t, document)
	if len(all) < 4 {
		t.Fatalf("%s has %d commands", document, len(all))
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		h := s.hosts[c.host]
		if h == nil {
			t.Fatalf("%s: there is no host %s", document, c.host)
		}
		command := h.Command(t.Context(), "bash", "-c", `cd "$0" && eval "$1"`, root, s.replaced.Replace(c.command))
		command.Env = append(command.Env, env...)
		r := lab.Finish(command)
		t.Logf("%s# %s (%.1f s)\n%s%s", c.host, c.command, r.Elapsed.Seconds(), r.Stdout, r.Stderr)
		if r.Code != 0 {
			t.Fatalf("%s: exit status %d", document, r.Code)
		}
		printed := "\n"
		for line := range strings.Lines(r.Stdout) {
			printed += plain(line) + "\n"
		}
		for _, line := range c.output {
			if !strings.Contains(printed, "\n"+plain(line)+"\n") {
				t.Errorf("%s: it does not print %q", document, line)
			}
		}
		text := r.Stdout + r.Stderr
		for name, ours := range public {
			text = strings.ReplaceAll(text, s.registry.Reference(path.Base(ours)), name)
		}
		seen.add(c.host, c.command, published(text, s.registry.Address, "registry.example.com"), r.Elapsed)
		if after != nil {
			after(t.Context(), c)
		}
	}
	return seen
}

// clear removes what a document leaves.
func (s *stage) clear(t *testing.T) {
	t.Helper()
	for _, h := range s.hosts {
		for id := range strings.Lines(h.Ctr(cleanupContext(t), "containers", "ls", "-q").Stdout) {
			remove(cleanupContext(t), h, strings.TrimSpace(id))
		}
	}
}

// public are the images that the documents name, and what there is in their place.
var public = map[string]string{
	"docker.io/library/redis:alpine": "cryo.test/redis:alpine", // the Redis of this machine, in an image of the lab's
	"registry.example.com/llm:1":     lab.GPUImageName,
}

// TestDocuments runs the tour of README.md, the web cache and the model server.
func TestDocuments(t *testing.T) {
	s := newStage(t, public)
	for _, document := range []string{"README.md", "contrib/examples/web-cache.md", "contrib/examples/model-server.md"} {
		t.Run(path.Base(document), func(t *testing.T) {
			defer s.clear(t)
			seen := s.run(t, document, nil, func(ctx context.Context, c typed) {
				// As a reader would, wait until a server that was just started answers.
				if strings.HasPrefix(c.command, "ctr run") && strings.HasSuffix(c.command, " cache") {
					h := s.hosts[c.host]
					eventually(t, "Redis answers", 10*time.Second, func() bool {
						return h.Ctr(ctx, "tasks", "exec", "--exec-id", name(t), "cache", "redis-cli", "ping").Code == 0
					})
				} else if strings.HasPrefix(c.command, "ctr run") {
					id := c.command[strings.LastIndexByte(c.command, ' ')+1:]
					await(t, s.hosts[c.host], id)
				}
			})
			if document == "README.md" {
				seen.record(t)
			}
		})
	}
}

// TestBatchJob runs the batch job with the metadata service of each cloud: the script saves nothing before the notice, and afterwards the job goes on elsewhere.
func TestBatchJob(t *testing.T) {
	s := newStage(t, map[string]string{"docker.io/library/job:1": lab.ImageName})
	first, second := s.hosts["first"], s.hosts["second"]
	for _, cloud := range []string{"aws", "gcp", "azure"} {
		t.Run(cloud, func(t *testing.T) {
			defer s.clear(t)
			var asked atomic.Int32
			metadata := httptest.NewUnstartedServer(notices(cloud, &asked))
			listener, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			metadata.Listener.Close()
			metadata.Listener = listener
			metadata.Start()
			defer metadata.Close()
			var before lab.Answer
			s.replaced = strings.NewReplacer("docker.io/library/job:1", s.registry.Reference("base:1"), "registry.example.com", s.registry.Address, "save-on-notice aws", "save-on-notice "+cloud)
			s.run(t, "contrib/examples/batch-job.md", []string{"METADATA=" + metadata.URL, "EVERY=0.2"}, func(_ context.Context, c typed) {
				switch {
				case strings.HasPrefix(c.command, "ctr run"):
					before = await(t, first, "job")
				case strings.Contains(c.command, "save-on-notice"):
					if n := asked.Load(); n < 3 {
						t.Errorf("the script did not wait for the notice: it asked %d times", n)
					}
					if out := first.Ctr(t.Context(), "tasks", "ls").Stdout; strings.Contains(out, "RUNNING") {
						t.Errorf("the job still runs on the first host:\n%s", out)
					}
				}
			})
			goneOn(t, before, await(t, second, "job"))
			eventually(t, "the end of the pull", 30*time.Second, func() bool { // which a restore does not wait for
				return second.Cryo(t.Context(), "rm", s.registry.Reference("snapshots/job:spot")).Code == 0
			})
		})
	}
}

// notices is the metadata service of a cloud. It gives notice when it is asked for the third time.
func notices(cloud string, asked *atomic.Int32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case cloud == "aws" && r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
			fmt.Fprint(w, "secret")
		case cloud == "aws" && r.URL.Path == "/latest/meta-data/spot/instance-action" && r.Header.Get("X-aws-ec2-metadata-token") == "secret":
			if asked.Add(1) < 3 {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, `{"action": "terminate", "time": "2026-11-25T17:00:00Z"}`)
		case cloud == "gcp" && r.URL.Path == "/computeMetadata/v1/instance/preempted" && r.Header.Get("Metadata-Flavor") == "Google":
			fmt.Fprint(w, strings.ToUpper(fmt.Sprint(asked.Add(1) >= 3)))
		case cloud == "azure" && r.URL.Path == "/metadata/scheduledevents" && r.Header.Get("Metadata") == "true" && r.URL.Query().Get("api-version") != "":
			events := ""
			if asked.Add(1) >= 3 {
				events = `{"EventId": "1", "EventType": "Preempt", "ResourceType": "VirtualMachine"}`
			}
			fmt.Fprintf(w, `{"DocumentIncarnation": 1, "Events": [%s]}`, events)
		default:
			http.Error(w, "not so", http.StatusBadRequest)
		}
	})
}
