package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
)

func mknod(t *testing.T, path string, major, minor uint32) {
	t.Helper()
	err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
	if errors.Is(err, unix.EPERM) {
		t.Skip("device nodes cannot be made here")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMakeNodes(t *testing.T) {
	root := t.TempDir()
	dev := filepath.Join(root, "dev")
	if err := os.Mkdir(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	mknod(t, filepath.Join(dev, "nvidia0"), 195, 0)
	mknod(t, filepath.Join(dev, "nvidiactl"), 195, 255)
	mknod(t, filepath.Join(dev, "nvidia-uvm"), 510, 0)
	if err := os.Symlink("/etc/passwd", filepath.Join(dev, "nvidia-modeset")); err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o640)
	gid := uint32(44)
	nodes := []specs.LinuxDevice{
		{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1, FileMode: &mode, GID: &gid},
		{Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255},
		{Path: "/dev/nvidia-uvm", Type: "c", Major: 511, Minor: 0},
		{Path: "/dev/nvidia-modeset", Type: "c", Major: 195, Minor: 254},
		{Path: "/dev/nvidia-caps/nvidia-cap1", Type: "c", Major: 234, Minor: 1},
	}
	for range 2 { // the second time there is nothing to do
		if err := MakeNodes(root, nodes, []record.GPUNode{{Path: "/dev/nvidia0"}, {Path: "/dev/nvidiactl"}, {Path: "/etc/passwd"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		d, err := HostNode(filepath.Join(root, n.Path))
		if err != nil || d.Major != n.Major || d.Minor != n.Minor {
			t.Errorf("%s: %+v, %v", n.Path, d, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dev, "nvidia1"), &st); err != nil || st.Mode&0o777 != 0o640 || st.Gid != 44 {
		t.Errorf("mode %o, group %d, %v", st.Mode, st.Gid, err)
	}
	if _, err := os.Lstat(filepath.Join(dev, "nvidia0")); !os.IsNotExist(err) {
		t.Errorf("the old GPU's node is left: %v", err)
	}
}

// TestMakeNodesStaysInside: a container whose /dev leads elsewhere gets no nodes there.
func TestMakeNodesStaysInside(t *testing.T) {
	outside := t.TempDir()
	n := []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
	deep := []specs.LinuxDevice{{Path: "/dev/nvidia-caps/x", Type: "c", Major: 195}}
	for name, lay := range map[string]func(root string) error{
		"dev is a link": func(root string) error { return os.Symlink(outside, filepath.Join(root, "dev")) },
		"dev/nvidia-caps is a link": func(root string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, "dev"), 0o700), os.Symlink(outside, filepath.Join(root, "dev/nvidia-caps")))
		},
		"no dev": func(string) error { return nil },
	} {
		root := t.TempDir()
		if err := lay(root); err != nil {
			t.Fatal(err)
		}
		if err := MakeNodes(root, deep, nil); err == nil {
			t.Errorf("%s: made", name)
		}
		if name == "dev is a link" {
			if err := MakeNodes(root, n, nil); err == nil {
				t.Errorf("%s: made", name)
			}
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
			t.Fatalf("%s: %v is outside, %v", name, entries, err)
		}
	}
	for _, bad := range []specs.LinuxDevice{{Path: "/devil/nvidia0", Type: "c"}, {Path: "/dev/nvidia0", Type: "b"}, {Path: "/dev/../etc/x", Type: "c"}} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "dev"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := MakeNodes(root, []specs.LinuxDevice{bad}, nil); err == nil {
			t.Errorf("%+v: made", bad)
		}
	}
}
