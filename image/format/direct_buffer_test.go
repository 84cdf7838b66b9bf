package format

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// What is lent belongs to one at a time, has room for a piece that begins anywhere, and is lent again.
func TestLend(t *testing.T) {
	var all [][]byte
	seen := make(map[*byte]bool)
	for i := range 40 {
		b := LendBuffer()
		if len(b) != DirectPiece || cap(b) < DirectPiece+2*DirectAlign || !aligned(b) || seen[&b[0]] {
			t.Fatalf("buffer %d: %d of %d bytes, aligned: %v, lent twice: %v", i, len(b), cap(b), aligned(b), seen[&b[0]])
		}
		seen[&b[0]] = true
		for j := range b[:cap(b)] {
			b[:cap(b)][j] = byte(i)
		}
		all = append(all, b)
	}
	for i, b := range all {
		b = b[:cap(b)]
		if b[0] != byte(i) || b[len(b)-1] != byte(i) {
			t.Errorf("buffer %d has bytes of another", i)
		}
	}
	for _, b := range all {
		ReturnBuffer(b[:1]) // as little as who had it may need
	}
	for range all {
		if b := LendBuffer(); len(b) != DirectPiece || !seen[&b[0]] {
			t.Errorf("%d bytes, of what had come back: %v", len(b), seen[&b[0]])
		}
	}
}

// BenchmarkReadAt reads a file that is not in the page cache, by readers side by side, into memory in huge pages and in small ones.
func BenchmarkReadAt(b *testing.B) {
	const size = 512 * DirectPiece
	f := create(b)
	file := NewDirectFile(f)
	defer file.Close()
	data := random(DirectPiece)
	for off := int64(0); off < size; off += DirectPiece {
		if _, err := file.WriteAt(data, off); err != nil {
			b.Fatal(err)
		}
	}
	for _, readers := range []int{1, 4, 16} {
		for name, get := range map[string]func() []byte{"huge": LendBuffer, "small": func() []byte { return AllocDirect(DirectPiece) }} {
			b.Run(fmt.Sprintf("%s-%d", name, readers), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					var next atomic.Int64
					var all sync.WaitGroup
					for range readers {
						all.Go(func() {
							for buf := get(); ; {
								off := next.Add(DirectPiece) - DirectPiece
								if off >= size {
									return
								}
								if _, err := file.ReadAt(buf, off); err != nil {
									b.Error(err)
								}
							}
						})
					}
					all.Wait()
				}
			})
		}
	}
}
