package save

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/store"
)

// TestReference gives annotations of containers.
func TestReference(t *testing.T) {
	now := time.Date(2026, 11, 26, 10, 18, 46, 123456789, time.FixedZone("east", 3600))
	const stamp = "-20261126t091846.123456"
	long := strings.Repeat("p", 300)
	for _, test := range []struct {
		to    string
		names []string
		want  string // empty: an error of kind InvalidArgument
	}{
		{"registry.example.com/team/app", []string{"pod-0", "main"}, "registry.example.com/team/app:pod-0-main" + stamp},
		{"registry.example.com:5000/app:warm", []string{"pod-0", "main"}, "registry.example.com:5000/app:warm"},
		{"localhost:5000/app", []string{"c"}, "localhost:5000/app:c" + stamp},
		{"app", []string{"a/b", "-"}, "docker.io/library/app:a-b--" + stamp},
		{"app", []string{"", "."}, "docker.io/library/app:snapshot" + stamp},
		{"app", []string{long}, "docker.io/library/app:" + long[:128-len(stamp)] + stamp},
		{"", []string{"c"}, ""},
		{"registry.example.com/app@sha256:" + strings.Repeat("0", 64), []string{"c"}, ""},
		{"sha256:" + strings.Repeat("0", 64), []string{"c"}, ""},
		{"registry.example.com/App", []string{"c"}, ""},
		{"registry.example.com/", []string{"c"}, ""},
		{"oci:/tmp/x", []string{"c"}, ""},
	} {
		got, err := reference(test.to, test.names, now)
		if got != test.want || (err != nil) != (test.want == "") || err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: got %q, %v; want %q", test.to, got, err, test.want)
		}
		if full, err := store.Normalize(got); test.want != "" && (err != nil || full != got) {
			t.Errorf("%q is no full reference: %q, %v", got, full, err)
		}
	}
	if a, b := tag([]string{"c"}, now), tag([]string{"c"}, now.Add(time.Microsecond)); a == b {
		t.Errorf("two snapshots of one second are called %s", a)
	}
}
