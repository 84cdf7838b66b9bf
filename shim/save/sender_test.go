package save

import (
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// What is complete is handed on if it is large; a sender that sends nothing lets everything through.
func TestSenderHears(t *testing.T) {
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sending, err := newSender(t.Context(), s, "127.0.0.1:1/a:1", registry.Options{Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer sending.close()
	for _, n := range []*sender{sending, {}} {
		for _, c := range []struct {
			mediaType string
			idle      bool
		}{{image.MediaTypeConfig, true}, {image.MediaTypeIndex, true}, {image.MediaTypeCRIU, true}, {image.MediaTypeSegment, false}} {
			w, err := n.watch(s).Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(c.mediaType)); err != nil {
				t.Fatal(err)
			}
			d, err := w.Commit(t.Context(), c.mediaType)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			if ok, err := s.Exists(t.Context(), d); !ok || err != nil {
				t.Errorf("%s is not in the store: %v", c.mediaType, err)
			}
			if n.pusher != nil && n.pusher.Idle() != c.idle {
				t.Errorf("%s: idle %v", c.mediaType, !c.idle)
			}
		}
		n.close()
	}
}
