package format

import (
	"slices"
	"testing"

	coreaarch64 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-aarch64"
	corex86 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-x86"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// thread is one on x86.
func thread(sp, fs, clear uint64) *criucore.CoreEntry {
	return &criucore.CoreEntry{ThreadInfo: &corex86.ThreadInfoX86{ClearTidAddr: &clear, Gpregs: &corex86.UserX86RegsEntry{Sp: &sp, FsBase: &fs}}}
}

func TestRegisters(t *testing.T) {
	for name, test := range map[string]struct {
		file []byte // nil: there is none
		want []uint64
		kind func(error) bool
	}{
		"x86":       {image(t, magicCore, thread(0x7000, 0, 0x5008)), []uint64{0x7000, 0x5008}, nil},
		"arm64":     {image(t, magicCore, &criucore.CoreEntry{TiAarch64: &coreaarch64.ThreadInfoAarch64{Tls: proto.Uint64(0x9000)}}), []uint64{0x9000}, nil},
		"neither":   {image(t, magicCore, &criucore.CoreEntry{}), nil, nil},
		"no file":   {nil, nil, nil},
		"empty":     {image(t, magicCore), nil, errdefs.IsDataLoss},
		"other":     {image(t, magicMM, thread(1, 2, 3)), nil, errdefs.IsDataLoss},
		"no record": {image(t, magicCore, []byte{0xff}), nil, errdefs.IsDataLoss},
	} {
		got, err := Registers(put(t, t.TempDir(), "core-7.img", test.file), 7)
		if !slices.Equal(got, test.want) || (err == nil) != (test.kind == nil) || err != nil && !test.kind(err) {
			t.Errorf("%s gives %x, %v", name, got, err)
		}
	}
}
