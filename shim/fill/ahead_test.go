package fill

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/index"
)

// at is a part of so many pages.
func at(addr uint64, pages int64) image.Part {
	return image.Part{Runs: []index.Run{{Addr: addr, Count: pages}}}
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
		if got := first(all, page, test.used, test.most); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if got := first(nil, page, []uint64{1}, 1<<30); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}

// slowParts gives the address of a part when it is let.
type slowParts struct {
	there func(image.Part) bool
	read  func(image.Part) ([]byte, error)
	cache func(image.Part)
}

func (s slowParts) Cache(p image.Part) error {
	s.cache(p)
	return errors.New("the disk is broken")
}

func (s slowParts) There(p image.Part) bool { return s.there != nil && s.there(p) }
func (s slowParts) Keep(p image.Part) (image.Kept, error) {
	data, err := s.read(p)
	return image.Kept{Data: data}, err
}

// takes gives the bytes of a piece.
func takes(ctx context.Context, a *ahead, at place) ([]byte, error) {
	kept, err := a.take(ctx, at)
	return kept.Data, err
}

// queued is a channel with wishes.
func queued(wishes []wish) <-chan wish {
	queue := make(chan wish, len(wishes))
	for _, w := range wishes {
		queue <- w
	}
	close(queue)
	return queue
}

// TestAhead fetches four pieces: one is taken before it is begun, one is there, one fails, and one is waited for.
func TestAhead(t *testing.T) {
	wishes := []wish{{place{1, 0}, at(0, 1)}, {place{1, 1}, at(1, 1)}, {place{1, 2}, at(2, 1)}, {place{2, 0}, at(3, 1)}}
	a := newAhead(wishes, heldMost, 0)
	if data, err := takes(t.Context(), a, place{1, 0}); data != nil || err != nil {
		t.Errorf("what nobody has begun with gives %v, %v", data, err)
	}
	begun, let := make(chan struct{}), make(chan struct{})
	from := slowParts{
		there: func(p image.Part) bool { return p.Runs[0].Addr == 1 },
		read: func(p image.Part) ([]byte, error) {
			switch p.Runs[0].Addr {
			case 2:
				return nil, errors.New("it is gone")
			case 3:
				close(begun)
				<-let
				return []byte{3}, nil
			}
			t.Errorf("%#x is read", p.Runs[0].Addr)
			return nil, errors.ErrUnsupported
		},
	}
	ended := make(chan struct{})
	arrived := 0
	go func() {
		a.fetch(queued(wishes), from, func() { arrived++ })
		close(ended)
	}()
	<-begun
	if a.there(place{2, 0}) {
		t.Error("what is on its way is there")
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	b := newAhead(nil, heldMost, 0)
	b.pieces[place{2, 0}] = &early{done: make(chan struct{})}
	if _, err := takes(canceled, b, place{2, 0}); !errors.Is(err, context.Canceled) {
		t.Errorf("without patience: %v", err)
	}
	taken := make(chan []byte)
	go func() {
		data, err := takes(t.Context(), a, place{2, 0})
		if err != nil {
			t.Error(err)
		}
		taken <- data
	}()
	close(let)
	if data := <-taken; !slices.Equal(data, []byte{3}) {
		t.Errorf("what was waited for is %v", data)
	}
	<-ended
	if data, err := takes(t.Context(), a, place{1, 2}); data != nil || err != nil || a.there(place{1, 2}) {
		t.Errorf("what failed gives %v, %v", data, err)
	}
	if data, _ := takes(t.Context(), a, place{2, 0}); data != nil || arrived != 2 {
		t.Errorf("a piece is given twice, or %d have arrived", arrived)
	}
}

// TestAheadStops begins with nothing when the process runs, and gives what there is.
func TestAheadStops(t *testing.T) {
	wishes := []wish{{place{1, 0}, at(0, 1)}, {place{1, 1}, at(1, 1)}}
	a := newAhead(wishes, heldMost, 0)
	a.fetch(queued(wishes), slowParts{read: func(p image.Part) ([]byte, error) { return []byte{1}, nil }}, a.stop)
	if !a.there(place{1, 0}) || a.there(place{1, 1}) {
		t.Error("it goes on")
	}
	var none *ahead
	none.stop()
	if data, err := takes(t.Context(), none, place{}); data != nil || err != nil || none.there(place{}) {
		t.Errorf("nobody gives %v, %v", data, err)
	}
}

// TestAheadHolds no more than it may: what has come counts as what it takes, what is on its way as a whole piece.
func TestAheadHolds(t *testing.T) {
	const most = 4 * direct.Piece
	for name, test := range map[string]struct {
		size         int
		beyond       int64
		want, cached int
	}{
		"large":             {direct.Piece, 0, 4, 0},
		"half":              {direct.Piece / 2, 0, 7, 0},
		"small":             {1, 0, 100, 0},
		"beyond":            {direct.Piece, 7*direct.Piece + 1, 4, 7},
		"small, and beyond": {1, 7 * direct.Piece, 100, 0},
		"all":               {direct.Piece, 1 << 40, 4, 96},
	} {
		wishes := make([]wish, 100)
		for i := range wishes {
			wishes[i] = wish{place{1, i}, at(uint64(i), 1)}
		}
		a := newAhead(wishes, most, test.beyond)
		cached := 0
		a.fetch(queued(wishes), slowParts{read: func(image.Part) ([]byte, error) { return make([]byte, test.size), nil }, cache: func(image.Part) { cached++ }}, func() {})
		got := 0
		for i := range wishes {
			if a.there(place{1, i}) {
				got++
			}
		}
		if cached != test.cached {
			t.Errorf("%s: %d pieces are brought into the page cache, want %d", name, cached, test.cached)
		}
		if got != test.want || a.held != int64(got*test.size) {
			t.Errorf("%s: %d pieces, %d bytes, want %d pieces", name, got, a.held, test.want)
		}
	}
}

// TestAheadFails for pieces that cannot be read: they take no room, and who wants them hears the reason.
func TestAheadFails(t *testing.T) {
	wishes := make([]wish, 20)
	for i := range wishes {
		wishes[i] = wish{place{1, i}, at(uint64(i), 1)}
	}
	a := newAhead(wishes, 2*direct.Piece, 0)
	tried := 0
	a.fetch(queued(wishes), slowParts{read: func(image.Part) ([]byte, error) {
		tried++
		return nil, errors.New("it is damaged")
	}}, func() {})
	if tried != len(wishes) || a.held != 0 {
		t.Errorf("after %d attempts %d bytes are held", tried, a.held)
	}
	if data, err := takes(t.Context(), a, place{1, 7}); data != nil || err != nil {
		t.Errorf("what could not be read gives %v, %v", data, err)
	}
	ended := a.begin(2, wishes, func() (parts, func(), error) { return nil, nil, errors.New("no memory") }, func() {})
	ended()
}

// TestAheadEnds when the restore is broken off: what is on its way is waited for, and nothing is begun.
func TestAheadEnds(t *testing.T) {
	wishes := []wish{{place{1, 0}, at(0, 1)}, {place{1, 1}, at(1, 1)}, {place{1, 2}, at(2, 1)}}
	a := newAhead(wishes, heldMost, 0)
	begun, let := make(chan struct{}), make(chan struct{})
	closed := false
	ended := a.begin(1, wishes, func() (parts, func(), error) {
		return slowParts{read: func(p image.Part) ([]byte, error) {
			if p.Runs[0].Addr != 0 {
				t.Error("it goes on")
			}
			close(begun)
			<-let
			return []byte{1}, nil
		}}, func() { closed = true }, nil
	}, func() {})
	<-begun
	a.stop()
	close(let)
	ended()
	if !closed || !a.there(place{1, 0}) {
		t.Error("the reader is not waited for")
	}
}

func TestHeadRoom(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, test := range []struct {
		cores, readers          int
		available, held, beyond int64
	}{
		{2, 0, 64 * gib, 256 * mib, 0}, // CRIU needs both
		{3, 0, 64 * gib, 256 * mib, 0},
		{4, 1, 64 * gib, 256 * mib, 0},
		{8, 2, 64 * gib, 256 * mib, gib},
		{16, 4, 64 * gib, 256 * mib, gib},
		{192, 4, 64 * gib, 256 * mib, gib},
		{16, 4, 8 * gib, 256 * mib, 512 * mib},
		{16, 4, gib, 64 * mib, 64 * mib},
	} {
		if readers, held, beyond := headRoom(test.cores, test.available); readers != test.readers || held != test.held || beyond != test.beyond {
			t.Errorf("%d cores, %d bytes: %d readers, %d bytes and %d beyond", test.cores, test.available, readers, held, beyond)
		}
	}
}
