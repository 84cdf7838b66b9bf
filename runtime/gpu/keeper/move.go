package keeper

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// progressTime is how often the client hears how far it has come.
const progressTime = time.Second

// move sends or receives all that is held.
func (s *server) move(ctx context.Context, do verb, peer *os.File) error {
	if err := s.ready(); err != nil {
		return err
	}
	link, err := ring.Offer(peer, s.ring)
	if err != nil {
		return err
	}
	peer.Close() // the link has its own, and hanging up is to be heard
	defer link.Close()
	link.Waits = func() { s.waits.Add(1) }
	s.moved.Store(0)
	defer s.tell()()
	if do == verbSend {
		err = link.Send(ctx, s.sizes(), s.sendAll)
	} else {
		err = s.receiveAll(ctx, link)
	}
	if err != nil {
		// The other process may write into it still.
		return errors.Join(err, s.drop())
	}
	return nil
}

// ready has a ring that is pinned.
func (s *server) ready() (err error) {
	if s.ring == nil {
		if s.ring, err = ring.New(s.geometry); err != nil {
			return err
		}
	}
	if s.unpin == nil && (len(s.pieces) > 0 || s.opened) {
		s.unpin, err = s.driver.Pin(s.ring.Bytes())
	}
	return err
}

// drop does away with the ring.
func (s *server) drop() (err error) {
	if s.unpin != nil {
		err = s.unpin()
	}
	err = errors.Join(err, s.ring.Close())
	s.ring, s.unpin = nil, nil
	return err
}

// tell tells the client how far it has come, until it is called off.
func (s *server) tell() (callOff func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(progressTime)
		defer t.Stop()
		told, waits := int64(0), s.waits.Load()
		for {
			select {
			case <-t.C:
			case <-done:
				return
			}
			if moved, now := s.moved.Load(), s.waits.Load(); moved != told || now != waits {
				told, waits = moved, now
				_ = s.channel.Send(answer{Moved: moved}) // who is gone is noticed elsewhere
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// count counts what has been moved.
func (s *server) count(bytes int64) { s.moved.Add(bytes) }
