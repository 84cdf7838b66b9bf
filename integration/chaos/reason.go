package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/integration/lab"
)

// exits are the containers whose first processes' ends a containerd has reported, since it was asked.
type exits struct {
	close func() error

	mu  sync.Mutex
	ids map[string]bool // guarded by mu
}

// watchExits listens until close. It hears nothing of a containerd that is started anew.
func watchExits(ctx context.Context, h *lab.Host) (*exits, error) {
	client, err := h.Client()
	if err != nil {
		return nil, err
	}
	listening, stop := context.WithCancel(ctx)
	all, errs := client.EventService().Subscribe(listening, `topic=="/tasks/exit"`)
	e := &exits{ids: map[string]bool{}}
	over := make(chan struct{})
	e.close = func() error {
		stop()
		<-over
		return client.Close()
	}
	go func() {
		defer close(over)
		for {
			select {
			case <-errs:
				return
			case envelope := <-all:
				said, err := typeurl.UnmarshalAny(envelope.Event)
				if exit, ok := said.(*events.TaskExit); err == nil && ok && exit.ID == exit.ContainerID {
					e.mu.Lock()
					e.ids[exit.ContainerID] = true
					e.mu.Unlock()
				}
			}
		}
	}()
	return e, nil
}

func (e *exits) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ids[id]
}

// logged tells whether a log has, from an offset on, a line about a container that is more than a detail.
func logged(path string, from int64, id string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() // it is only read
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return false
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if about(lines.Text(), id) {
			return true
		}
	}
	return false
}

// about tells whether a line of containerd's is about a container.
func about(line, id string) bool {
	if strings.Contains(line, "level=debug") || strings.Contains(line, "connecting to shim") {
		return false
	}
	return strings.Contains(line+" ", "id="+id+" ") || strings.Contains(line, " "+id+":") || strings.Contains(line, "default/"+id)
}
