package worker

import (
	"errors"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// at is a part of so many pages.
func at(addr uint64, pages int64) image.Part {
	return image.Part{Runs: []format.Run{{Addr: addr, Count: pages}}}
}

func TestFirst(t *testing.T) {
	const page = 4096
	all := []image.Part{
		at(0x400000, 2), at(0x410000, 1), // a program's own
		at(1<<30, 256), at(1<<30+1<<20, 256), at(1<<30+2<<20, 256), at(1<<30+3<<20, 256), at(1<<30+4<<20, 1), // what it works on
		at(1<<46, 4), // a stack
	}
	for name, test := range map[string]struct {
		used []uint64
		most int64
		want []int
	}{
		"small before large": {nil, 1 << 30, []int{0, 1, 7}},
		"what is used":       {[]uint64{1<<46 + 1, 1<<30 + 1<<20 + 5*page, 1<<46 + 2*page, 7}, 1 << 30, []int{7, 3, 0, 1}},
		"within a limit":     {nil, 6 * page, []int{0, 1}},
		"nothing":            {[]uint64{1 << 46}, page - 1, nil},
		"behind a part":      {[]uint64{1<<46 + 4*page, 0x402000}, 3 * page, []int{0, 1}},
	} {
		if got := firstParts(all, page, test.used, test.most); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if got := firstParts(nil, page, []uint64{1}, 1<<30); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}

// slowParts reads as a function does.
type slowParts func(image.Part) ([]byte, error)

func (s slowParts) Read(p image.Part) ([]byte, error) { return s(p) }
func (s slowParts) Close()                            {}

func newPrefetch() *prefetch {
	return &prefetch{pieces: make(map[place][]byte), taken: make(map[place]bool)}
}

// TestPrefetch fetches four pieces: one is taken before it is begun, one is there, one fails, and one is taken while it is on its way, so it is not given any more.
// Another comes in time.
func TestPrefetch(t *testing.T) {
	needed := []neededPiece{{place{1, 0}, at(0, 1)}, {place{1, 1}, at(1, 1)}, {place{1, 2}, at(2, 1)}, {place{2, 0}, at(3, 1)}, {place{2, 1}, at(4, 1)}}
	p := newPrefetch()
	if data := p.take(place{1, 0}); data != nil {
		t.Errorf("what nobody has begun with gives %v", data)
	}
	begun, let := make(chan struct{}), make(chan struct{})
	buf := make([]byte, 1) // that of a reader, which the next piece is read into
	from := slowParts(func(part image.Part) ([]byte, error) {
		buf[0] = byte(part.Runs[0].Addr)
		switch buf[0] {
		case 2:
			return nil, errors.New("it is gone")
		case 3:
			close(begun)
			<-let
		case 4:
		default:
			t.Errorf("%#x is read", buf[0])
		}
		return buf, nil
	})
	arrived := make(chan struct{}, len(needed))
	ended := p.begin(1, needed, func(part image.Part) bool { return part.Runs[0].Addr == 1 }, func() (parts, error) { return from, nil }, func() { arrived <- struct{}{} })
	<-begun
	if p.there(place{2, 0}) {
		t.Error("what is on its way is there")
	}
	if data := p.take(place{2, 0}); data != nil {
		t.Errorf("what is on its way gives %v", data)
	}
	close(let)
	<-arrived
	<-arrived
	ended()
	if p.there(place{2, 0}) || !p.there(place{2, 1}) || p.there(place{1, 2}) {
		t.Errorf("there is %v", p.pieces)
	}
	buf[0] = 7
	if data := p.take(place{2, 1}); !slices.Equal(data, []byte{4}) {
		t.Errorf("what has come is %v", data)
	}
	if data := p.take(place{2, 1}); data != nil || p.there(place{2, 1}) {
		t.Errorf("a piece is given twice: %v", data)
	}
	var none *prefetch
	none.stop()
	if none.take(place{}) != nil || none.there(place{}) {
		t.Error("nobody gives something")
	}
}

// TestPrefetchEnds when the process runs or the restore is broken off: what is on its way is waited for, and nothing is begun.
func TestPrefetchEnds(t *testing.T) {
	needed := []neededPiece{{place{1, 0}, at(0, 1)}, {place{1, 1}, at(1, 1)}}
	p := newPrefetch()
	begun, let := make(chan struct{}), make(chan struct{})
	ended := p.begin(1, needed, func(image.Part) bool { return false }, func() (parts, error) {
		return slowParts(func(part image.Part) ([]byte, error) {
			if part.Runs[0].Addr != 0 {
				t.Error("it goes on")
			}
			close(begun)
			<-let
			return []byte{1}, nil
		}), nil
	}, func() {})
	<-begun
	p.stop()
	close(let)
	ended()
	if !p.there(place{1, 0}) {
		t.Error("the reader is not waited for")
	}
	ended = p.begin(2, needed, nil, func() (parts, error) { return nil, errors.New("no memory") }, nil)
	ended()
}
