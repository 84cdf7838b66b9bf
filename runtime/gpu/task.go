package gpu

import "time"

// task is something that goes on beside what else is done; nil is one that is over.
type task struct {
	done chan struct{}
	err  error // valid when done is closed
}

// beside begins it.
func beside(do func() error) *task {
	t := &task{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = do()
	}()
	return t
}

func (t *task) over() bool {
	if t == nil {
		return true
	}
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// waitTime bounds how long something is waited for that was ended: a driver that hangs may keep even a killed process.
const waitTime = 10 * time.Second

// wait waits for one that was ended.
func (t *task) wait() {
	if t == nil {
		return
	}
	select {
	case <-t.done:
	case <-time.After(waitTime):
	}
}
