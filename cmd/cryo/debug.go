package main

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/log"
)

// stages tells who debugs what a command has done, and how long it took.
type stages struct {
	mu          sync.Mutex
	start, last time.Time // guarded by mu; of the command, and of what was done last
}

// done says that something is done.
func (s *stages) done(ctx context.Context, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	log.G(ctx).WithFields(log.Fields{"took": now.Sub(s.last).Round(time.Microsecond), "since-start": now.Sub(s.start).Round(time.Microsecond)}).Debug(what)
	s.last = now
}

func (s *stages) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = time.Now()
	s.last = s.start
}
