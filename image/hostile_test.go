package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func sampleTar(w io.Writer) error {
	tw := tar.NewWriter(w)
	for i := range 40 {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("etc/%d", i), Size: 2000, Mode: 0o644}); err != nil {
			return err
		}
		if _, err := tw.Write(bytes.Repeat([]byte{byte(i)}, 2000)); err != nil {
			return err
		}
	}
	return tw.Close()
}

// forge gives a snapshot whose manifest is right, but in which change has altered the layer of this title.
func forge(t *testing.T, title string, change func(raw []byte) (blob []byte, rawSize int64)) (*memoryStore, ocispec.Descriptor) {
	t.Helper()
	store, d := packedSample(t)
	var m ocispec.Manifest
	if err := json.Unmarshal(store.blobs[d.Digest], &m); err != nil {
		t.Fatal(err)
	}
	for i := range m.Layers {
		if m.Layers[i].Annotations[ocispec.AnnotationTitle] != title {
			continue
		}
		z, _ := zstd.NewReader(nil)
		raw, err := z.DecodeAll(store.blobs[m.Layers[i].Digest], nil)
		z.Close()
		if err != nil {
			t.Fatal(err)
		}
		blob, size := change(raw)
		m.Layers[i] = store.put(blob, m.Layers[i])
		m.Layers[i].Annotations[AnnotationRawSize] = strconv.FormatInt(size, 10)
		if m.Layers[i].MediaType == MediaTypeRootFS {
			z, _ := zstd.NewReader(nil)
			raw, _ := z.DecodeAll(blob, nil) // as far as it can be read
			z.Close()
			m.Layers[i].Annotations[AnnotationRawDigest] = digest.FromBytes(raw).String()
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return store, store.put(b, d)
}

func compress(b []byte) []byte {
	z, _ := zstd.NewWriter(nil)
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// rewrite changes the contents of a layer.
func rewrite(change func(raw []byte) []byte) func([]byte) ([]byte, int64) {
	return func(raw []byte) ([]byte, int64) {
		raw = change(raw)
		return compress(raw), int64(len(raw))
	}
}

func tarOf(headers ...tar.Header) []byte {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range headers {
		if err := tw.WriteHeader(&h); err != nil {
			panic(err)
		}
		if h.Size > 0 {
			if _, err := tw.Write(make([]byte, h.Size)); err != nil {
				panic(err)
			}
		}
	}
	tw.Close()
	return b.Bytes()
}

// TestForged tries snapshots in which all digests are right, but parts are hostile or contradict each other.
func TestForged(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 4} }
	zeros := compress(make([]byte, 64<<20))
	tests := []struct {
		name, title string
		change      func([]byte) ([]byte, int64)
	}{
		{"index is no text", "index.zst", rewrite(func([]byte) []byte { return []byte("hello\n") })},
		{"index lacks a segment", "index.zst", rewrite(func([]byte) []byte { return []byte("cryo-index 1 sha256 xxh64 4096\nend 1\n") })},
		{"index has another page size", "index.zst", rewrite(func(b []byte) []byte { return bytes.Replace(b, []byte(" 4096\n"), []byte(" 16384\n"), 1) })},
		{"index names another pagemap", "index.zst", rewrite(func(b []byte) []byte { return bytes.Replace(b, []byte("pagemap-2.img"), []byte("pagemap-7.img"), 1) })},
		{"index swaps processes", "index.zst", rewrite(func(b []byte) []byte {
			return []byte(strings.NewReplacer("pagemap-2.img", "pagemap-1.img", "pagemap-1.img", "pagemap-2.img").Replace(string(b)))
		})},
		{"index moves a page", "index.zst", rewrite(func(b []byte) []byte {
			at := bytes.Index(b, []byte("\nrun "))
			end := at + 1 + bytes.IndexByte(b[at+1:], '\n')
			f := strings.Fields(string(b[at+1 : end]))
			f[4] = "10000000000000"
			return append(append(bytes.Clone(b[:at+1]), strings.Join(f, " ")...), b[end:]...)
		})},
		{"criu is no tar", "criu.tar.zst", rewrite(func([]byte) []byte { return bytes.Repeat([]byte("no tar "), 300) })},
		{"criu is empty", "criu.tar.zst", rewrite(func([]byte) []byte { return nil })},
		{"criu has a directory", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(tar.Header{Typeflag: tar.TypeDir, Name: "d/"}) })},
		{"criu leads out", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(file("../x")) })},
		{"criu is absolute", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(file("/x")) })},
		{"criu has a link", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc"}) })},
		{"criu has a fifo", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(tar.Header{Typeflag: tar.TypeFifo, Name: "f"}) })},
		{"criu has pages", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(file("pages-1.img")) })},
		{"criu has a name twice", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(file("a"), file("a")) })},
		{"criu lacks pagemaps", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(file("a")) })},
		{"criu has a bad pagemap", "criu.tar.zst", rewrite(func([]byte) []byte { return tarOf(file("pagemap-1.img")) })},
		{"criu is a bomb", "criu.tar.zst", func([]byte) ([]byte, int64) { return zeros, 5000 }},
		{"index is a bomb", "index.zst", func([]byte) ([]byte, int64) { return zeros, 64 << 20 }},
		{"index is a bomb and says so", "index.zst", func([]byte) ([]byte, int64) { return zeros, 1 << 40 }},
		{"rootfs is a bomb", "rootfs.tar.zst", func([]byte) ([]byte, int64) { return zeros, 5000 }},
		{"criu is a bomb and says so", "criu.tar.zst", func([]byte) ([]byte, int64) { return zeros, 8 << 30 }},
		{"rootfs is a bomb and says so", "rootfs.tar.zst", func([]byte) ([]byte, int64) { return zeros, 8 << 30 }},
		{"rootfs is no tar", "rootfs.tar.zst", rewrite(func([]byte) []byte { return bytes.Repeat([]byte("no tar "), 300) })},
		{"rootfs is short", "rootfs.tar.zst", func(b []byte) ([]byte, int64) { return compress(b), int64(len(b)) + 1 }},
		{"size is negative", "rootfs.tar.zst", func(b []byte) ([]byte, int64) { return compress(b), -1 }},
		{"rootfs is not compressed", "rootfs.tar.zst", func(b []byte) ([]byte, int64) { return b, int64(len(b)) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store, d := forge(t, test.title, test.change)
			if err := Verify(context.Background(), store, d, nil); !errdefs.IsDataLoss(err) || !hinted(err) {
				t.Errorf("Verify gives %v", err)
			}
			if test.name == "rootfs is no tar" {
				return // reading leaves that to who applies it
			}
			if _, err := readAll(t, store, d); !errdefs.IsDataLoss(err) || !hinted(err) {
				t.Errorf("reading gives %v", err)
			}
		})
	}
}

// TestDiffID has rootfs differences that unpack to something else than their descriptor says, or say nothing.
func TestDiffID(t *testing.T) {
	ctx, store := context.Background(), newMemoryStore()
	src := testSource(fakeImages{maps: map[string]memory{}, other: map[string][]byte{"core-1.img": imageHeader(1)}}.write(t))
	src.Config.Container.ChainID = digest.FromString("layers")
	files := tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "changed", Size: 4})
	src.RootFS = func(_ context.Context, w io.Writer) error {
		_, err := w.Write(files)
		return err
	}
	d := mustPack(t, store, src, PackOptions{})
	s, err := Open(ctx, store, d)
	if err != nil {
		t.Fatal(err)
	}
	want := identity.ChainID([]digest.Digest{digest.FromString("layers"), digest.FromBytes(files)})
	if got, ok := s.RunnableChain(); !ok || got != want {
		t.Errorf("the chain ID is %s, %v", got, ok)
	}
	s.Config.Container.ChainID = ""
	if got, ok := s.RunnableChain(); ok {
		t.Errorf("without the chain ID of the base image there is %s", got)
	}
	layer, _ := s.RootFS()
	for _, said := range []string{"", "sha256:12", "sha512:" + strings.Repeat("0", 128), digest.FromString("something else").String()} {
		layer.Annotations[AnnotationRawDigest] = said
		b, err := json.Marshal(s.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(ctx, store, store.put(b, d), nil); !errdefs.IsDataLoss(err) || !hinted(err) {
			t.Errorf("with the DiffID %q, Verify gives %v", said, err)
		}
		if err := s.ReadRootFS(ctx, store, func(io.Reader) error { return nil }); !errdefs.IsDataLoss(err) {
			t.Errorf("with the DiffID %q, reading gives %v", said, err)
		}
	}
}

// TestBombMemory says that a layer which claims little and is much costs no memory.
func TestBombMemory(t *testing.T) {
	store, d := forge(t, "index.zst", func([]byte) ([]byte, int64) { return compress(make([]byte, 192<<20)), 192 << 20 })
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	if err := Verify(context.Background(), store, d, nil); !errdefs.IsDataLoss(err) {
		t.Errorf("Verify gives %v", err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 || time.Since(start) > 5*time.Second {
		t.Errorf("refusing a bomb took %d MiB and %v", used>>20, time.Since(start))
	}
}

// TestCompressible has contents that compress too well for what readers allow: a writer makes the layer as long as they need it to be.
func TestCompressible(t *testing.T) {
	t.Parallel()
	const size = 4 * contentsFree
	store := newMemoryStore()
	d, err := writeLayer(context.Background(), store, MediaTypeRootFS, titleRootFS, 2, func(w io.Writer) error {
		_, err := io.Copy(w, io.LimitReader(zeros{}, size))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if least := int64(size-contentsFree) / contentsFactor; d.Size < least || d.Size > least+1<<20 {
		t.Errorf("the layer has %d bytes", d.Size)
	}
	var n int64
	err = readLayer(context.Background(), store, d, maxContents(d.Size), func(r io.Reader) (err error) {
		n, err = io.Copy(io.Discard, r)
		return err
	})
	if err != nil || n != size {
		t.Errorf("%d bytes are read (%v)", n, err)
	}
	d.Size--
	if err := readLayer(context.Background(), store, d, maxContents(d.Size), nil); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "unpacked-size") {
		t.Errorf("a layer that is shorter gives %v", err)
	}
}
