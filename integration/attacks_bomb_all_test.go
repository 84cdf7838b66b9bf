package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// What a command may take on any input, however hostile.
const (
	mostMemory = 512 << 20        // bytes
	mostTime   = 20 * time.Second // 10 on a quiet machine
)

// cost is what a command has taken.
type cost struct {
	memory int64 // bytes at most
	disk   int64 // bytes in the host's files at most, beyond those before
	tmpfs  int64 // bytes in the machine's memory file systems at most, beyond those before
}

// measured runs cryo on a host.
func measured(t *testing.T, h *lab.Host, args ...string) (lab.Result, cost) {
	t.Helper()
	before := cost{disk: diskUsed(h.Dir), tmpfs: tmpfsUsed()}
	var most cost
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watch := func(pause time.Duration, look func()) {
		watching.Go(func() {
			for {
				began := time.Now()
				look()
				select {
				case <-stop:
					return
				case <-time.After(max(pause, 10*time.Since(began))): // it takes time from what it looks at
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*mostTime)
	defer cancel()
	c := h.Command(ctx, "cryo", args...)
	r := lab.Follow(c, func() {
		watch(50*time.Millisecond, func() {
			most.disk, most.tmpfs = max(most.disk, diskUsed(h.Dir)-before.disk), max(most.tmpfs, tmpfsUsed()-before.tmpfs)
		})
		watch(5*time.Millisecond, func() { most.memory = max(most.memory, peak(c.Process.Pid)) })
	})
	close(stop)
	watching.Wait()
	return r, most
}

// peak is the most memory that a process has had at once, with what the one has now in which it has images reviewed, if it is cryo: what it was before it became
// that is the test's. Of the other the program does not count, which both have.
func peak(pid int) int64 {
	own := memoryOf(pid, "cryo", "VmHWM")
	if own == 0 {
		return 0
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is right
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may have ended
		for _, child := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				own += memoryOf(n, "cryo-review", "RssAnon", "RssShmem")
			}
		}
	}
	return own
}

// memoryOf sums up lines of what the kernel says of the memory of a process of this name, bytes.
func memoryOf(pid int, name string, lines ...string) (sum int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || !strings.HasPrefix(string(text), "Name:\t"+name+"\n") {
		return 0 // it has ended, or not begun
	}
	for _, line := range lines {
		var n int64
		_, rest, _ := strings.Cut(string(text), "\n"+line+":")
		_, _ = fmt.Sscan(rest, &n) // KiB; a process that ends has none
		sum += n << 10
	}
	return sum
}

// tmpfsUsed is how much memory the files of memory file systems take.
func tmpfsUsed() (n int64) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nShmem:")
	_, _ = fmt.Sscan(rest, &n) // KiB; 0 fails no test
	return n << 10
}

// diskUsed is how much room the files below a directory take.
func diskUsed(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			n += st.Blocks * 512
		}
		return nil // what has just been removed takes none
	})
	return n
}

// affordable fails unless a command has stayed within bounds, and has left no more than disk bytes on its way.
func affordable(t *testing.T, r lab.Result, c cost, disk int64) {
	t.Helper()
	t.Logf("%s: exit code %d after %s, %d MiB of memory, %d MiB of disk", r.Command, r.Code, r.Elapsed.Round(time.Millisecond), c.memory>>20, c.disk>>20)
	if c.memory > mostMemory || r.Elapsed > mostTime || c.disk > disk {
		t.Errorf("%s took %d MiB of memory, %s, and %d MiB of disk", r.Command, c.memory>>20, r.Elapsed, c.disk>>20)
	}
}

// refusedCheaply runs cryo, and wants it to refuse a damaged snapshot within bounds, and to change nothing.
func refusedCheaply(t *testing.T, h *lab.Host, words string, args ...string) {
	t.Helper()
	before := trace(t, h)
	refusal(t, harmless(t, h, nil, 128<<20, args...), codeDamaged, words)
	wantTrace(t, h, before, "blob ", "store /partial/") // what was fetched is kept, for the next
}

// repeated is zstd of n bytes that are all the same. Source: RFC 8878, sections 3.1.1.1 and 3.1.1.2.
func repeated(c byte, n int64) []byte {
	const block = 128 << 10
	b := binary.LittleEndian.AppendUint32(nil, 0xfd2fb528)
	b = append(b, 0, 7<<3) // no checksum, no length; a window of 128 KiB
	for n > 0 {
		size := min(n, block)
		n -= size
		head := uint32(size)<<3 | 1<<1 // one byte, repeated
		if n == 0 {
			head |= 1
		}
		b = append(b, byte(head), byte(head>>8), byte(head>>16), c)
	}
	return b
}

// compressed is zstd of anything.
func compressed(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// bombTar is a tar, in zstd, of one file of so many equal bytes, and its length.
func bombTar(t *testing.T, name string, c byte, n int64) ([]byte, int64) {
	t.Helper()
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: n, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	end := make([]byte, -n&511+1024)
	out := append(compressed(t, head.Bytes()), repeated(c, n)...)
	return append(out, compressed(t, end)...), int64(head.Len()) + n + int64(len(end))
}

// TestAttackBombs has layers that unpack to 8 GiB of zeros or of anything else: they are refused before they are read.
func TestAttackBombs(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"rootfs"}))
	for _, test := range []struct {
		name, mediaType, file string
		fill                  byte
	}{
		{"CRIU's images, zeros", image.MediaTypeCRIU, "ghost-file-1.img", 0},
		{"CRIU's images, text", image.MediaTypeCRIU, "ghost-file-1.img", 'a'},
		{"root file system, zeros", image.MediaTypeRootFS, "bomb", 0},
		{"root file system, text", image.MediaTypeRootFS, "bomb", 'a'},
	} {
		t.Run(test.name, func(t *testing.T) {
			content, size := bombTar(t, test.file, test.fill, 8<<30)
			ref := "cryo.test/bomb:1"
			from := g.lay(t, ref, g.layer(t, test.mediaType, content, size))
			away(t, ref)
			for _, args := range [][]string{{"pull", from}, {"restore", from, "--name", "bomb"}} {
				refusedCheaply(t, b, "unpacked-size", args...)
			}
			// One that says that it is small is cut where it says.
			must(t, b.Cryo(t.Context(), "pull", g.lay(t, ref, g.layer(t, test.mediaType, content, 1<<20))))
			for _, args := range [][]string{{"verify", ref}, {"restore", ref, "--name", "bomb"}} {
				refusedCheaply(t, b, "longer than its descriptor says", args...)
			}
		})
	}
}

// TestAttackTmpfsBomb has the image of a tmpfs that unpacks to 768 MiB. What is not zeros is refused, and of zeros no memory is made.
func TestAttackTmpfsBomb(t *testing.T) {
	a, b := pair(t)
	guarded(t, b)
	pullBase(t, b)
	f := frozen{id: name(t)}
	f.ref = "cryo.test/" + f.id + ":1"
	start(t, a, f.id, []string{"--mount", "type=tmpfs,src=tmpfs,dst=/cache,options=mode=1777"}, "workload", "count")
	pid, _, err := a.Task(t.Context(), f.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/cache/file", pid), bytes.Repeat([]byte("contents"), 8<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	away(t, f.ref)
	must(t, a.Cryo(t.Context(), "checkpoint", f.id, f.ref))
	remove(t.Context(), a, f.id)
	f.digest = inspect(t, a, f.ref).Digest
	g := newForger(t, f)
	for _, test := range []struct {
		name string
		fill byte
	}{{"zeros", 0}, {"text", 'a'}} {
		t.Run(test.name, func(t *testing.T) {
			const size = 768 << 20
			ref := "cryo.test/bomb:1"
			g.forgeImages(t, b, ref, func(dir string) {
				name := largest(t, filepath.Join(dir, "tmpfs-dev-*.tar.gz.img"))
				old, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				in, err := gzip.NewReader(bytes.NewReader(old))
				if err != nil {
					t.Fatal(err)
				}
				var image bytes.Buffer
				z, err := gzip.NewWriterLevel(&image, gzip.BestCompression)
				if err != nil {
					t.Fatal(err)
				}
				// What was there stays: the container goes on.
				was, err := io.ReadAll(in)
				if err != nil {
					t.Fatal(err)
				}
				var head bytes.Buffer
				if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./bomb", Size: size, Mode: 0o600}); err != nil {
					t.Fatal(err)
				}
				parts := []io.Reader{bytes.NewReader(bytes.TrimRight(was, "\x00")), bytes.NewReader(make([]byte, -len(bytes.TrimRight(was, "\x00"))&511)), &head}
				fill := bytes.Repeat([]byte{test.fill}, 1<<20)
				for range size >> 20 {
					parts = append(parts, bytes.NewReader(fill))
				}
				if _, err := io.Copy(z, io.MultiReader(append(parts, bytes.NewReader(make([]byte, 1024)))...)); err != nil {
					t.Fatal(err)
				}
				if err := z.Close(); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, image.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			})
			id := name(t)
			cleanup(t, b, id)
			before := trace(t, b)
			r, c := measured(t, b, "restore", ref, "--name", id)
			if t.Logf("%d MiB of tmpfs", c.tmpfs>>20); c.tmpfs > 512<<20 { // a hundred times the image's 4 MB, and what else the machine does
				t.Errorf("it took %d MiB of tmpfs", c.tmpfs>>20)
			}
			affordable(t, r, c, 128<<20)
			if test.fill != 0 {
				refusal(t, r, codeDamaged, "unpacked-size")
				wantTrace(t, b, before)
				return
			}
			must(t, r)
			await(t, b, id)
			pid, _, err := b.Task(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Stat(fmt.Sprintf("/proc/%d/root/cache/bomb", pid), &st); err != nil || st.Size != size || st.Blocks > 8 {
				t.Errorf("the file of zeros has %d bytes in %d blocks (%v)", st.Size, st.Blocks, err)
			}
		})
	}
}

// largest is the largest file of a pattern.
func largest(t *testing.T, pattern string) (name string) {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	most := int64(-1)
	for _, f := range found {
		if info, err := os.Stat(f); err == nil && info.Size() > most {
			name, most = f, info.Size()
		}
	}
	if name == "" {
		t.Fatalf("there is no %s", pattern)
	}
	return name
}

// TestAttackRootfsCost has root file systems that are small and much work to write: deep directories, and files in them.
func TestAttackRootfsCost(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"rootfs"}))
	dir := func(n int) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeDir, Name: strings.Repeat("a/", n), Mode: 0o700}
	}
	for _, test := range []struct {
		name, says string
		n          int
		entry      func(i int) *tar.Header
	}{
		{"directories", "of more than 128 names", 1900, func(i int) *tar.Header { return dir(i + 1) }},
		{"files in deep directories", "unpacked-size", 5000, func(i int) *tar.Header {
			if i < 120 {
				return dir(i + 1)
			}
			return &tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("a/", 120) + fmt.Sprint(i), Mode: 0o600}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var raw bytes.Buffer
			w := tar.NewWriter(&raw)
			for i := range test.n {
				if err := w.WriteHeader(test.entry(i)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			ref := "cryo.test/cost:1"
			from := g.lay(t, ref, g.layer(t, image.MediaTypeRootFS, compressed(t, raw.Bytes()), int64(raw.Len())))
			away(t, ref)
			cleanup(t, b, "cost")
			r, c := measured(t, b, "restore", from, "--name", "cost")
			affordable(t, r, c, 256<<20)
			refusal(t, r, codeDamaged, test.says)
		})
	}
}
