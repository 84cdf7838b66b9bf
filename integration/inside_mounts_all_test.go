package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestInsideMounts has files open in a directory of the host's, and a single file of the host's. On the other host they
// come from where the flags of restore say; without any, nothing of that host is given away. What that host mounts below
// the directory later is seen as in a container that it has started itself.
func TestInsideMounts(t *testing.T) {
	a, b := pair(t)
	for _, test := range []struct {
		name  string
		other bool     // another source on the other host; else it is the same, as on a shared file system
		mount []string // what the other host mounts there before
		sees  bool     // what it mounts later
	}{
		{"mount", true, []string{"mount -t tmpfs data $0/data"}, true}, // no longer are both on one file system
		{"private", true, []string{"mount --bind $0 $0", "mount --make-private $0"}, false},
		{"allow", false, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := journey{id: name(t)}
			from := filepath.Join(a.Dir, "volumes", j.id)
			to := from
			if test.other {
				to = filepath.Join(b.Dir, "volumes", j.id)
			}
			settings(t, from, "here")
			j.run = []string{"--mount", "type=bind,src=" + from + "/data,dst=/data,options=rbind:rw",
				"--mount", "type=bind,src=" + from + "/settings,dst=/etc/settings,options=rbind:ro"}
			j.between = func() {
				if test.other {
					settings(t, to, "there")
					for _, command := range test.mount {
						must(t, b.Run(t.Context(), "sh", "-c", command, to))
					}
					t.Cleanup(func() { must(t, b.Run(cleanupContext(t), "sh", "-c", "umount $0 || umount $0/data", to)) })
					must(t, b.Run(t.Context(), "cp", "-a", from+"/data", to))
				}
				if r := b.Cryo(t.Context(), "restore", j.ref(), "--plain-http", "--name", j.id); r.Code != 7 || !strings.Contains(r.Stderr, "/data") {
					t.Errorf("restore without a word on mounts: exit status %d: %s", r.Code, r.Stderr)
				}
			}
			j.restore = []string{"--allow", "mounts"}
			want := "here\n"
			if test.other {
				j.restore = []string{"--mount", "type=bind,src=" + to + "/data,dst=/data", "--mount", "type=bind,src=" + to + "/settings,dst=/etc/settings"}
				want = "there\n"
			}
			travel(t, j, "volumes", "/data")
			if r := must(t, b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "x", j.id, "cat", "/etc/settings")); r.Stdout != want {
				t.Errorf("the file mounted from the host is %q, want %q", r.Stdout, want)
			}
			// What the container writes arrives on the host.
			must(t, b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "y", j.id, "touch", "/data/new"))
			if _, err := os.Stat(filepath.Join(b.Root(), to, "data/new")); err != nil {
				t.Error(err)
			}
			if r := b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "z", j.id, "touch", "/etc/settings"); r.Code == 0 {
				t.Error("the read-only mount can be written")
			}
			later := filepath.Join(to, "data/later")
			must(t, b.Run(t.Context(), "sh", "-c", "mkdir $0 && mount -t tmpfs later $0 && touch $0/mounted", later))
			t.Cleanup(func() { must(t, b.Run(cleanupContext(t), "umount", later)) })
			if r := b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "l", j.id, "ls", "/data/later"); r.Code != 0 || strings.Contains(r.Stdout, "mounted") != test.sees {
				t.Errorf("what the host has mounted later: exit status %d: %s%s", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
}

// TestInsideMountsStay has a directory of the host's, below which the host has mounted something, in a container. The host keeps that, whatever becomes of the
// container's mounts: it has a shared /, as systemd makes it.
func TestInsideMountsStay(t *testing.T) {
	a, b := pair(t)
	for _, options := range []string{"bind:ro", "bind:rw"} {
		t.Run(strings.ReplaceAll(options, ":", "-"), func(t *testing.T) {
			id := name(t)
			source := filepath.Join(a.Dir, "volumes", id) // as on a shared file system
			within := filepath.Join(source, "data/within")
			settings(t, source, "")
			stay := func(when string) {
				t.Helper()
				for _, h := range []*lab.Host{a, b} {
					if r := h.Run(t.Context(), "mountpoint", within); r.Code != 0 {
						t.Errorf("%s: %s has lost %s", when, h.Name, within)
					}
				}
			}
			for _, h := range []*lab.Host{a, b} {
				must(t, h.Run(t.Context(), "sh", "-c", "mkdir -p $0 && mount -t tmpfs within $0", within))
				t.Cleanup(func() { h.Run(cleanupContext(t), "umount", within) })
			}
			j := journey{
				id: id, run: []string{"--mount", "type=bind,src=" + source + "/data,dst=/data,options=" + options},
				between: func() { stay("after the checkpoint") }, restore: []string{"--allow", "mounts"},
			}
			travel(t, j, "count")
			stay("after the restore")
			remove(t.Context(), b, id)
			stay("after the end")
		})
	}
}
