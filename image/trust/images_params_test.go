package trust

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// TestParams: a container has the file that nvidia-ctk's hook mounts without being asked for it; whatever else looks like that is asked for.
func TestParams(t *testing.T) {
	file := []tar.Header{{Name: "./", Typeflag: tar.TypeDir}, {Name: "./nvct-params", Typeflag: tar.TypeReg}}
	link := tar.Header{Name: "./nvct-params", Linkname: "/etc/shadow", Typeflag: tar.TypeSymlink}
	for name, c := range map[string]struct {
		content []tar.Header
		change  func(d *dump, tmpfs, params *mnt.MntEntry)
		asks    string // empty: for nothing
	}{
		"the hook's":                 {file, nil, ""},
		"a link":                     {[]tar.Header{link}, nil, paramsFile},
		"a link by another name":     {append(file[:2:2], tar.Header{Name: "x/../nvct-params", Linkname: "/etc/shadow", Typeflag: tar.TypeSymlink}), nil, paramsFile},
		"a hard link to a link":      {[]tar.Header{{Name: "x", Linkname: "/etc/shadow", Typeflag: tar.TypeSymlink}, {Name: "nvct-params", Linkname: "x", Typeflag: tar.TypeLink}}, nil, paramsFile},
		"a device":                   {[]tar.Header{{Name: "nvct-params", Typeflag: tar.TypeBlock, Devmajor: 8}}, nil, paramsFile},
		"no file":                    {nil, nil, paramsFile},
		"further below":              {file, func(_ *dump, _, params *mnt.MntEntry) { params.Root = proto.String("/x/nvct-params") }, paramsFile},
		"elsewhere":                  {file, func(_ *dump, _, params *mnt.MntEntry) { params.Mountpoint = proto.String("/proc/driver/nvidia/gpus") }, "/proc/driver/nvidia/gpus"},
		"of a tmpfs that is not had": {file, func(_ *dump, _, params *mnt.MntEntry) { params.RootDev = proto.Uint32(21) }, paramsFile},
		"of another file system":     {file, func(_ *dump, tmpfs, _ *mnt.MntEntry) { tmpfs.Fstype = proto.Uint32(uint32(mnt.Fstype_AUTO)) }, paramsFile},
		"of the host's tmpfs": {file, func(d *dump, tmpfs, _ *mnt.MntEntry) {
			d.mounts[8].RootDev, d.mounts[8].Root = tmpfs.RootDev, proto.String("/")
		}, paramsFile},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			tmpfs, params := mount(20, 1, mnt.Fstype_TMPFS, 0, "/", "/run/nvidia-ctk-hook/1", "tmpfs", ""), mount(21, 2, mnt.Fstype_TMPFS, 0, "/nvct-params", paramsFile, "tmpfs", "")
			params.RootDev = tmpfs.RootDev
			d.mounts = append(d.mounts, tmpfs, params)
			if c.change != nil {
				c.change(d, tmpfs, params)
			}
			dir := d.write(t)
			if c.content != nil {
				archive(t, filepath.Join(dir, "tmpfs-dev-20.tar.gz.img"), c.content)
			}
			archive(t, filepath.Join(dir, "tmpfs-20.tar.gz.img"), file) // which is older than those of devices
			err := reviewImages(os.DirFS(dir), d.spec, Policy{}, here)
			if c.asks == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "mounts: ") || !strings.Contains(err.Error(), c.asks) {
				t.Errorf("Images = %v, want %q", err, c.asks)
			}
		})
	}
}

// archive writes an image of a tmpfs, of files without content.
func archive(t *testing.T, path string, content []tar.Header) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	a := tar.NewWriter(z)
	for _, h := range content {
		if err := a.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(a.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
}
