//go:build cgo

package main

import (
	"context"
	"os"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// progressTime is how often the client hears that something moves.
const progressTime = time.Second

// move sends or receives all that is held.
func (s *server) move(ctx context.Context, do device.KeeperVerb, peer *os.File) error {
	if err := s.ready(); err != nil {
		return err
	}
	link, err := device.OfferRing(peer, s.ring)
	if err != nil {
		return err
	}
	peer.Close() // the link has its own, and hanging up is to be heard
	defer link.Close()
	link.Waits = s.moved
	defer s.tell()()
	if do == device.VerbSend {
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
	return s.memory.Pin(s.ring.Bytes())
}

// tell tells the client that it comes along, until it is called off.
func (s *server) tell() (callOff func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(progressTime)
		defer t.Stop()
		told := s.progress.Load()
		for {
			select {
			case <-t.C:
			case <-done:
				return
			}
			if now := s.progress.Load(); now != told {
				told = now
				_ = s.channel.Send(device.KeeperAnswer{}) // a client that is gone is noticed elsewhere
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// moved counts that something was moved, or waited for as it should be.
func (s *server) moved() { s.progress.Add(1) }
