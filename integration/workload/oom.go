package main

import (
	"flag"
	"time"
)

// oom takes memory in a process of its own life: after a while there is none left and the kernel kills it.
type oom struct{ taken [][]byte }

func startOOM(flags *flag.FlagSet, args []string) (workload, error) {
	after := flags.Duration("after", 0, "time until it begins")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	o := &oom{}
	time.AfterFunc(*after, o.take)
	return o, nil
}

func (o *oom) take() {
	for {
		m, err := newMemory(8, 1, "random")
		if err != nil {
			continue
		}
		o.taken = append(o.taken, m.pages)
	}
}

// Check has nothing to say: while it answers it was not killed.
func (o *oom) Check() (map[string]any, error) { return nil, nil }

// Do knows "take": begin now.
func (o *oom) Do(string, []string) (map[string]any, error) {
	go o.take()
	return nil, nil
}
