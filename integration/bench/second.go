package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
)

// second measures how many bytes a second snapshot adds to the local store and sends to the registry, after 1 % of memory has changed.
func (b *bench) second(ctx context.Context, s subject) error {
	m, err := newMeter(ctx, b.lab.Address(), b.registry.Address)
	if err != nil {
		return err
	}
	defer m.listener.Close()
	for _, change := range []struct {
		how string
		run int // pages
		aim float64
	}{{"in one run", 0, 0.02}, {"in scattered runs of 64 KiB", 16, 0.2}, {"in scattered single pages", 1, 0}} {
		kept := &figure{What: "bytes stored, 1 % changed " + change.how, BesideWhat: "first snapshot"}
		sent := &figure{What: "bytes sent, 1 % changed " + change.how, BesideWhat: "first snapshot"}
		for _, f := range []*figure{kept, sent} {
			f.Case, f.Subject, f.Unit, f.Aim = "second", s.name(), "B", aim{Ratio: change.aim}
		}
		err := b.with(ctx, cryoRuntime, s, func(c *container) error {
			for n, name := range []string{"first", "second"} {
				if n == 1 {
					if _, err := c.ask(ctx, "change", "10", strconv.Itoa(change.run)); err != nil {
						return err
					}
				}
				k, t, err := b.moved(ctx, c, m, name)
				if err != nil {
					return err
				}
				if n == 0 {
					kept.Beside, sent.Beside = append(kept.Beside, k), append(sent.Beside, t)
				} else {
					kept.Cryo, sent.Cryo = append(kept.Cryo, k), append(sent.Cryo, t)
				}
			}
			return nil
		})
		b.report.add(kept, sent)
		if err := errors.Join(err, b.afresh(ctx, b.a)); err != nil {
			return err
		}
	}
	return nil
}

// moved is how many bytes a checkpoint adds to the store, and its push sends.
func (b *bench) moved(ctx context.Context, c *container, m *meter, name string) (kept, sent float64, err error) {
	store, wire := c.host.CryoRoot(), m.sent.Load()
	before, err := stored(store)
	if err != nil {
		return 0, 0, err
	}
	ref := fmt.Sprintf("%s/bench/second:%s-%s", m.address(), c.id, name)
	if _, _, err := b.checkpoint(ctx, c, ref, "--leave-running"); err != nil {
		return 0, 0, err
	}
	after, err := stored(store)
	if err != nil {
		return 0, 0, err
	}
	err = c.host.Cryo(ctx, "push", "--plain-http", ref).Err()
	return float64(after - before), float64(m.sent.Load() - wire), err
}

// meter stands in front of a registry and counts what is sent to it.
type meter struct {
	listener net.Listener
	sent     atomic.Int64 // bytes
}

func newMeter(ctx context.Context, ip, registry string) (*meter, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen in front of the registry: %w", err)
	}
	m := &meter{listener: l}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // it is over
			}
			go m.serve(ctx, client, registry)
		}
	}()
	return m, nil
}

func (m *meter) address() string { return m.listener.Addr().String() }

// serve passes one connection on; an end of either side ends it.
func (m *meter) serve(ctx context.Context, client net.Conn, registry string) {
	defer client.Close()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", registry)
	if err != nil {
		return // the client sees the end
	}
	go func() {
		_, _ = io.Copy(counted{server, &m.sent}, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// counted counts what is written.
type counted struct {
	to    io.Writer
	count *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.count.Add(int64(n))
	return n, err
}
