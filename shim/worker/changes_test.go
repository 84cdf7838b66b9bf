package worker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
)

// TestChanges: a restored container has a file with what differs, also over that of an earlier restore, for its user.
func TestChanges(t *testing.T) {
	was := &specs.Spec{Process: &specs.Process{Env: []string{"A=1", "B=2", "GONE=x", "HOSTNAME=old"}}, Annotations: map[string]string{"same": "1", "other": "1"}}
	is := &specs.Spec{
		Process:     &specs.Process{Env: []string{"A=1", "B=3", "NEW=a=b", "HOSTNAME=new"}, User: specs.User{UID: 7, GID: 8}},
		Annotations: map[string]string{"same": "1", "other": "2", criu.Annotation: "/bundle/criu.conf"},
		Linux:       &specs.Linux{UIDMappings: []specs.LinuxIDMapping{{HostID: 1000, Size: 10}}, GIDMappings: []specs.LinuxIDMapping{{HostID: 2000, Size: 10}}},
	}
	n := Compare(was, is)
	n.Snapshot, n.Digest, n.Frozen = "r:1", digest.FromString("x"), time.Now().Add(-time.Minute)
	n.Complete([]string{"192.0.2.1/24"}, nil)
	text := func(m map[string]*string) string {
		b, _ := json.Marshal(m)
		return string(b)
	}
	if got, want := text(n.Environment), `{"B":"3","GONE":null,"HOSTNAME":"new","NEW":"a=b"}`; got != want {
		t.Errorf("environment %s, want %s", got, want)
	}
	if got, want := text(n.Annotations), `{"other":"2"}`; got != want {
		t.Errorf("annotations %s, want %s", got, want)
	}
	if n.Hostname.Was != "old" || n.Hostname.Is != "new" || n.Time.IsZero() || n.Generation < 1 || n.Generation > 1<<53 || n.Pause < 60 || n.GPUs == nil || n.Version != 1 {
		t.Errorf("%+v", n)
	}
	if other := Compare(was, is); generation() == n.Generation || other.Pause != 0 {
		t.Errorf("%+v", other)
	}
	root, uid, gid := t.TempDir(), os.Getuid(), os.Getgid()
	if uid != 0 {
		is.Linux = nil
		is.Process.User = specs.User{UID: uint32(uid), GID: uint32(gid)}
	} else {
		uid, gid = 1007, 2008
	}
	for range 2 {
		if err := n.Write(root, is); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(root, ChangesPath))
	if err != nil || info.Mode() != 0o400 || owner(info) != [2]int{uid, gid} {
		t.Fatalf("%v, %v", info, err)
	}
	data, err := os.ReadFile(filepath.Join(root, ChangesPath))
	var read Changes
	if err != nil || json.Unmarshal(data, &read) != nil || read.Snapshot != "r:1" || *read.Environment["B"] != "3" {
		t.Errorf("%s, %v", data, err)
	}
}

// TestChangesHostile: an image's links lead nowhere else, and what is in the way is said.
func TestChangesHostile(t *testing.T) {
	elsewhere := t.TempDir()
	for name, prepare := range map[string]func(root string) error{
		"a link out": func(root string) error { return os.Symlink(elsewhere, filepath.Join(root, ".cryo")) },
		"a file":     func(root string) error { return os.WriteFile(filepath.Join(root, ".cryo"), nil, 0o600) },
		"a link up": func(root string) error {
			return os.Symlink("../../../../../../../../"+elsewhere, filepath.Join(root, ".cryo"))
		},
		"a directory in": func(root string) error { return os.MkdirAll(filepath.Join(root, ChangesPath, "x"), 0o755) },
	} {
		root := t.TempDir()
		if err := prepare(root); err != nil {
			t.Fatal(err)
		}
		if err := Compare(&specs.Spec{}, &specs.Spec{}).Write(root, &specs.Spec{}); !errdefs.IsFailedPrecondition(err) || failure.Hint(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The file itself is replaced, not followed.
	root := t.TempDir()
	target := filepath.Join(elsewhere, "target")
	if err := os.WriteFile(target, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, ".cryo"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(root, ChangesPath)); err != nil {
		t.Fatal(err)
	}
	if err := Compare(&specs.Spec{}, &specs.Spec{}).Write(root, &specs.Spec{Process: &specs.Process{User: specs.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}}}); err != nil {
		t.Error(err)
	}
	if kept, _ := os.ReadFile(target); string(kept) != "kept" {
		t.Errorf("a file elsewhere is %q", kept)
	}
	if entries, _ := os.ReadDir(elsewhere); len(entries) != 1 {
		t.Errorf("elsewhere is %v", entries)
	}
}

func owner(info os.FileInfo) [2]int {
	s := info.Sys().(*syscall.Stat_t)
	return [2]int{int(s.Uid), int(s.Gid)}
}
