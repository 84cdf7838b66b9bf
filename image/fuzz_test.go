package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

func FuzzManifest(f *testing.F) {
	store, d := packedSample(f)
	f.Add(store.blobs[d.Digest])
	f.Add([]byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cryo.snapshot.v1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, l, err := parseManifest(b, "")
		if err != nil {
			if !errdefs.IsDataLoss(err) && !errdefs.IsNotImplemented(err) {
				t.Errorf("gives %v", err)
			}
			return
		}
		s := Snapshot{Manifest: m, layout: l}
		s.Index()
		s.CRIU()
		s.RootFS()
		s.Segments()
		if err := s.checkIndex(&format.Index{}); err == nil && len(s.Segments()) > 0 {
			t.Error("an empty index fits")
		}
	})
}

func FuzzConfig(f *testing.F) {
	store, d := packedSample(f)
	s, err := Open(context.Background(), store, d)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(store.blobs[s.Manifest.Config.Digest])
	store, d = packedDevices(f)
	if s, err = Open(context.Background(), store, d); err != nil {
		f.Fatal(err)
	}
	f.Add(store.blobs[s.Manifest.Config.Digest])
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseConfig(b, "")
		if err != nil {
			if !errdefs.IsDataLoss(err) && !errdefs.IsNotImplemented(err) {
				t.Errorf("gives %v", err)
			}
			return
		}
		for _, m := range deviceMaps(c.GPU, testPage) {
			var end uint64
			for _, r := range m.Runs {
				if r.Addr < end || r.Count < 1 || r.Addr+uint64(r.Count*testPage) > format.MaxAddress {
					t.Errorf("%s has %d pages at %#x", m.Name, r.Count, r.Addr)
				}
				end = r.Addr + uint64(r.Count*testPage)
			}
		}
	})
}

func FuzzCRIUTar(f *testing.F) {
	var b bytes.Buffer
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": {0: make([]byte, testPage)}}, other: map[string][]byte{"core-1.img": {1}}}.write(f)
	if err := writeCRIU(context.Background(), &b, dir); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	bad := errors.New("bad")
	f.Fuzz(func(t *testing.T, b []byte) {
		check := newPagemapCheck(&format.Index{PageSize: testPage, Files: []format.PagesFile{{ID: 1, Pagemap: "pagemap-1.img", Count: 1}}})
		last := ""
		err := readCRIU(bytes.NewReader(b), func(error) error { return bad }, func(name string, r io.Reader) error {
			if name <= last || badCRIUName(name) != "" {
				t.Errorf("entry %q came after %q", name, last)
			}
			last = name
			read := contextWriter{ctx: context.Background(), w: io.Discard}
			err := check.file(name, io.TeeReader(r, &read))
			if read.n > int64(len(b)) {
				t.Errorf("%s has %d bytes of a tar of %d", name, read.n, len(b))
			}
			return err
		})
		if err != nil && !errors.Is(err, bad) && !errdefs.IsDataLoss(err) && !errdefs.IsNotImplemented(err) {
			t.Errorf("gives %v", err)
		}
	})
}

// FuzzLayer reads any bytes as a compressed layer whose digest is right.
func FuzzLayer(f *testing.F) {
	f.Add(compress([]byte("contents")), "8")
	f.Add([]byte{}, "0")
	f.Fuzz(func(t *testing.T, b []byte, size string) {
		store := newMemoryStore()
		d := store.put(b, ocispec.Descriptor{Annotations: map[string]string{AnnotationRawSize: size, ocispec.AnnotationTitle: "x"}})
		n := int64(0)
		err := readLayer(context.Background(), store, d, 1<<20, func(r io.Reader) (err error) {
			n, err = io.Copy(io.Discard, r)
			return err
		})
		if err != nil && !errdefs.IsDataLoss(err) || n > 1<<20 {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}
