package registry

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// slowly is a puller of a snapshot with these segments, at a registry that answers no request for a part before the test lets it.
type slowly struct {
	*Puller
	store    *store.Store
	segments []ocispec.Descriptor
	data     [][]byte
	asked    chan asked // in the order in which they come
}

// asked is a request for bytes of a segment, from one to another.
type asked struct {
	segment  int
	from, to int64
	let      chan<- struct{} // closed to have it answered
}

func (a asked) String() string { return fmt.Sprintf("%d of segment %d", a.to-a.from, a.segment) }

const slowSize = 4<<20 + 12345

func newSlowly(t *testing.T, seeds ...uint64) *slowly {
	t.Helper()
	f := newFake(t)
	src, d := pushed(t, f, "s:1", storetest.Spec{Seed: 1, Segments: seeds, Size: slowSize})
	s := &slowly{store: storetest.Open(t), asked: make(chan asked, 1000)}
	s.segments = manifestOf(t, src, d).Layers[2:]
	for _, seed := range seeds {
		s.data = append(s.data, storetest.Bytes(seed, slowSize))
	}
	var err error
	o := fast()
	o.timing.idle = time.Minute // the tests let requests wait
	if s.Puller, err = NewPuller(t.Context(), s.store, f.ref("s:1"), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	running := make(chan struct{})
	close(running)
	s.Lazily(Lazy{Source: sourceOf(t, s.store, s.Puller), Head: -1, Running: running, Filled: running})
	s.repo.line.room, s.repo.line.given = 200<<10, true
	f.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		i := slices.IndexFunc(s.segments, func(d ocispec.Descriptor) bool { return strings.HasSuffix(r.URL.Path, d.Digest.String()) })
		let := make(chan struct{})
		a := asked{segment: i, let: let}
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &a.from, &a.to); i < 0 || err != nil {
			t.Errorf("a request for %s, %q", r.URL.Path, r.Header.Get("Range"))
		}
		a.to++
		s.asked <- a
		<-let
		return false
	}
	return s
}

// read reads some of a segment.
func (s *slowly) read(t *testing.T, segment int, from, to int64, ahead bool) error {
	a := opened(t, s.Puller, s.segments[segment])
	read := a.ReadAt
	if ahead {
		read = a.ReadAhead
	}
	p := make([]byte, to-from)
	_, err := read(p, from)
	if err == nil && !bytes.Equal(p, s.data[segment][from:to]) {
		err = errWrong
	}
	return err
}

// once sees that each byte of each segment was asked for, and so many at most were twice.
func (s *slowly) once(t *testing.T, all []asked, twice int64) {
	t.Helper()
	var sum int64
	for i := range s.segments {
		var end int64
		of := slices.DeleteFunc(slices.Clone(all), func(a asked) bool { return a.segment != i })
		slices.SortFunc(of, func(a, b asked) int { return int(a.from - b.from) })
		for _, a := range of {
			if a.from > end {
				t.Errorf("segment %d was asked for up to %d, and from %d", i, end, a.from)
			}
			end = max(end, a.to)
			sum += a.to - a.from
		}
		if end != slowSize {
			t.Errorf("segment %d was asked for up to %d", i, end)
		}
	}
	if most := int64(len(s.segments))*slowSize + twice; sum > most {
		t.Errorf("%d bytes were asked for, want %d at most", sum, most)
	}
}

// rest answers all that comes until the pull is done.
func (s *slowly) rest(t *testing.T, done <-chan error) (all []asked) {
	t.Helper()
	for {
		select {
		case a := <-s.asked:
			all = append(all, a)
			close(a.let)
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			if _, err := store.ReadAll(t.Context(), s.store, s.Descriptor(), 1<<20); err != nil {
				t.Error(err)
			}
			return all
		}
	}
}

// quiet sees that nothing is asked for.
func (s *slowly) quiet(t *testing.T, when string) {
	t.Helper()
	select {
	case a := <-s.asked:
		t.Errorf("%s it asks for %v", when, a)
		close(a.let)
	case <-time.After(100 * time.Millisecond):
	}
}

// What somebody waits for is asked for at once, in a request of its own size, whatever the pull has under way, which is little; nothing else is asked for until it has come;
// and the pull does not fetch it again.
func TestWantedFirst(t *testing.T) {
	t.Parallel()
	s := newSlowly(t, 1, 2)
	done := finish(t.Context(), s.Puller)
	first, second := <-s.asked, <-s.asked
	all := []asked{first, second}
	for _, a := range all {
		if a.from != 0 || a.to > 256<<10 {
			t.Errorf("the pull begins with %v at %d", a, a.from)
		}
	}
	s.quiet(t, "with two under way")
	const from, to = 2<<20 + 77, 3<<20 + 77
	read := make(chan error, 1)
	go func() { read <- s.read(t, 1, from, to, false) }()
	wanted := <-s.asked
	all = append(all, wanted)
	if wanted.segment != 1 || wanted.from != from || wanted.to != to {
		t.Errorf("asked for %v at %d", wanted, wanted.from)
	}
	close(first.let)
	close(second.let)
	s.quiet(t, "while somebody waits")
	close(wanted.let)
	if err := <-read; err != nil {
		t.Error(err)
	}
	s.once(t, append(all, s.rest(t, done)...), 0)
}

// What several wait for is asked for once. The pull does not get there first, and takes it. Who wants what the pull has under way does not wait for that, which may not come.
func TestWantedTogether(t *testing.T) {
	t.Parallel()
	s := newSlowly(t, 1)
	done := finish(t.Context(), s.Puller)
	under := <-s.asked
	read := make(chan error, 2)
	for range 2 {
		go func() { read <- s.read(t, 0, under.to, 1<<20, false) }()
	}
	wanted := <-s.asked
	if wanted.from != under.to || wanted.to != 1<<20 {
		t.Errorf("asked for %v at %d, with %d under way", wanted, wanted.from, under.to)
	}
	early := make(chan error, 1)
	go func() { early <- s.read(t, 0, 0, under.to, false) }()
	again := <-s.asked
	if again.from != 0 || again.to != under.to {
		t.Errorf("asked for %v at %d", again, again.from)
	}
	close(again.let)
	if err := <-early; err != nil {
		t.Error(err)
	}
	close(under.let)
	s.quiet(t, "while somebody waits")
	close(wanted.let)
	if err := errors.Join(<-read, <-read, s.read(t, 0, 0, 1<<20, false)); err != nil { // the last is here
		t.Error(err)
	}
	s.once(t, append([]asked{under, wanted}, s.rest(t, done)...), 0)
}

// What is fetched ahead waits while somebody waits for something else. Who wants the same waits for it, and asks no more.
func TestWantedAhead(t *testing.T) {
	s := newSlowly(t, 1)
	urgent, ahead, read := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { urgent <- s.read(t, 0, 0, 1<<20, false) }()
	first := <-s.asked
	go func() { ahead <- s.read(t, 0, 1<<20, 2<<20, true) }()
	s.quiet(t, "while somebody waits")
	close(first.let)
	second := <-s.asked
	go func() { read <- s.read(t, 0, 1<<20, 2<<20, false) }()
	s.quiet(t, "with the same under way")
	close(second.let)
	if err := errors.Join(<-urgent, <-ahead, <-read); err != nil {
		t.Error(err)
	}
	s.once(t, append([]asked{first, second}, s.rest(t, finish(t.Context(), s.Puller))...), 0)
}

// Whatever is wanted by whom and when, all get the right bytes, and next to nothing comes twice.
func TestWantedAnyhow(t *testing.T) {
	t.Parallel()
	const frame = 256 << 10
	for seed := range uint64(4) {
		s := newSlowly(t, 1, 2, 3)
		done := finish(t.Context(), s.Puller)
		var reading sync.WaitGroup
		for reader := range uint64(4) {
			reading.Go(func() {
				r := rand.New(rand.NewPCG(seed, reader))
				for range 30 {
					from := r.Int64N(slowSize/frame) * frame
					if err := s.read(t, r.IntN(3), from, min(from+frame, slowSize), r.IntN(4) == 0); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all := s.rest(t, done)
		read := make(chan error, 1)
		go func() {
			reading.Wait()
			read <- nil
		}()
		s.once(t, append(all, s.rest(t, read)...), slowSize/4)
	}
}

// Parts that overlap, as no frames do, are read all the same.
func TestWantedOverlapping(t *testing.T) {
	t.Parallel()
	s := newSlowly(t, 1)
	read := make(chan error, 2)
	for n := range 2 {
		go func() { read <- s.read(t, 0, int64(n)<<19, 1<<20+int64(n)<<19, false) }()
	}
	for range 2 {
		close((<-s.asked).let)
	}
	if err := errors.Join(<-read, <-read); err != nil {
		t.Error(err)
	}
	s.rest(t, finish(t.Context(), s.Puller))
}

// What turns out to be damaged comes again, and the pull does not take the damaged bytes.
func TestWantedDamaged(t *testing.T) {
	t.Parallel()
	s := newSlowly(t, 1)
	const from, to = 1 << 20, 2 << 20
	p, a := make([]byte, to-from), opened(t, s.Puller, s.segments[0])
	for n, read := range []func() error{
		func() error { _, err := a.ReadAt(p, from); return err },
		func() error { _, err := a.ReadAgain(p, from); return err },
	} {
		done := make(chan error, 1)
		go func() { done <- read() }()
		a := <-s.asked
		if a.from != from || a.to != to {
			t.Errorf("attempt %d: asked for %v at %d", n, a, a.from)
		}
		close(a.let)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	s.once(t, s.rest(t, finish(t.Context(), s.Puller)), 0)
}
