package registry

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestImage reads an image whose blob comes in parts, each of which ends with a cut of the connection.
func TestImage(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	layer := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	f.put("base", layer)
	index := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[]}`)
	f.seed("base", "1", ocispec.MediaTypeImageIndex, index)
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
	part := 200_000
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		limited := &limitedWriter{ResponseWriter: w, left: part}
		f.serveBlob(limited, r, "base", d.Digest.String())
		if limited.left == 0 {
			cut(w)
		}
		return true
	}
	i, err := NewImage(t.Context(), f.ref("base@"+digest.FromBytes(index).String()), fast())
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	top, err := i.Resolve(t.Context())
	if err != nil || top.Digest != digest.FromBytes(index) || top.MediaType != ocispec.MediaTypeImageIndex {
		t.Fatalf("it is %+v (%v)", top, err)
	}
	read := func(d ocispec.Descriptor) ([]byte, error) {
		rc, err := i.Fetch(t.Context(), d)
		if err != nil {
			return nil, err
		}
		defer rc.Close()
		return io.ReadAll(rc)
	}
	if got, err := read(top); err != nil || !bytes.Equal(got, index) {
		t.Errorf("the manifest is %q (%v)", got, err)
	}
	if got, err := read(d); err != nil || !bytes.Equal(got, layer) {
		t.Errorf("the layer has %d bytes (%v)", len(got), err)
	}
	if n := f.count("GET /v2/base/blobs/"); n != len(layer)/part+1 {
		t.Errorf("%d requests for the layer", n)
	}
	part = 100 // next to nothing each time
	if _, err := read(d); !errdefs.IsUnavailable(err) {
		t.Errorf("a line that brings next to nothing gives %v", err)
	}
	f.fault = nil
	if _, err := read(ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.FromString("other"), Size: 3}); err == nil {
		t.Error("a blob that is not there is fetched")
	}
	if none, err := NewImage(t.Context(), f.ref("none:1"), fast()); err != nil {
		t.Error(err)
	} else if _, err := none.Resolve(t.Context()); !errdefs.IsNotFound(err) {
		t.Errorf("no image gives %v", err)
	}
}

// limitedWriter drops what is too much.
type limitedWriter struct {
	http.ResponseWriter
	left int
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	_, err := w.ResponseWriter.Write(p[:n])
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	w.ResponseWriter.(http.Flusher).Flush()
	return n, err
}
