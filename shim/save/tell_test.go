package save

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/restore"
)

// TestEventOf: a checkpoint that has failed, one of which the push has, and one that is done.
func TestEventOf(t *testing.T) {
	o := Options{Container: "web", Ref: "web:1"}
	taken := Result{Container: "id", Reference: "docker.io/library/web:1", Digest: "sha256:1", Size: 10, Freeze: 3, Dump: 2, GPU: &GPUSeconds{Lock: 1}}
	pushed := taken
	pushed.Push = &restore.Transfer{Moved: 7, Seconds: 4}
	away := failure.New(errdefs.ErrUnavailable, "", "away")
	for _, test := range []struct {
		result              *Result
		err                 error
		id, class           string
		bytes, sent, pushed float64
	}{
		{nil, failure.New(errdefs.ErrFailedPrecondition, "", "x").By("gpu-mps"), "web", "gpu-mps", 0, 0, 0},
		{nil, &restore.JobError{Lost: true, Err: away}, "web", "lost", 0, 0, 0},
		{&taken, away, "id", "unavailable", 10, 0, 0},
		{&pushed, nil, "id", "done", 10, 7, 4},
	} {
		s, err := structpb.NewStruct(eventOf(o, test.result, test.err))
		if err != nil {
			t.Fatal(err)
		}
		f := s.AsMap()
		phases := f["phases"].(map[string]any)
		if f["container_id"] != test.id || f["result"] != test.class || f["bytes"] != test.bytes || f["sent"] != test.sent || phases["push"] != test.pushed {
			t.Errorf("%v, %v: %v", test.result, test.err, f)
		}
		if reason, _ := f["reason"].(string); (reason == "") != (test.err == nil) {
			t.Errorf("%v: the reason %q", test.err, reason)
		}
		if test.result != nil && (f["digest"] != "sha256:1" || f["freeze"] != 3.0 || phases["dump"] != 2.0 || phases["lock"] != 1.0) {
			t.Errorf("%v", f)
		}
	}
}
