package main

import (
	"context"
	"path"
	"sync"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc"
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

// traceCall is a [grpc.UnaryClientInterceptor] that tells of a request to containerd.
func traceCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	start := time.Now()
	err := invoke(ctx, method, req, reply, cc, o...)
	e := log.G(ctx).WithFields(log.Fields{"service": path.Base(path.Dir(method)), "method": path.Base(method), "took": time.Since(start).Round(time.Microsecond)})
	if err != nil {
		e = e.WithError(err)
	}
	e.Debug("request to containerd")
	return err
}
