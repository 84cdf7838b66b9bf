package criu

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	remap "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

func image(t *testing.T, records ...proto.Message) []byte {
	t.Helper()
	data := make([]byte, 8)
	for _, r := range records {
		encoded, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(encoded))), encoded...)
	}
	return data
}

func entry(id uint32, kind remap.RemapType) *remap.RemapFilePathEntry {
	return &remap.RemapFilePathEntry{OrigId: &id, RemapId: proto.Uint32(id + 100), RemapType: &kind}
}

func TestCheckLinks(t *testing.T) {
	file := &fdinfo.FileEntry{
		Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(7),
		Reg: &regfile.RegFileEntry{Id: proto.Uint32(7), Flags: proto.Uint32(0), Pos: proto.Uint64(0), Fown: nil, Name: proto.String("var/log/old"), MntId: proto.Int32(5)},
	}
	encoded, err := proto.MarshalOptions{AllowPartial: true}.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	files := append(binary.LittleEndian.AppendUint32(make([]byte, 8), uint32(len(encoded))), encoded...)
	readOnly := func(id uint32) []byte {
		return image(t, &mnt.MntEntry{Fstype: proto.Uint32(0), MntId: &id, RootDev: proto.Uint32(1), ParentMntId: proto.Uint32(1), Flags: proto.Uint32(1), Root: proto.String("/"),
			Mountpoint: proto.String("/var"), Source: proto.String(""), Options: proto.String(""), ExtKey: proto.String("/var")})
	}
	tmpfs := func(source string) []byte {
		m := &mnt.MntEntry{Fstype: proto.Uint32(uint32(mnt.Fstype_TMPFS)), MntId: proto.Uint32(5), RootDev: proto.Uint32(1), ParentMntId: proto.Uint32(1), Flags: proto.Uint32(0), Root: proto.String("/"),
			Mountpoint: proto.String("/dev/shm"), Source: proto.String(""), Options: proto.String("")}
		if source != "" {
			m.ExtKey = &source
		}
		return image(t, m)
	}
	tests := []struct {
		name   string
		remaps []byte
		mounts []byte
		path   string
		lossy  bool
	}{
		{"none", nil, nil, "", false},
		{"deleted", image(t, entry(7, remap.RemapType_GHOST)), nil, "", false},
		{"deleted, on a read-only mount", image(t, entry(7, remap.RemapType_GHOST)), readOnly(5), "/var/log/old", false},
		{"deleted, elsewhere", image(t, entry(7, remap.RemapType_GHOST)), readOnly(6), "", false},
		{"linked", image(t, entry(8, remap.RemapType_GHOST), entry(7, remap.RemapType_LINKED)), nil, "/var/log/old", false},
		{"linked, in a tmpfs", image(t, entry(7, remap.RemapType_LINKED)), tmpfs(""), "", false},
		{"linked, in a tmpfs of the host's", image(t, entry(7, remap.RemapType_LINKED)), tmpfs("/dev/shm"), "/var/log/old", false},
		{"linked, not in the list of files", image(t, entry(9, remap.RemapType_LINKED)), nil, "a file", false},
		{"cut", image(t, entry(7, remap.RemapType_GHOST))[:10], nil, "", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.remaps != nil {
				if err := os.WriteFile(filepath.Join(dir, "remap-fpath.img"), test.remaps, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if test.mounts != nil {
				if err := os.WriteFile(filepath.Join(dir, "mountpoints-12.img"), test.mounts, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "files.img"), files, 0o600); err != nil {
				t.Fatal(err)
			}
			err := CheckLinks(dir)
			switch {
			case test.lossy:
				if !errors.Is(err, errdefs.ErrDataLoss) {
					t.Errorf("got %v", err)
				}
			case test.path == "":
				if err != nil {
					t.Error(err)
				}
			case !errdefs.IsFailedPrecondition(err) || !strings.HasPrefix(err.Error(), test.path+" is open"):
				t.Errorf("got %v, want %s", err, test.path)
			}
		})
	}
}

func TestCheckNested(t *testing.T) {
	for name, c := range map[string]struct {
		images []string
		words  string // empty: it is not refused
	}{
		"one of each":           {[]string{"mountpoints-5.img", "netns-2.img", "netns-ct-2.img"}, ""},
		"mounts of their own":   {[]string{"mountpoints-5.img", "mountpoints-11.img"}, "mount namespace"},
		"networks of their own": {[]string{"netns-5.img", "netns-11.img"}, "network namespace"},
	} {
		dir := t.TempDir()
		for _, image := range c.images {
			if err := os.WriteFile(filepath.Join(dir, image), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := CheckNested(dir)
		if refused := errdefs.IsFailedPrecondition(err); refused != (c.words != "") || refused && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
