package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"
)

// TestInsideNodes: a restored container has its device nodes, though CRIU has no right to make any. Their modes are the container's where it could change them, and else the specification's.
func TestInsideNodes(t *testing.T) {
	a, b := pair(t)
	pullBase(t, b)
	for _, test := range []struct {
		name    string
		dropped []string
		random  uint32 // mode of /dev/random
		made    bool   // a node that the container has made
	}{
		{"all", nil, 0o600, true},
		{"no-mknod", []string{"CAP_MKNOD"}, 0o600, false},
		{"no-chown", []string{"CAP_MKNOD", "CAP_CHOWN"}, 0o666, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := name(t)
			ref := "cryo.test/" + id + ":1"
			startShell(t, a, id, "chmod 600 /dev/random; mknod /dev/made c 1 5; ln /dev/null /dev/link; touch /dev/ready; exec sleep 1000", oci.WithDroppedCapabilities(test.dropped))
			look := func(node string) (st unix.Stat_t, err error) {
				return st, unix.Lstat(fmt.Sprintf("/proc/%d/root/dev/%s", runs(t, a, id), node), &st)
			}
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if _, err := look("ready"); err == nil {
					break
				} else if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			away(t, ref)
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
			for node, want := range map[string]struct {
				mode, major, minor uint32
				made               bool
			}{"null": {0o666, 1, 3, true}, "link": {0o666, 1, 3, true}, "random": {test.random, 1, 8, true}, "tty": {0o666, 5, 0, true}, "made": {0o644, 1, 5, test.made}} {
				st, err := look(node)
				if (err == nil) != want.made {
					t.Errorf("/dev/%s: %v", node, err)
				}
				if err == nil && (st.Mode != want.mode|unix.S_IFCHR || st.Rdev != unix.Mkdev(want.major, want.minor)) {
					t.Errorf("/dev/%s has mode %o, and is %d:%d", node, st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev))
				}
			}
		})
	}
}
