package trust

import (
	"os"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	skpacket "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-packet"
	"google.golang.org/protobuf/proto"
)

// TestSent: a file of the host's waits in a socket, where the comparison does not see it.
func TestSent(t *testing.T) {
	for _, test := range []struct {
		name string
		on   int32
		user uint32
		sent uint32
		asks bool
	}{{"/data/secret", 9, 1000, 1, true}, {"/data/secret", 9, 0, 1, false}, {"/bin/sh", 1, 1000, 1, false}, {"/data/secret", 9, 1000, 2, false}, {"/data/secret", 1, 1000, 1, true}} {
		d := ordinaryDump(t)
		file := reg(test.name)
		file.Reg.MntId = &test.on
		d.files = []*fdinfo.FileEntry{file, reg("/bin/sh")}
		dir := d.write(t)
		writeImage(t, dir, "sk-queues.img", &skpacket.SkPacketEntry{Scm: []*skpacket.ScmEntry{{Type: proto.Uint32(1), Rights: []uint32{test.sent}}}})
		d.spec.Process.User.UID = test.user
		r := newImageReviewer(os.DirFS(dir), d.spec, nil)
		if err := r.sent(); err != nil || (len(r.requests) > 0) != test.asks || test.asks && !strings.Contains(r.requests[0].What, "waits in a socket") {
			t.Errorf("%+v: %+v (%v)", test, r.requests, err)
		}
	}
}
