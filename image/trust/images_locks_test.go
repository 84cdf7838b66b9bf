package trust

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	filelock "github.com/checkpoint-restore/go-criu/v8/crit/images/file-lock"
	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	skopts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// TestLocks: CRIU takes leases as root, of files of all users.
func TestLocks(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		flag    uint32
		granted []string
		asks    bool
	}{{1, nil, false}, {2, nil, false}, {1024, nil, false}, {lease, nil, true}, {lease | 1<<12, nil, true}, {lease, []string{"CAP_LEASE"}, false}} {
		writeImage(t, dir, "filelocks.img", &filelock.FileLockEntry{Flag: &test.flag})
		r := newImageReviewer(os.DirFS(dir), &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: test.granted}}}, nil)
		if err := r.locks(); err != nil || (len(r.requests) > 0) != test.asks {
			t.Errorf("%+v: %+v (%v)", test, r.requests, err)
		}
	}
	if !slices.ContainsFunc(rules, func(rule struct {
		name   string
		review func(*imageReviewer) error
	}) bool {
		return rule.name == "file-locks"
	}) {
		t.Error("no rule reviews locks")
	}
}

// TestPriority: the host's queues go by the priority of sockets, which CRIU sets as root.
func TestPriority(t *testing.T) {
	for _, test := range []struct {
		priority uint32
		granted  []string
		asks     bool
	}{{0, nil, false}, {mostPriority, nil, false}, {mostPriority + 1, nil, true}, {0x10001, nil, true}, {7, []string{"CAP_NET_RAW"}, false}, {7, []string{"CAP_NET_ADMIN"}, false}} {
		r := newImageReviewer(nil, &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: test.granted}}}, nil)
		r.privileged(&fdinfo.FileEntry{Isk: &skinet.InetSkEntry{Opts: &skopts.SkOptsEntry{SoPriority: proto.Uint32(test.priority)}}})
		if asks := len(r.requests) > 0; asks != test.asks || asks && !strings.Contains(r.requests[0].What, "priority") {
			t.Errorf("%+v: %+v", test, r.requests)
		}
	}
}
