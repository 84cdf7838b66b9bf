package shim

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

func sent(t *testing.T, v any) *ptypes.Any {
	t.Helper()
	a, err := typeurl.MarshalAnyToProto(v)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRuncOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "options.toml")
	if err := os.WriteFile(file, []byte("BinaryName = '/usr/bin/crun'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		sent    *ptypes.Any
		cgroups string
		want    *options.Options // nil: an error of kind InvalidArgument
	}{
		{"none", nil, "/default/c", &options.Options{}},
		{"empty message", &ptypes.Any{}, "/default/c", &options.Options{}},
		{"none, systemd's path", nil, "system.slice:cri:c", &options.Options{SystemdCgroup: true}},
		{"runc's", sent(t, &options.Options{BinaryName: "crun", Root: "/r"}), "/default/c", &options.Options{BinaryName: "crun", Root: "/r"}},
		{"runc's, systemd's path", sent(t, &options.Options{BinaryName: "crun"}), "kubepods.slice:cri-containerd:c", &options.Options{BinaryName: "crun", SystemdCgroup: true}},
		{"runc's, systemd's by option", sent(t, &options.Options{SystemdCgroup: true}), "", &options.Options{SystemdCgroup: true}},
		{"CRI's", sent(t, &runtimeoptions.Options{ConfigBody: []byte("SystemdCgroup = true\nNoPivotRoot = true\nIoUid = 7\n")}), "",
			&options.Options{SystemdCgroup: true, NoPivotRoot: true, IoUid: 7}},
		{"CRI's, systemd's path", sent(t, &runtimeoptions.Options{ConfigBody: []byte("NoPivotRoot = true")}), "a:b:c", &options.Options{NoPivotRoot: true, SystemdCgroup: true}},
		{"CRI's, says no", sent(t, &runtimeoptions.Options{ConfigBody: []byte("SystemdCgroup = false")}), "a:b:c", &options.Options{}},
		{"CRI's, empty", sent(t, &runtimeoptions.Options{}), "", &options.Options{}},
		{"CRI's, in a file", sent(t, &runtimeoptions.Options{ConfigPath: file}), "", &options.Options{BinaryName: "/usr/bin/crun"}},
		{"CRI's, unknown key", sent(t, &runtimeoptions.Options{ConfigBody: []byte("Sytemd = true")}), "", nil},
		{"CRI's, not TOML", sent(t, &runtimeoptions.Options{ConfigBody: []byte("{")}), "", nil},
		{"CRI's, no such file", sent(t, &runtimeoptions.Options{ConfigPath: "/nonexistent"}), "", nil},
		{"another type", sent(t, &emptypb.Empty{}), "", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var in typeurl.Any
			if test.sent != nil {
				in = test.sent
			}
			got, err := runcOptions(in, test.cgroups)
			if test.want == nil {
				if !errors.Is(err, errdefs.ErrInvalidArgument) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil || !proto.Equal(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestConvertInfoOptions(t *testing.T) {
	data, err := proto.Marshal(sent(t, &runtimeoptions.Options{ConfigBody: []byte("BinaryName = 'crun'")}))
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range [][]byte{nil, data} {
		r, err := convertInfoOptions(in)
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(r)
		if err != nil || (len(in) == 0) != (len(out) == 0) {
			t.Errorf("got %q, %v", out, err)
		}
	}
	if _, err := convertInfoOptions([]byte{0xff}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
}
