package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// newTmpfs makes a file system in memory that is mounted nowhere.
func newTmpfs(t *testing.T) (dir int) {
	t.Helper()
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Skip(err)
	}
	if dir, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Close(dir) })
	return dir
}

// TestNodes: a device node is made only if the container may have it, with owner and mode of the specification unless the container can change these, and nowhere but in a file system
// of its own.
func TestNodes(t *testing.T) {
	const (
		plain   = `{"process": {"capabilities": {"bounding": ["CAP_KILL"]}}, "linux": {"devices": [{"path": "/dev/sda1", "type": "b", "major": 8, "minor": 1, "fileMode": 384, "uid": 5, "gid": 6}]}}`
		changes = `{"process": {"capabilities": {"bounding": ["CAP_CHOWN", "CAP_FOWNER"]}}, "linux": {"devices": [{"path": "/dev/net/tun", "type": "u", "major": 10, "minor": 200}]}}`
		any     = `{"process": {"capabilities": {"bounding": ["CAP_CHOWN", "CAP_FOWNER", "CAP_MKNOD"]}}}`
		user    = `{"process": {"noNewPrivileges": true, "user": {"uid": 1000}, "capabilities": {"bounding": ["CAP_CHOWN", "CAP_FOWNER", "CAP_MKNOD"], "permitted": ["CAP_CHOWN", "CAP_FOWNER", "CAP_MKNOD"]}}}`
		root    = `{"process": {"noNewPrivileges": true, "capabilities": {"bounding": ["CAP_CHOWN", "CAP_FOWNER", "CAP_MKNOD"], "permitted": ["CAP_CHOWN", "CAP_FOWNER", "CAP_MKNOD"]}}}`
	)
	null, disk, tun := DeviceNode{Character: true, Major: 1, Minor: 3, UID: 7, GID: 8, Mode: 0o604}, DeviceNode{Major: 8, Minor: 1, UID: 7, GID: 8, Mode: 0o604}, DeviceNode{Character: true, Major: 10, Minor: 200, UID: 7, GID: 8, Mode: 0o604}
	for _, c := range []struct {
		spec  string
		asked DeviceNode
		made  bool
		uid   uint32
		gid   uint32
		mode  uint32
	}{
		{plain, null, true, 0, 0, 0o666},
		{plain, disk, true, 5, 6, 0o600},
		{plain, tun, false, 0, 0, 0},
		{plain, DeviceNode{Major: 1, Minor: 3}, false, 0, 0, 0},
		{plain, DeviceNode{Character: true, Major: 8, Minor: 1}, false, 0, 0, 0},
		{plain, DeviceNode{Major: 8, Minor: 2}, false, 0, 0, 0},
		{changes, tun, true, 7, 8, 0o604},
		{changes, disk, false, 0, 0, 0},
		{any, disk, true, 7, 8, 0o604},
		{user, disk, false, 0, 0, 0},
		{user, null, true, 0, 0, 0o666},
		{root, disk, true, 7, 8, 0o604},
	} {
		bundle := t.TempDir()
		if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(c.spec), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := listenForNodes(bundle)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(dir int, asked DeviceNode) (answer NodeAnswer) {
			conn, _, err := channel.Dial(bundle, nodesSocket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.Send(asked, dir); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Receive(&answer); err != nil {
				t.Fatal(err)
			}
			return answer
		}
		own := newTmpfs(t)
		c.asked.Name = "x"
		answer := ask(own, c.asked)
		var st unix.Stat_t
		err = unix.Fstatat(own, "x", &st, unix.AT_SYMLINK_NOFOLLOW)
		if answer.Error != "" || answer.Made != c.made || (err == nil) != c.made || c.made && (st.Uid != c.uid || st.Gid != c.gid || st.Mode&0o7777 != c.mode ||
			st.Rdev != unix.Mkdev(uint32(c.asked.Major), uint32(c.asked.Minor)) || (st.Mode&unix.S_IFMT == unix.S_IFCHR) != c.asked.Character) {
			t.Errorf("%.60s, %+v: %+v, %v, %d:%d mode %o", c.spec, c.asked, answer, err, st.Uid, st.Gid, st.Mode)
		}
		if c.made {
			for at, words := range map[string]string{"/dev/shm": "of the host's", t.TempDir(): "of type"} {
				d, err := os.Open(at)
				if err != nil {
					t.Fatal(err)
				}
				if answer := ask(int(d.Fd()), c.asked); answer.Made || !strings.Contains(answer.Error, words) {
					t.Errorf("in %s: %+v", at, answer)
				}
				d.Close()
				_ = os.Remove(filepath.Join("/dev/shm", "x"))
			}
			c.asked.Name = "../x"
			if answer := ask(own, c.asked); answer.Made || !strings.Contains(answer.Error, "a name") {
				t.Errorf("a name that is a path: %+v", answer)
			}
		}
		m.close()
		if _, err := os.Lstat(filepath.Join(bundle, nodesSocket)); err == nil {
			t.Error("the socket is still there")
		}
	}
}
