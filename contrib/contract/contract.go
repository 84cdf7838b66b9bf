// Package contract lets a program take part in its checkpoints and restores by cryo: see shim/CONTRACT.md. It is one file without dependencies; copy it, or import it.
//
//	c, err := contract.Open() // nil where the container's environment names no control directory
//	...
//	go func() {
//		for {
//			event, err := c.Wait()
//			if err != nil {
//				return
//			}
//			if event.Name == contract.Restored {
//				changes, err := c.Changes()
//				...
//			}
//		}
//	}()
//	err = c.Ready()
//
// The methods of a nil Contract do nothing. So a program runs unchanged in a container that cryo does not know.
package contract

import (
	"bufio"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Variable names the control directory.
const Variable = "CRYO_CONTROL_DIR"

// The names of events. There may be others, of later releases.
const (
	Restored = "restored" // the program was restored; [Contract.Changes] has what is new
	Resumed  = "resumed"  // it goes on after a checkpoint, whether there is a snapshot or not
)

// Version is the version of [Changes] that this package knows.
const Version = 1

// Contract is a control directory.
type Contract struct {
	dir    string
	events *os.File
	lines  *bufio.Scanner

	mu sync.Mutex // held while a line is read
}

// Event is what has happened to the program.
type Event struct {
	Name       string
	Generation int64 // of Restored
}

// Changes are what is new in a restored program. Environment and Annotations have the values that differ from the snapshot's; nil: it is gone.
type Changes struct {
	Version          int
	Generation       int64
	Snapshot, Digest string
	Frozen, Time     time.Time
	Pause            float64 // seconds
	Hostname         struct{ Was, Is string }
	Addresses        struct{ Was, Is []string }
	GPUs             []struct{ Was, Is string }
	Environment      map[string]*string
	Annotations      map[string]*string
	Members          []struct { // of the group with which the program was restored in step; none: it was restored alone
		Name    string
		Was, Is []string // IP addresses
	}
}

// Open makes the control directory and the FIFO in it, removes what an earlier process has left, and opens the FIFO. It returns nil where the environment names no directory.
func Open() (*Contract, error) {
	dir := os.Getenv(Variable)
	if dir == "" {
		return nil, nil
	}
	c := &Contract{dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := c.Unready(); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "events")
	if err := syscall.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	var err error
	if c.events, err = os.OpenFile(path, os.O_RDWR, 0); err != nil { // for writing, too: else an event is lost that comes between two reads
		return nil, err
	}
	c.lines = bufio.NewScanner(c.events)
	return c, nil
}

// Ready makes the file by which cryo learns that it may take the program's snapshot, at any moment from now on.
func (c *Contract) Ready() error {
	if c == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(c.dir, "ready"), nil, 0o600)
}

// Unready takes that back.
func (c *Contract) Unready() error {
	if c == nil {
		return nil
	}
	if err := os.Remove(filepath.Join(c.dir, "ready")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Wait waits for the next event. Nothing is polled. On a nil Contract it waits for ever.
func (c *Contract) Wait() (Event, error) {
	if c == nil {
		select {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.lines.Scan() {
		name, rest, _ := strings.Cut(c.lines.Text(), " ")
		if name == "" {
			continue
		}
		e := Event{Name: name}
		if name == Restored {
			var err error
			if e.Generation, err = strconv.ParseInt(rest, 10, 64); err != nil {
				return e, fmt.Errorf("read an event: %w", err)
			}
		}
		return e, nil
	}
	return Event{}, fmt.Errorf("read an event: the FIFO was closed: %w", errors.Join(c.lines.Err(), fs.ErrClosed))
}

// Changes returns what is new. It is called after the event [Restored].
func (c *Contract) Changes() (changes Changes, err error) {
	if c == nil {
		return changes, fs.ErrNotExist
	}
	data, err := os.ReadFile(filepath.Join(c.dir, "restored.json"))
	if err != nil {
		return changes, err
	}
	if err := json.Unmarshal(data, &changes); err != nil {
		return changes, fmt.Errorf("read what is new: %w", err)
	}
	if changes.Version != Version {
		return changes, fmt.Errorf("read what is new: version %d is unknown", changes.Version)
	}
	return changes, nil
}

// Rand returns a generator with a seed of the kernel's. Clones have their generators in common, and the functions of math/rand and math/rand/v2 that need none cannot be seeded
// anew: a program uses what Rand returns instead, and calls it again after each event [Restored]. crypto/rand needs nothing.
func Rand() *rand.Rand {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails
	return rand.New(rand.NewChaCha8(seed))
}
