package keeper

import (
	"context"
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
		return link.Send(ctx, s.sizes(), s.sendAll)
	}
	return s.receiveAll(ctx, link)
}

// ready pins the ring, once there is a device.
func (s *server) ready() error {
	if s.pinned || len(s.pieces) == 0 && !s.opened {
		return nil
	}
	s.pinned = true
	return s.driver.Pin(s.ring.Bytes())
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
