package criu

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
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
		Reg: &regfile.RegFileEntry{Id: proto.Uint32(7), Flags: proto.Uint32(0), Pos: proto.Uint64(0), Fown: nil, Name: proto.String("var/log/old")},
	}
	encoded, err := proto.MarshalOptions{AllowPartial: true}.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	files := append(binary.LittleEndian.AppendUint32(make([]byte, 8), uint32(len(encoded))), encoded...)
	tests := []struct {
		name   string
		remaps []byte
		path   string
		lossy  bool
	}{
		{"none", nil, "", false},
		{"deleted", image(t, entry(7, remap.RemapType_GHOST)), "", false},
		{"linked", image(t, entry(8, remap.RemapType_GHOST), entry(7, remap.RemapType_LINKED)), "/var/log/old", false},
		{"linked, not in the list of files", image(t, entry(9, remap.RemapType_LINKED)), "a file", false},
		{"cut", image(t, entry(7, remap.RemapType_GHOST))[:10], "", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.remaps != nil {
				if err := os.WriteFile(filepath.Join(dir, "remap-fpath.img"), test.remaps, 0o600); err != nil {
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
