package direct

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// What is written through the page cache is there at once, and on the disk after Flush, in several files, with as little room as there may be.
func TestBehind(t *testing.T) {
	for _, room := range []int64{1, 3 * Piece, 1 << 40} {
		b := NewBehind(room)
		data := random(20*Piece + 77)
		done := make(chan error, 3)
		for range cap(done) {
			f := create(t)
			go func() { done <- writeBehind(t.Context(), b, f, data) }()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Errorf("room for %d bytes: %v", room, err)
			}
		}
		if b.waiting != 0 || b.short != 0 {
			t.Errorf("room for %d bytes: %d are waiting in the end, and %d writers", room, b.waiting, b.short)
		}
	}
}

func writeBehind(ctx context.Context, b *Behind, f *os.File, data []byte) error {
	defer f.Close()
	if _, err := f.Write(data[:100]); err != nil {
		return err
	}
	w := b.File(f, 100)
	defer w.Close()
	for rest := data[100:]; len(rest) > 0; {
		n, err := w.Write(rest[:min(Piece, len(rest))])
		if err != nil {
			return err
		}
		rest = rest[n:]
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, data[:len(data)-len(rest)]) {
			return errors.Join(errors.New("what was written cannot be read"), err)
		}
	}
	return w.Flush(ctx)
}

// A disk that does not keep up holds writers up; one that is not waited for any more does not.
func TestBehindWaits(t *testing.T) {
	b := NewBehind(4 * Piece)
	disk := make(chan struct{})
	f := create(t)
	defer f.Close()
	w := b.file(f, 0, func(int, int64, int64) error { <-disk; return nil })
	var written atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 12 {
			if _, err := w.Write(make([]byte, Piece)); err != nil {
				t.Error(err)
			}
			written.Add(1)
		}
	}()
	time.Sleep(30 * time.Millisecond)
	if n := written.Load(); n != 4 {
		t.Errorf("%d pieces are in memory, there is room for 4", n)
	}
	close(disk)
	<-done
	w.Close()
	if b.waiting != 0 {
		t.Errorf("%d bytes are waiting for nothing", b.waiting)
	}
}

// Who does not want to wait for the disk any more does not.
func TestBehindCancelled(t *testing.T) {
	disk := make(chan struct{})
	f := create(t)
	defer f.Close()
	w := NewBehind(4*Piece).file(f, 0, func(int, int64, int64) error { <-disk; return nil })
	if _, err := w.Write(make([]byte, Piece)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Flush gives %v", err)
	}
	close(disk)
	w.Close()
}

// What the disk says of earlier bytes comes up with a later write, and at the latest with Flush.
func TestBehindFails(t *testing.T) {
	errDisk := errors.New("the disk has failed")
	b := NewBehind(2 * Piece)
	f := create(t)
	defer f.Close()
	w := b.file(f, 0, func(int, int64, int64) error { return errDisk })
	var err error
	for range 20 {
		if _, err = w.Write(make([]byte, Piece)); err != nil {
			break
		}
	}
	if !errors.Is(err, errDisk) {
		t.Errorf("writing gives %v", err)
	}
	if err := w.Flush(t.Context()); !errors.Is(err, errDisk) {
		t.Errorf("Flush gives %v", err)
	}
	w.Close()
	if b.waiting != 0 {
		t.Errorf("%d bytes are waiting", b.waiting)
	}
}

// The disk is left alone until it is time, or half of the room is taken; who waits to have all on the disk waits for that too.
func TestBehindLater(t *testing.T) {
	for name, test := range map[string]struct {
		later  time.Duration
		room   int64
		pieces int
		begin  func(*Behind)
		alone  bool // before begin
	}{
		"it hurries":       {time.Hour, 100 * Piece, 20, (*Behind).Hurry, true},
		"it is time":       {time.Second, 100 * Piece, 20, func(*Behind) {}, true},
		"half of the room": {time.Hour, 100 * Piece, 60, (*Behind).Hurry, false},
		"little room":      {time.Hour, 4 * Piece, 20, (*Behind).Hurry, false},
	} {
		b, began := NewBehind(test.room), time.Now()
		b.Later(test.later)
		var synced atomic.Int64
		f := create(t)
		w := b.file(f, 0, func(_ int, _, n int64) error { synced.Add(n); return nil })
		for range test.pieces {
			if _, err := w.Write(make([]byte, Piece)); err != nil {
				t.Fatal(err)
			}
		}
		if test.alone {
			time.Sleep(10 * time.Millisecond)
		} else {
			for end := time.Now().Add(5 * time.Second); synced.Load() == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
		if n := synced.Load(); (n == 0) != test.alone && time.Since(began) < test.later {
			t.Errorf("%s: %d bytes are on the disk", name, n)
		}
		flushed := make(chan error, 1)
		go func() { flushed <- w.Flush(t.Context()) }()
		test.begin(b)
		if err := <-flushed; err != nil || synced.Load() != int64(test.pieces)*Piece {
			t.Errorf("%s: %d bytes are on the disk in the end, %v", name, synced.Load(), err)
		}
		w.Close()
		f.Close()
	}
	var none *Behind
	none.Hurry()
}
