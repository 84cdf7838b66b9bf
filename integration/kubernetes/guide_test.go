package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// typed are commands of the guide, and what it shows that they print.
type typed struct {
	node   bool // for each node, not for the reader's own machine
	script string
	output []string
}

// guide reads what contrib/kubernetes/README.md has the reader type: the lines of its console blocks after $ or #, with what belongs to them.
func guide(t *testing.T) (all []typed) {
	t.Helper()
	text, err := os.ReadFile("../../contrib/kubernetes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		var now *typed
		within, goesOn := false, false // a here-document, a command
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSuffix(line, "\n")
			prompt, command, _ := strings.Cut(line, " ")
			switch {
			case within || goesOn:
				command = line
			case prompt == "$" || prompt == "#":
				if now == nil || now.node != (prompt == "#") {
					all = append(all, typed{node: prompt == "#"})
					now = &all[len(all)-1]
				}
			case now == nil:
				t.Fatalf("%q is no command", line)
			default:
				now.output = append(now.output, line)
				continue
			}
			now.script += command + "\n"
			within = within && line != "END" || strings.HasSuffix(command, "<<END")
			goesOn = strings.HasSuffix(command, `\`)
		}
	}
	return all
}

// pushRedis pushes an image of this machine's Redis and gives its reference.
func pushRedis(t *testing.T) string {
	t.Helper()
	if err := shared.A.ImportPrograms(t.Context(), "cryo.test/redis:8", []string{"redis-server"}, map[string]string{
		"redis-server": "/usr/bin/redis-check-rdb", "redis-cli": "/usr/bin/redis-cli", // one program by two names
	}); err != nil {
		t.Fatal(err)
	}
	ref, err := shared.A.Seed(t.Context(), shared.Registry, "cryo.test/redis:8")
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// pushCryo pushes what the Dockerfile makes.
func pushCryo(t *testing.T, to *lab.Registry) {
	t.Helper()
	const criu = "/opt/cryo/criu" // of contrib/criu/install
	if _, err := os.Stat(criu); err != nil {
		if os.Getenv("CI") == "" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	from := map[string]string{"share/containerd.toml": "../../contrib/containerd/cryo.toml", "lib/cryo/libcryo-gpu.so": shared.Lab.Tool("libcryo-gpu.so")}
	for _, name := range []string{"cryo", "containerd-shim-cryo-v1", "cryo-guard", "cryo-gpu-keeper"} {
		from["bin/"+name] = shared.Lab.Tool(name)
	}
	if err := filepath.WalkDir(criu, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			from["criu"+strings.TrimPrefix(path, criu)] = path
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var files []lab.File
	for to, from := range from {
		info, err := os.Stat(from)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, lab.File{Name: "opt/cryo/" + to, Mode: int64(info.Mode().Perm()), Content: read(t, from)})
	}
	layer, err := lab.Layer(files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := to.Push(t.Context(), "cryo:0.1.0", ocispec.ImageConfig{Entrypoint: []string{"/opt/cryo/bin/cryo"}}, layer); err != nil {
		t.Fatal(err)
	}
}

// TestGuide runs the commands of contrib/kubernetes/README.md on a node without cryo. Each must succeed and print the lines that the guide shows. The names of the registry and of images are
// replaced, the checkout is a symlink, the image is made of bin/ without docker, and helm is left out.
func TestGuide(t *testing.T) {
	registry, err := shared.Lab.Registry(t.Context(), "guide", lab.RegistryOptions{TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	pushCryo(t, registry)
	n, err := shared.Bare(t.Context(), registry)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(ctx context.Context, args ...string) { must(t, shared.Kubectl(ctx, args...)) }
	a, b := shared.A.Name, shared.B.Name
	t.Cleanup(func() {
		ctx := cleanupContext(t)
		if err := errors.Join(shared.Remove(ctx, n), shared.Apply(ctx, manifest(t, "runtimeclass.yaml")), registry.Stop()); err != nil {
			t.Error(err)
		}
		kubectl(ctx, "label", "node", a, b, "io.cryo.service-")
		kubectl(ctx, "uncordon", a, b)
	})
	kubectl(t.Context(), "label", "node", a, b, "io.cryo.service=systemd")
	kubectl(t.Context(), "cordon", a, b)
	before := labelsOf(t, n)
	checkout, err := lab.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replaced := strings.NewReplacer("registry.example.com", registry.Address, "docker.io/library/redis:8", pushRedis(t), "docker.io/library/busybox", shared.Base)
	own := fmt.Sprintf("set -e; cd %s; docker() { :; }; helm() { :; }; git() { ln -s %s cryo; }\n", dir, checkout)
	for _, c := range guide(t) {
		script := replaced.Replace(c.script)
		var r lab.Result
		if c.node {
			if strings.HasPrefix(script, "systemctl restart containerd") {
				asks(t)
			}
			r = n.Run(t.Context(), "bash", "-c", "set -e; systemctl() { :; }\n"+script)
			if strings.Contains(script, "systemctl restart containerd") {
				if err := n.RestartContainerd(t.Context(), syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
		} else {
			command := shared.Lab.Command(t.Context(), "bash", "-c", own+script)
			command.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig, "HOME="+dir, "PATH="+filepath.Dir(shared.Lab.Tool("kubernetes/kubectl"))+":"+os.Getenv("PATH"))
			r = lab.Finish(command)
		}
		t.Logf("%s(%.1f s)\n%s%s", script, r.Elapsed.Seconds(), r.Stdout, r.Stderr)
		if r.Code != 0 {
			log := shared.Kubectl(cleanupContext(t), "-n", "cryo-system", "logs", "-l", "app.kubernetes.io/name=cryo-node", "--all-containers", "--prefix")
			t.Fatalf("exit status %d; the pods of the DaemonSet say\n%s%s", r.Code, log.Stdout, log.Stderr)
		}
		printed := "\n"
		for line := range strings.Lines(r.Stdout) {
			printed += plain(line) + "\n"
		}
		for _, line := range c.output {
			if !strings.Contains(printed, "\n"+plain(replaced.Replace(line))+"\n") {
				t.Errorf("it does not print %q", line)
			}
		}
	}
	for name := range labelsOf(t, n) {
		if _, had := before[name]; !had {
			t.Errorf("the node still has the label %s", name)
		}
	}
	if r := n.Run(t.Context(), "sh", "-c", "ls -d /opt/cryo /etc/cryo /var/lib/cryo /etc/containerd/conf.d/cryo.toml"); r.Stdout != "" {
		t.Errorf("the node still has\n%s", r.Stdout)
	}
}

// plain is a line without what differs from run to run: numbers, and how wide columns are.
func plain(line string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`\d+`).ReplaceAllString(line, "0")), " ")
}

// asks waits until the installer asks for a restart of containerd.
func asks(t *testing.T) {
	t.Helper()
	eventually(t, "the installer's wish", func() bool {
		var pods struct{ Items []cluster.Pod }
		if err := shared.Get(t.Context(), "/api/v1/namespaces/cryo-system/pods", &pods); err != nil {
			return false
		}
		for _, p := range pods.Items {
			for _, s := range p.Status.InitContainerStatuses {
				if end := s.State.Terminated; end != nil && end.ExitCode == 4 {
					return true
				}
				if end := s.LastState.Terminated; end != nil && end.ExitCode == 4 {
					return true
				}
			}
		}
		return false
	})
}
