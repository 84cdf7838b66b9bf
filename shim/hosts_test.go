package shim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/shim/worker"
)

// member makes a container that is a member of a group, whose root file system is empty.
func member(t *testing.T, spec *specs.Spec, addresses map[string]string) (c *container, root string) {
	t.Helper()
	root = t.TempDir()
	spec.Root = &specs.Root{Path: root}
	c = &container{bundle: bundle{dir: t.TempDir()}, request: &taskAPI.CreateTaskRequest{ID: "c"}, restore: t.TempDir()}
	c.prepared = worker.Prepared{Etc: t.TempDir(), Together: &worker.Together{Addresses: addresses}}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.bundle.dir, specFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return c, root
}

func bind(source, destination string) specs.Mount {
	return specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"rbind"}}
}

// TestRenewHosts: the container's own file has the new addresses, and no other file has. The two addresses are exchanged.
func TestRenewHosts(t *testing.T) {
	const was = "127.0.0.1 localhost\n10.0.0.1\ta a.example # 10.0.0.2\n10.0.0.2 b\n10.0.0.11 c10.0.0.1\n2001:DB8:0:0::1\td\n#10.0.0.1\n"
	const is = "127.0.0.1 localhost\n10.0.0.2\ta a.example # 10.0.0.1\n10.0.0.1 b\n10.0.0.11 c10.0.0.1\n2001:db8::123\td\n#10.0.0.2\n"
	addresses := map[string]string{"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1", "2001:db8::1": "2001:db8::123"}
	outside := filepath.Join(t.TempDir(), "hosts")
	spec := &specs.Spec{}
	c, root := member(t, spec, addresses)
	own, made := filepath.Join(root, "etc/hosts"), filepath.Join(c.prepared.Etc, "hosts")
	write := func(t *testing.T, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(was), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		mounts  []specs.Mount
		link    string // that the root file system has in the place of the file
		renewed string // the only file that is changed; empty: none
	}{
		"of the root file system": {renewed: own},
		"that cryo has made":      {mounts: []specs.Mount{bind("/elsewhere", "/etc/hosts"), bind(made, "/etc/hosts")}, renewed: made},
		"of the host":             {mounts: []specs.Mount{bind(outside, "/etc/hosts")}},
		"hidden":                  {mounts: []specs.Mount{bind(t.TempDir(), "/etc/")}},
		"a link within":           {link: "../real", renewed: filepath.Join(root, "real")},
		"a link to the host":      {link: outside},
		"a link upwards":          {link: "../../../../../../../../../.." + outside},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(filepath.Join(root, "etc")); err != nil {
				t.Fatal(err)
			}
			files := []string{own, made, outside, filepath.Join(root, "real")}
			for _, f := range files {
				write(t, f)
			}
			if test.link != "" {
				if err := os.Remove(own); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(test.link, own); err != nil {
					t.Fatal(err)
				}
				files = files[1:]
			}
			spec.Mounts = test.mounts
			var before, after unix.Stat_t
			if test.renewed != "" {
				if err := unix.Stat(test.renewed, &before); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.renewHosts(spec); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				want := was
				if f == test.renewed {
					want = is
				}
				if got, err := os.ReadFile(f); err != nil || string(got) != want {
					t.Errorf("%s is %q, %v, want %q", f, got, err, want)
				}
			}
			if test.renewed != "" {
				if err := unix.Stat(test.renewed, &after); err != nil || before.Ino != after.Ino || after.Mode != before.Mode {
					t.Errorf("it is another file: %v, %v, %v", before, after, err)
				}
			}
		})
	}
}

// TestRenewHostsLeaves: a pipe does not hold a restore up, a container without the file has none made, and one that is restored alone keeps its file.
func TestRenewHostsLeaves(t *testing.T) {
	c, root := member(t, &specs.Spec{}, map[string]string{"10.0.0.1": "10.0.0.2"})
	spec, err := c.bundle.spec()
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(root, "etc/hosts")
	if err := c.renewHosts(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Dir(at)); !os.IsNotExist(err) {
		t.Errorf("a directory was made: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.renewHosts(spec); err != nil {
		t.Error(err)
	}
	const text = "10.0.0.1 a\n"
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.prepared.Together = nil
	if err := c.renewHosts(spec); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(at); err != nil || string(got) != text {
		t.Errorf("the file of a container that is alone is %q, %v", got, err)
	}
}
