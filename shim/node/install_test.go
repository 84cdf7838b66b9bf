package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/config"
)

// machine is a tree of a machine, and the directory to install from.
type machine struct {
	InstallOptions
	t        *testing.T
	imports  bool // its containerd reads conf.d
	restarts int
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, imports: true, InstallOptions: InstallOptions{Host: t.TempDir(), From: t.TempDir()}}
	m.Run = m.run
	text, err := os.ReadFile("../../contrib/containerd/cryo.toml")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"bin/cryo": "program", "bin/containerd-shim-cryo-v1": "shim", "criu/lib/libc.so.6": "c", "share/containerd.toml": string(text)} {
		m.put(filepath.Join(m.From, name), content, 0o755)
	}
	if err := os.Symlink("libc.so.6", filepath.Join(m.From, "criu/lib/libc.so")); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) put(path, content string, mode os.FileMode) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) start() {
	time.Sleep(10 * time.Millisecond) // the clock of files
	m.put(filepath.Join(m.Host, socket), "", 0o600)
}

func (m *machine) run(_ context.Context, program string, args ...string) ([]byte, error) {
	switch program + " " + strings.Join(args, " ") {
	case "containerd config dump":
		if !m.imports {
			return []byte("version = 4\n"), nil
		}
		return os.ReadFile(filepath.Join(m.Host, dropIn))
	case "systemctl restart containerd":
		m.restarts++
		m.start()
		return nil, nil
	}
	return nil, errors.New("no such program")
}

func (m *machine) install() (*InstallResult, error) { return Install(m.t.Context(), m.InstallOptions) }

// files lists what the machine has.
func (m *machine) files() (all []string) {
	_ = filepath.WalkDir(m.Host, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, m.Host))
		}
		return err
	})
	return all
}

func TestInstall(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.Configuration = filepath.Join(t.TempDir(), "config.toml")
	m.put(m.Configuration, "root = '/var/lib/cryo'", 0o600)
	for range 2 { // the second time nothing is left to do but that
		if _, err := m.install(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "until it is restarted") {
			t.Fatal(err)
		}
	}
	want := []string{"/etc/containerd/conf.d/cryo.toml", "/etc/containerd/config.toml", "/etc/cryo/config.toml", "/opt/cryo/bin/containerd-shim-cryo-v1", "/opt/cryo/bin/cryo", "/opt/cryo/criu/lib/libc.so", "/opt/cryo/criu/lib/libc.so.6", "/opt/cryo/share/containerd.toml", socket}
	if got := m.files(); !slices.Equal(got, want) {
		t.Errorf("it has %q", got)
	}
	m.Restart = true
	r, err := m.install()
	if err != nil || !r.Restarted || len(r.Changed) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	m.put(filepath.Join(m.From, "bin/cryo"), "new program", 0o755)
	old, err := os.Open(filepath.Join(m.Host, InstallDir, "bin/cryo"))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if r, err = m.install(); err != nil || r.Restarted || !slices.Equal(r.Changed, []string{InstallDir + "/bin/cryo"}) {
		t.Errorf("a new program: %+v, %v", r, err)
	}
	was := make([]byte, 20)
	if n, err := old.Read(was); err != nil || string(was[:n]) != "program" {
		t.Errorf("who runs the old program has %q, %v", was[:n], err)
	}
	if m.restarts != 1 {
		t.Errorf("containerd was restarted %d times", m.restarts)
	}
	text, err := os.ReadFile(filepath.Join(m.Host, dropIn))
	if err != nil || !strings.Contains(string(text), "runtime_path = '/opt/cryo/bin/containerd-shim-cryo-v1'") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestInstallRefused: what containerd does not read is not left.
func TestInstallRefused(t *testing.T) {
	m := newMachine(t)
	m.imports, m.Restart = false, true
	mine := filepath.Join(m.Host, main)
	m.put(mine, "version = 3\n", 0o600)
	for _, left := range []bool{false, true} { // by one that was killed
		if left {
			m.put(filepath.Join(m.Host, dropIn), "x", 0o644)
		}
		_, err := m.install()
		var hint interface{ Hint() string }
		if !errdefs.IsFailedPrecondition(err) || !errors.As(err, &hint) || !strings.Contains(hint.Hint(), imports) {
			t.Errorf("%v", err)
		}
		if slices.Contains(m.files(), dropIn) || m.restarts > 0 {
			t.Errorf("it has %q, and %d restarts", m.files(), m.restarts)
		}
	}
	if text, err := os.ReadFile(mine); err != nil || string(text) != "version = 3\n" {
		t.Errorf("its own file is %q, %v", text, err)
	}
	m.Run = func(context.Context, string, ...string) ([]byte, error) {
		return []byte("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.cryo]\nruntime_path = '/usr/bin/other'"), nil
	}
	if _, err := m.install(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "has the program /usr/bin/other") || slices.Contains(m.files(), dropIn) {
		t.Errorf("%v: it has %q", err, m.files())
	}
	m.Run = func(context.Context, string, ...string) ([]byte, error) { return nil, errors.New("exit status 1") }
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); err == nil || slices.Contains(m.files(), main) {
		t.Errorf("%v: it has %q", err, m.files())
	}
}

// TestInstallConfiguration: one that cannot be read does not take the place of the machine's.
func TestInstallConfiguration(t *testing.T) {
	m := newMachine(t)
	m.start()
	its := filepath.Join(m.Host, config.Path)
	m.put(its, "# its own", 0o644)
	m.Configuration = filepath.Join(t.TempDir(), "config.toml")
	m.put(m.Configuration, "rot = '/x'", 0o600)
	if _, err := m.install(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "there is no key rot") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(its); err != nil || string(text) != "# its own" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestInstallOutside: a symlink of the machine's that leads elsewhere from here is not followed.
func TestInstallOutside(t *testing.T) {
	m := newMachine(t)
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(m.Host, "opt")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); err == nil {
		t.Error("installed")
	}
	if all, err := os.ReadDir(elsewhere); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}
