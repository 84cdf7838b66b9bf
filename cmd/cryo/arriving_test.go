package main

import (
	"context"
	"testing"
	"time"
)

// TestQuiet waits while parts are asked for, though not for ever, and no longer than there is a pull.
func TestQuiet(t *testing.T) {
	for name, prepare := range map[string]func(c *arriving, cancel func()){
		"nobody asks":       func(*arriving, func()) {},
		"somebody asked":    func(c *arriving, _ func()) { c.wanted.Store(time.Now().UnixNano()) },
		"somebody waits":    func(c *arriving, _ func()) { c.asking.Store(1) },
		"the pull is ended": func(c *arriving, cancel func()) { c.asking.Store(1); cancel() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := &arriving{ctx: ctx}
		prepare(c, cancel)
		began := time.Now()
		c.quiet(began)
		if took := time.Since(began); c.asking.Load() == 0 && took < quietTime {
			t.Errorf("%s: it waits for %s", name, took)
		}
		cancel()
	}
}
