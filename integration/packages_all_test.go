package integration

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// packages gives the directory that "make packages" fills.
func packages(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../bin/packages")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "SHA256SUMS")); err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("no packages: run make packages")
		}
		t.Fatal("no packages: run make packages:", err)
	}
	return dir
}

// single is the only file of a pattern.
func single(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// output of a command of this machine.
func printed(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

// TestPackageFiles: the checksums are right; deb, rpm and archive have the same files, of which the programs say their version; and the packages ask for CRIU.
func TestPackageFiles(t *testing.T) {
	dir := packages(t)
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = dir
	if out, err := sums.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	deb, rpm := single(t, dir+"/cryo_*.deb"), single(t, dir+"/cryo-[0-9]*.rpm")
	files := map[string][]string{"deb": nil, "rpm": nil, "archive": nil}
	for line := range strings.Lines(printed(t, "dpkg-deb", "--contents", deb)) {
		if fields := strings.Fields(line); len(fields) > 5 && !strings.HasPrefix(line, "d") {
			files["deb"] = append(files["deb"], strings.TrimPrefix(fields[5], "."))
		}
	}
	for line := range strings.Lines(printed(t, "rpm", "--query", "--package", "--list", "--verbose", rpm)) {
		if fields := strings.Fields(line); !strings.HasPrefix(line, "d") {
			files["rpm"] = append(files["rpm"], fields[len(fields)-1])
		}
	}
	archive := single(t, dir+"/cryo-*.tar.gz")
	for line := range strings.Lines(printed(t, "tar", "-tzf", archive)) {
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, "/") {
			_, path, _ := strings.Cut(line, "/")
			files["archive"] = append(files["archive"], "/usr/"+path)
		}
	}
	files["archive"] = append(files["archive"], "/etc/cryo/config.toml") // of the packages alone
	for _, list := range files {
		slices.Sort(list)
	}
	if !slices.Equal(files["deb"], files["rpm"]) || !slices.Equal(files["deb"], files["archive"]) {
		t.Errorf("the packages have other files:\n%v\n%v\n%v", files["deb"], files["rpm"], files["archive"])
	}
	for _, path := range []string{
		"/usr/bin/containerd-shim-cryo-v1", "/usr/bin/cryo", "/usr/bin/cryo-guard", "/usr/bin/cryo-gpu-keeper", "/usr/lib/cryo/libcryo-gpu.so",
		"/usr/lib/systemd/system/containerd.service.d/cryo.conf", "/usr/lib/systemd/system/cryo-node.service", "/usr/share/bash-completion/completions/cryo", "/usr/share/zsh/site-functions/_cryo",
		"/usr/share/fish/vendor_completions.d/cryo.fish", "/usr/share/man/man1/cryo-restore.1", "/usr/share/man/man1/cryo-exit-codes.1", "/usr/share/doc/cryo/LICENSE",
		"/usr/share/cryo/contrib/criu/install", "/usr/share/cryo/contrib/containerd/cryo.toml", "/usr/share/cryo/contrib/kubernetes/daemonset.yaml", "/usr/share/cryo/contrib/examples/save-on-notice",
	} {
		if !slices.Contains(files["deb"], path) {
			t.Errorf("the packages lack %s", path)
		}
	}
	if depends := printed(t, "dpkg-deb", "--field", deb, "Depends"); !strings.Contains(depends, "criu (>= 4.2) | cryo-criu") {
		t.Errorf("the deb depends on %s", depends)
	}
	// No older ones come with it, which would not work.
	if recommends := printed(t, "dpkg-deb", "--field", deb, "Recommends"); recommends != "containerd.io (>= 2.0) | containerd (>= 2.0), containerd.io (>= 2.0) | runc (>= 1.2)\n" {
		t.Errorf("the deb recommends %s", recommends)
	}
	if recommends := printed(t, "rpm", "--query", "--package", "--recommends", rpm); recommends != "containerd >= 2.0\nrunc >= 1.2\n" {
		t.Errorf("the rpm recommends %s", recommends)
	}
	if requires := printed(t, "rpm", "--query", "--package", "--requires", rpm); !strings.Contains(requires, "(criu >= 4.2 or cryo-criu)") {
		t.Errorf("the rpm requires %s", requires)
	}
	if criu := printed(t, "rpm", "--query", "--package", "--list", single(t, dir+"/cryo-criu-*.rpm")); !strings.Contains(criu, "/opt/cryo/criu/bin/criu\n") {
		t.Errorf("the rpm of CRIU has\n%s", criu)
	}
	unpacked := t.TempDir()
	printed(t, "tar", "-xzf", archive, "-C", unpacked, "--strip-components=1")
	if out := printed(t, filepath.Join(unpacked, "bin/cryo"), "--version"); !strings.Contains(filepath.Base(archive), strings.Fields(out)[1]) {
		t.Errorf("%s holds %s", archive, out)
	}
}

// TestPackageInstalled installs the packages on a host that has nothing else of cryo, takes a snapshot there and restores it, and removes them again.
func TestPackageInstalled(t *testing.T) {
	dir := packages(t)
	h := bareHost(t)
	ctx := t.Context()
	cryo, criu := single(t, dir+"/cryo_*.deb"), single(t, dir+"/cryo-criu_*.deb")
	before := filesOf(t, h)
	if r := h.Run(ctx, "which", "cryo", "containerd-shim-cryo-v1", "criu"); r.Stdout != "" {
		t.Fatalf("the host has already %s", r.Stdout)
	}

	if r := h.Run(ctx, "dpkg", "--install", cryo); r.Code == 0 || !strings.Contains(r.Stderr, "criu (>= 4.2) | cryo-criu") {
		t.Errorf("without CRIU the package is installed: exit status %d, %s", r.Code, r.Stderr)
	}
	must(t, h.Run(ctx, "dpkg", "--install", criu, cryo))
	if len(filesOf(t, h)) < len(before)+30 {
		t.Fatal("the test does not see what the packages install")
	}
	if r := must(t, h.Run(ctx, "which", "cryo", "containerd-shim-cryo-v1")); r.Stdout != "/usr/bin/cryo\n/usr/bin/containerd-shim-cryo-v1\n" {
		t.Errorf("the programs are %s", r.Stdout)
	}
	for _, shell := range [][]string{{"bash", "-n", "/usr/share/bash-completion/completions/cryo"}, {"zsh", "-n", "/usr/share/zsh/site-functions/_cryo"}, {"fish", "-n", "/usr/share/fish/vendor_completions.d/cryo.fish"}} {
		if _, err := exec.LookPath(shell[0]); err == nil {
			must(t, h.Run(ctx, shell...))
		}
	}
	var found []struct{ Name, Status, Detail string }
	if err := json.Unmarshal([]byte(must(t, h.Cryo(ctx, "doctor", "--json")).Stdout), &found); err != nil {
		t.Fatal(err)
	}
	detail := map[string]string{}
	for _, f := range found {
		detail[f.Name] = f.Detail
	}
	if !strings.Contains(detail["criu"], "/opt/cryo/criu/bin/criu") || !strings.Contains(detail["shim"], "/usr/bin/containerd-shim-cryo-v1") || !strings.Contains(detail["configuration"], "/var/lib/cryo") {
		t.Errorf("the doctor found %v", detail)
	}

	id := name(t)
	start(t, h, id, nil, "workload", "count", "--memory", "8")
	was := await(t, h, id)
	must(t, h.Cryo(ctx, "checkpoint", id, "installed:1"))
	remove(ctx, h, id)
	must(t, h.Cryo(ctx, "restore", "installed:1"))
	goneOn(t, was, await(t, h, id))
	remove(ctx, h, id)
	must(t, h.Cryo(ctx, "rm", "installed:1"))
	must(t, h.Cryo(ctx, "prune"))

	must(t, h.Run(ctx, "dpkg", "--purge", "cryo", "cryo-criu"))
	for _, path := range filesOf(t, h) {
		if _, was := slices.BinarySearch(before, path); !was {
			t.Errorf("after removal there is %s", path)
		}
	}
}

// bareHost is a host whose PATH has nothing of what was built but the pinned daemons, no private CRIU, and directories of its own for all that packages write into.
func bareHost(t *testing.T) *lab.Host {
	t.Helper()
	bin := t.TempDir()
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(bin, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"containerd", "ctr", "runc", "registry", "workload"} {
		if err := os.Symlink(shared.lab.Tool(tool), filepath.Join(bin, "tools", tool)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := lab.Open(t.Context(), lab.Options{Bin: bin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, leak := range l.Leaks() {
			t.Error("left behind:", leak)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := l.Host(t.Context(), "bare", lab.HostOptions{NoCRIU: true, Env: []string{"CRYO_CONFIG=", "CRYO_ROOT="}})
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range own {
		upper := upperOf(h, of)
		must(t, h.Run(t.Context(), "mkdir", "-p", upper+"/upper", upper+"/work"))
		must(t, h.Run(t.Context(), "mount", "-t", "overlay", "own", "-o", "lowerdir="+of+",upperdir="+upper+"/upper,workdir="+upper+"/work", of))
	}
	must(t, h.Run(t.Context(), append([]string{"rm", "-rf"}, removed...)...))
	if err := h.Import(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// own are the directories that such a host has for itself; what is written there is gone with it.
var own = []string{"/usr", "/etc", "/opt", "/var/lib", "/var/cache", "/var/log"}

// filesOf lists what the host has in these directories, and in /run/cryo, that the machine has not, sorted: not what dpkg, man and ldconfig keep of all packages.
func filesOf(t *testing.T, h *lab.Host) (files []string) {
	t.Helper()
	books := regexp.MustCompile(`^(/var/lib/dpkg/|/var/cache/(man|ldconfig|debconf)/|/var/log/|/etc/ld\.so\.cache)`)
	list := func(root, at string, all bool) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			path = at + strings.TrimPrefix(path, root)
			whiteout := d.Type()&fs.ModeCharDevice != 0 // what the machine has and the host has not
			if _, err := os.Lstat(path); (all || err != nil || hidden(path)) && !whiteout && !books.MatchString(path) {
				files = append(files, path)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	for _, of := range own {
		list(filepath.Join(upperOf(h, of), "upper"), of, false)
	}
	list(filepath.Join(h.Dir, "run/cryo"), "/run/cryo", true)
	slices.Sort(files)
	return files
}

// removed are directories of cryo's that the machine may have, and that such a host begins without.
var removed = []string{"/opt/cryo", "/var/lib/cryo", "/etc/cryo"}

// hidden tells whether a path is in one of them, so that what the machine has there says nothing.
func hidden(path string) bool {
	return slices.ContainsFunc(removed, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}

// upperOf is where the host's own part of a directory is.
func upperOf(h *lab.Host, of string) string {
	return filepath.Join(h.Dir, "own", strings.ReplaceAll(of, "/", "-"))
}
