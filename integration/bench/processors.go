package main

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

// processorUse is a record of how much of their time the machine's processors were in use.
type processorUse struct {
	samples []processorSample
	end     func()
}

// processorSample is what the kernel has counted since the machine was started.
type processorSample struct {
	at        time.Time
	used, all int64 // ticks, of all processors together
}

// sampleTime is that between two samples. The kernel counts in ticks of 10 ms.
const sampleTime = 20 * time.Millisecond

// watchProcessors records until it is stopped.
func watchProcessors() *processorUse {
	u := &processorUse{}
	ending, ended := make(chan struct{}), make(chan struct{})
	u.end = sync.OnceFunc(func() {
		close(ending)
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			if s, ok := parseProcessors(read("/proc/stat")); ok {
				s.at = time.Now()
				u.samples = append(u.samples, s)
			}
			select {
			case <-ending:
				return
			case <-time.After(sampleTime):
			}
		}
	}()
	return u
}

// stop ends the record.
func (u *processorUse) stop() { u.end() }

// between returns the share of a span in which the processors were in use: 1 if all were at all times, 0 if there is no sample before and after. The record has ended.
func (u *processorUse) between(first, last time.Time) float64 {
	var from, to processorSample
	for _, s := range u.samples {
		if !s.at.After(first) || from.all == 0 {
			from = s
		}
		if to = s; !s.at.Before(last) {
			break
		}
	}
	if to.all <= from.all {
		return 0
	}
	return float64(to.used-from.used) / float64(to.all-from.all)
}

// parseProcessors reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. What follows is in user and nice already. Source: proc_stat(5).
func parseProcessors(stat string) (s processorSample, ok bool) {
	line, _, _ := strings.Cut(stat, "\n")
	words := strings.Fields(line)
	const idle, iowait, steal = 4, 5, 8
	if len(words) <= steal || words[0] != "cpu" {
		return s, false
	}
	for i, word := range words[1 : steal+1] {
		ticks, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return s, false
		}
		s.all += ticks
		if i+1 != idle && i+1 != iowait {
			s.used += ticks
		}
	}
	return s, true
}
