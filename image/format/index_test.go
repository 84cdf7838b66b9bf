package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"
)

// randomIndex makes an index that keeps all rules.
func randomIndex(r *rand.Rand) *Index {
	x := &Index{PageSize: 4096 << r.IntN(3)}
	pagesInFrame := MaxFrame / x.PageSize
	devices := r.IntN(8) // of the files, those from this on are device memory
	for id := range 1 + r.IntN(4) {
		x.Files = append(x.Files, PagesFile{ID: uint64(id)*3 + 1, Pagemap: fmt.Sprintf("pagemap-%d.img", id+1)})
		if id >= devices {
			x.Files[id] = PagesFile{ID: DeviceFile(id/2+1, id%2)}
		}
		f := &x.Files[id]
		addr := uint64(r.IntN(1<<20)) * MaxFrame
		n := len(x.Segments)
		x.Segments = append(x.Segments, Segment{})
		s := &x.Segments[n]
		for range 1 + r.IntN(5) {
			fr := Frame{Segment: n, Offset: s.Size, Check: r.Uint64() >> r.IntN(64)}
			for i := range fr.Digest {
				fr.Digest[i] = byte(r.Uint32())
			}
			for at := int64(r.IntN(3)); at < pagesInFrame; {
				run := Run{File: f.ID, First: f.Count, Count: min(1+r.Int64N(100), pagesInFrame-at), Addr: addr + uint64(at*x.PageSize)}
				fr.Runs = append(fr.Runs, run)
				fr.Raw += run.Count * x.PageSize
				f.Count += run.Count
				at += run.Count + 1 + r.Int64N(50)
			}
			fr.Stored = fr.Raw
			if fr.Raw > 1 && r.IntN(2) == 0 {
				fr.Codec, fr.Stored = Zstd, 1+r.Int64N(fr.Raw-1)
			}
			s.Size += fr.Stored
			s.Raw += fr.Raw
			if r.IntN(4) == 0 { // a gap, but never half of the segment
				s.Size += r.Int64N(fr.Stored + 1)
			}
			x.Frames = append(x.Frames, fr)
			addr += MaxFrame
		}
		f.Count += r.Int64N(10)
	}
	return x
}

func encodeIndex(t testing.TB, x *Index) string {
	t.Helper()
	var b bytes.Buffer
	if err := EncodeIndex(&b, x); err != nil {
		t.Fatalf("Encode: %v", err)
	}
	return b.String()
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		x := randomIndex(rand.New(rand.NewPCG(seed, 0)))
		text := encodeIndex(t, x)
		got, err := DecodeIndex(iotest.OneByteReader(strings.NewReader(text)))
		if err != nil {
			t.Fatalf("Decode: %v\n%s", err, text)
		}
		if !reflect.DeepEqual(got, x) {
			t.Fatalf("the index came back as\n%+v instead of\n%+v", got, x)
		}
	}
	if _, err := DecodeIndex(strings.NewReader(encodeIndex(t, &Index{PageSize: 4096}))); err != nil {
		t.Errorf("Decode of an empty index: %v", err)
	}
}

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	good = "cryo-index 1 sha256 xxh64 4096\n" +
		"segment 0 " + sumA + " 8292 12288\n" +
		"pages 1 pagemap-1.img 3\n" +
		"pages 4 pagemap-shmem-1048.img 7\n" +
		"frame 0 0 100 zstd 4096 " + sumB + " 00000000000000ff\n" +
		"run 1 2 1 7f0000000000\n" +
		"frame 0 100 8192 raw 8192 " + sumB + " 123456789abcdef0\n" +
		"run 4 0 1 0\n" +
		"run 4 1 1 2000\n" +
		"end 9\n"
)

// change is a text that is replaced, and why nobody may take the result.
type change struct{ old, new, reason string }

// bad are texts that no one may take for an index, and why. Each is the good one with one string replaced.
var bad = []change{
	{"run 1 2 1 7f0000000000\nframe 0 100 8192 raw 8192 " + sumB + " 123456789abcdef0\nrun 4 0 1 0\nrun 4 1 1 2000\n",
		"run 4 1 1 1000\nframe 0 100 8192 raw 8192 " + sumB + " 123456789abcdef0\nrun 4 0 1 0\nrun 4 2 1 2000\n", "between those of another frame"},
	{"cryo-index 1", "cryo-index x", "not a number"},
	{"cryo-index 1", "cryo-index 2", "should be of version 1"},
	{"cryo-index", "index", "does not begin"},
	{"sha256", "sha512", "algorithm"},
	{"xxh64", "xxh32", "quick check"},
	{"xxh64 4096", "xxh64", "too few"},
	{"xxh64 4096", "xxh64 4097", "page size"},
	{"xxh64 4096", "xxh64 131072", "larger"},
	{"xxh64 4096", "xxh64 8192", "frame of 4096"},
	{"xxh64 4096", "xxh64 4096 ", "too many"},
	{"xxh64 4096", "xxh64 04096", "not a number"},
	{"xxh64 4096", "xxh64  4096", "empty field"},
	{"sha256 xxh64 4096", "sha256", "too few"},
	{"segment 0", "segment 1", "instead of 0"},
	{"segment 0", "segment -0", "not a number"},
	{"segment 0 " + sumA, "segment 0 " + strings.ToUpper(sumA), "digest"},
	{"segment 0 " + sumA, "segment 0 " + sumA + "a", "digest"},
	{"segment 0 " + sumA, "segment 0 abc", "digest"},
	{"8292 12288", "8291 12288", "does not lie in segment 0"},
	{"8292 12288", "16585 12288", "less than half"},
	{"8292 12288", "8292 12287", "make 12288 bytes"},
	{"8292 12288", "8292 12289", "instead of"},
	{"8292 12288", "9223372036854775807 12288", "larger"},
	{"8292 12288", "99999999999999999999999999999999999 12288", "larger"},
	{"8292 12288", "0 12288", "segment 0 has"},
	{"pages 1 pagemap-1.img 3", "pages 1 pagemap-1.img 2", "not inside"},
	{"pages 1 pagemap-1.img 3", "pages 5 pagemap-1.img 3", "out of order"},
	{"pages 1 pagemap-1.img 3", "pages 4 pagemap-1.img 3", "out of order"},
	{"pages 1 pagemap-1.img 3", "pages 1 pagemap-shmem-1048.img 3", "two pages files"},
	{"pages 1 pagemap-1.img 3", "pages 1 ../../etc/passwd 3", "not the name"},
	{"pages 1 pagemap-1.img 3", "pages 4294967296 pagemap-1.img 3", "larger"},
	{"pages 1 pagemap-1.img 3", "pages 1 pagemap-1.img 1099511627777", "larger"},
	{" 00000000000000ff", "", "too few"},
	{"00000000000000ff", "ff", "xxh64"},
	{"00000000000000ff", "00000000000000FF", "xxh64"},
	{"00000000000000ff", "00000000000000fg", "xxh64"},
	{"00000000000000ff", "00000000000000ff0", "xxh64"},
	{"00000000000000ff", "00000000000000ff 0", "too many"},
	{"frame 0 0 100", "frame 0 1 100", "overlaps the one before"},
	{"frame 0 0 100", "frame 0 0 101", "overlaps the one before"},
	{"frame 0 0 100", "frame 0 8292 100", "does not lie in segment 0"},
	{"frame 0 0 100", "frame 0 1152921504606846976 100", "does not lie in segment 0"},
	{"frame 0 100 8192", "frame 0 0 8192", "overlaps the one before"},
	{"frame 0 100 8192", "frame 0 101 8192", "does not lie in segment 0"},
	{"frame 0 0 100", "frame 1 0 100", "make 0 bytes"},
	{"frame 0 0 100", "frame 0 0 0", "with codec"},
	{"frame 0 0 100", "frame 0 0 4096", "with codec"},
	{"frame 0 0 100", "frame 0 0 1048577", "larger"},
	{"zstd 4096", "lz4 4096", "codec"},
	{"raw 8192 ", "raw 4096 ", "with codec"},
	{"raw 8192 ", "raw 1048577 ", "larger"},
	{"frame 0 100 8192 raw", "frame 0 100 8191 raw", "with codec"},
	{"run 1 2 1 7f0000000000\n", "", "without runs"},
	{"run 1 2 1", "run 2 2 1", "not listed"},
	{"run 1 2 1", "run d1.0 2 1", "not listed"},
	{"run 1 2 1", "run 1 3 1", "not inside"},
	{"run 1 2 1", "run 1 2 2", "not inside"},
	{"run 1 2 1", "run 1 1 2", "not inside"},
	{"run 1 2 1", "run 1 2 0", "not inside"},
	{"7f0000000000", "7F0000000000", "not an address"},
	{"7f0000000000", "0x7f0000000000", "not an address"},
	{"7f0000000000", "07f0000000000", "not an address"},
	{"7f0000000000", "7f0000000001", "not aligned"},
	{"7f0000000000", "ffffffffffffffff", "not aligned"},
	{"7f0000000000", "fffffffffffffffff", "not an address"},
	{"7f0000000000", "200000000001000", "not aligned"},
	{"run 4 1 1 2000", "run 4 1 1 1000", "should be one"},
	{"run 4 1 1 2000", "run 4 0 1 2000", "overlap"},
	{"run 4 1 1 2000", "run 4 1 1 0", "overlap"},
	{"run 4 1 1 2000", "run 4 1 1 100000", "crosses"},
	{"run 4 1 1 2000", "run 1 1 1 2000", "out of order"},
	{"run 4 1 1 2000\n", "", "hold 1 pages"},
	{"end 9", "end 8", "counts"},
	{"end 9\n", "", "cut short"},
	{"end 9\n", "end 9", "cut short"},
	{"end 9\n", "end 9\n\n", "follows"},
	{"end 9\n", "end 9\r\n", "not a number"},
	{"end 9", "pages 9 pagemap-9.img 1\nend 10", "out of order"},
	{"end 9", "hello\nend 10", "unknown kind"},
	{"end 9", strings.Repeat("x", 300) + "\nend 10", "256"},
	{"end 9", strings.Repeat("x", 100000) + "\nend 10", "256"},
	{"frame 0 0 100 zstd 4096 " + sumB + " 00000000000000ff\n", "", "before the first frame"},
}

// goodDevices is a text with device memory, badDevices are made of it.
var (
	goodDevices = strings.NewReplacer("index 1", "index 2", "pages 4 pagemap-shmem-1048.img 7\n", "device d12.1 512\n", "run 4", "run d12.1").Replace(good)
	badDevices  = []change{
		{"cryo-index 2", "cryo-index 1", "should be of version 2"},
		{"device d12.1", "device 12", "id of a pages file"},
		{"device d12.1", "device 12.1", "not a number"},
		{"device d12.1", "device d12", "missing"},
		{"device d12.1", "device d12.", "missing"},
		{"device d12.1", "device d.1", "missing"},
		{"device d12.1", "device d", "missing"},
		{"device d12.1", "device d012.1", "not a number"},
		{"device d12.1", "device d12.01", "not a number"},
		{"device d12.1", "device d12.1.1", "not a number"},
		{"device d12.1", "device d0.1", "not possible"},
		{"device d12.1", "device d2147483648.1", "larger"},
		{"device d12.1", "device d12.1024", "larger"},
		{"device d12.1", "device d13.1", "not listed"},
		{"device d12.1", "device d12.2", "not listed"},
		{"device d12.1 512", "device d12.1 device-12 512", "not a number"},
		{"device d12.1 512", "device d12.1 1", "not inside"},
		{"device d12.1 512", "device d12.1 0", "not possible"},
		{"device d12.1 512", "device d12.1 512\ndevice d12.1 512", "out of order"},
		{"device d12.1 512", "device d12.1 512\ndevice d12.0 512", "out of order"},
		{"device d12.1 512", "device d13.0 512\ndevice d12.1 512", "out of order"},
		{"device d12.1 512", "device d12.1 512\npages 5 pagemap-5.img 0", "out of order"},
		{"pages 1 pagemap-1.img", "pages d1.0 pagemap-1.img", "not a number"},
		{"run d12.1 1 1", "run 1 1 1", "out of order"},
	}
)

func TestDecodeRefuses(t *testing.T) {
	for _, text := range []string{good, goodDevices} {
		if _, err := DecodeIndex(strings.NewReader(text)); err != nil {
			t.Fatalf("Decode of a good text: %v", err)
		}
	}
	refuses(t, good, bad)
	refuses(t, goodDevices, badDevices)
	for n := range len(good) {
		if _, err := DecodeIndex(strings.NewReader(good[:n])); !errdefs.IsDataLoss(err) {
			t.Errorf("cut to %d bytes gives %v", n, err)
		}
	}
	newer := strings.Replace(good, "index 1", "index 3", 1)
	if _, err := DecodeIndex(strings.NewReader(newer)); !errdefs.IsNotImplemented(err) {
		t.Errorf("a newer version gives %v", err)
	}
	boom := errors.New("boom")
	if _, err := DecodeIndex(io.MultiReader(strings.NewReader(good[:50]), iotest.ErrReader(boom))); !errors.Is(err, boom) || errdefs.IsDataLoss(err) {
		t.Errorf("a reader's error gives %v", err)
	}
}

func refuses(t *testing.T, good string, bad []change) {
	t.Helper()
	for _, b := range bad {
		text := strings.Replace(good, b.old, b.new, 1)
		if !strings.Contains(b.old, "end") {
			text = strings.Replace(text, "end 9", fmt.Sprintf("end %d", strings.Count(text, "\n")-1), 1)
		}
		_, err := DecodeIndex(strings.NewReader(text))
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), b.reason) {
			t.Errorf("%.60q for %q gives %v, not %q", b.new, b.old, err, b.reason)
		}
	}
}

// TestOverlap gives one page to two frames.
func TestOverlap(t *testing.T) {
	x := randomIndex(rand.New(rand.NewPCG(1, 1)))
	x.Frames[1].Runs = x.Frames[0].Runs
	x.Segments[0].Raw += x.Frames[0].Raw - x.Frames[1].Raw
	x.Segments[0].Size += x.Frames[0].Raw - x.Frames[1].Stored
	x.Frames[1].Raw, x.Frames[1].Stored, x.Frames[1].Codec = x.Frames[0].Raw, x.Frames[0].Raw, Raw
	for i, at := 1, x.Frames[0].Stored; i < len(x.Frames) && x.Frames[i].Segment == 0; i++ {
		x.Frames[i].Offset = at
		at += x.Frames[i].Stored
	}
	if err := x.Check(); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("Check gives %v", err)
	}
	if err := EncodeIndex(io.Discard, x); err == nil {
		t.Error("Encode wrote an index that breaks a rule")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(goodDevices))
	for _, b := range badDevices {
		f.Add([]byte(strings.Replace(goodDevices, b.old, b.new, 1)))
	}
	f.Add([]byte(strings.Replace(strings.Replace(good, "8292 12288", "8300 12288", 1), "frame 0 100 8192", "frame 0 107 8192", 1))) // gaps
	for _, b := range bad {
		f.Add([]byte(strings.Replace(good, b.old, b.new, 1)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := DecodeIndex(bytes.NewReader(b))
		if err != nil {
			if !errdefs.IsDataLoss(err) && !errdefs.IsNotImplemented(err) {
				t.Errorf("Decode gives %v", err)
			}
			return
		}
		if text := encodeIndex(t, x); text != string(b) {
			t.Errorf("the text came back as\n%q instead of\n%q", text, b)
		}
	})
}

// large is an index of 100 GB of memory in 400 segments; with scattered pages of zeros, there are so many runs in each frame.
func large(runs int64) *Index {
	x := &Index{PageSize: 4096, Files: []PagesFile{{ID: 1, Pagemap: "pagemap-1.img", Count: 400 * 256 * 256}}}
	r := rand.NewChaCha8([32]byte{1})
	for s := range 400 {
		x.Segments = append(x.Segments, Segment{})
		is := &x.Segments[s]
		for f := range int64(256) {
			n := int64(s)*256 + f
			fr := Frame{Segment: s, Offset: is.Size, Check: r.Uint64()}
			_, _ = r.Read(fr.Digest[:])
			each := 256 / runs
			for i := range runs {
				count := each
				if runs > 1 {
					count--
				}
				fr.Runs = append(fr.Runs, Run{File: 1, First: n*256 + i*each, Count: count, Addr: uint64(n)<<20 + uint64(i*each)<<12})
				fr.Raw += count << 12
			}
			fr.Stored = fr.Raw
			is.Size += fr.Stored
			is.Raw += fr.Raw
			x.Frames = append(x.Frames, fr)
		}
	}
	return x
}

func BenchmarkDecode(b *testing.B) {
	for _, runs := range []int64{1, 8} {
		b.Run(fmt.Sprintf("%d runs", runs), func(b *testing.B) {
			text := encodeIndex(b, large(runs))
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeIndex(strings.NewReader(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, runs := range []int64{1, 8} {
		b.Run(fmt.Sprintf("%d runs", runs), func(b *testing.B) {
			x := large(runs)
			b.ReportAllocs()
			for b.Loop() {
				if err := x.Check(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
