package registry

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/storetest"
)

func TestRanges(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	const size = 1 << 20
	src, m := pushed(t, f, "r:1", storetest.Spec{Seed: 1, Segments: []uint64{7}, Size: size})
	d := manifestOf(t, src, m).Layers[2]
	data := storetest.Bytes(7, size)
	same := func(p []byte, off int) error {
		if !bytes.Equal(p, data[off:off+len(p)]) {
			return errWrong
		}
		return nil
	}
	once := func(fault func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
		return each(1, method("GET", "/blobs/"), fault)
	}
	part := func(w http.ResponseWriter, r *http.Request, body []byte) {
		w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+"/1048576")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(body)
	}
	for name, c := range map[string]struct {
		fault  func(http.ResponseWriter, *http.Request) bool
		off, n int
		kind   func(error) bool // nil: it works
	}{
		"begin":       {nil, 0, 1, nil},
		"middle":      {nil, 300_000, 500_000, nil},
		"end":         {nil, size - 4096, 4096, nil},
		"nothing":     {nil, 5, 0, nil},
		"all":         {nil, 0, size, nil},
		"503":         {each(3, method("GET", "/blobs/"), status(503)), 10, 4096, nil},
		"cut at once": {once(func(w http.ResponseWriter, _ *http.Request) { cut(w) }), 10, 4096, nil},
		"cut": {once(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "4096")
			part(w, r, data[10:110])
			w.(http.Flusher).Flush()
			cut(w)
		}), 10, 4096, nil},
		"stalls": {once(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "4096")
			part(w, r, data[10:110])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}), 10, 4096, nil},
		"no ranges": {each(9, method("GET", "/blobs/"), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }), 10, 4096, errdefs.IsFailedPrecondition},
		"wrong range": {each(9, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Range", "bytes=0-4095")
			part(w, r, data[:4096])
		}), 10, 4096, errdefs.IsFailedPrecondition},
		"other size": {each(9, method("GET", "/blobs/"), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 10-4105/5000")
			w.WriteHeader(http.StatusPartialContent)
		}), 10, 4096, errdefs.IsDataLoss},
		"gone":     {each(9, method("GET", "/blobs/"), status(404)), 10, 4096, errdefs.IsDataLoss},
		"outside":  {nil, size - 10, 11, errdefs.IsDataLoss},
		"negative": {nil, -1, 1, errdefs.IsDataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			f.fault = c.fault
			g := ranges(t, f.ref("r:1"))
			p := make([]byte, c.n)
			err := g.Read(t.Context(), d, int64(c.off), p, false)
			if err == nil {
				err = same(p, c.off)
			}
			// Nothing to read asks for nothing.
			if c.kind == nil && c.n > 0 && (len(f.log) == 0 || !strings.Contains(f.log[len(f.log)-1], " bytes=")) {
				t.Errorf("it asks for no part: %q", f.log)
			}
			if c.kind == nil && err != nil || c.kind != nil && !c.kind(err) {
				t.Error(err)
			}
		})
	}
	t.Run("side by side", func(t *testing.T) {
		f.fault = nil
		g := ranges(t, f.ref("r:1"))
		var all sync.WaitGroup
		for off := 0; off < size; off += size / 16 {
			all.Go(func() {
				p := make([]byte, size/16)
				err := g.Read(t.Context(), ocispec.Descriptor{Digest: d.Digest, Size: size}, int64(off), p, false)
				if err = errors.Join(err, same(p, off)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

var errWrong = errors.New("these are not the bytes")

// ranges are those of a reference's repository.
func ranges(t *testing.T, ref string) *Ranges {
	t.Helper()
	name, at, err := parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	r, err := open(t.Context(), name, at, fast())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return &Ranges{ref: ref, repo: r, o: fast()}
}
