package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Operation keeps every blob in the store while it is open, tagged or not: a process that writes blobs opens one before the first
// and closes it after the tag, a process that reads blobs for longer than a moment does too.
type Operation struct {
	s    *Store
	f    *os.File // nil: a store on a read-only file system has no file to lock
	once sync.Once
}

// Begin starts an operation. It waits for a running collection as long as ctx allows, and removes what dead processes left. It needs no store that can be written.
func (s *Store) Begin(ctx context.Context) (*Operation, error) {
	f, err := lockReading(ctx, s.opsLock())
	if err != nil {
		return nil, fmt.Errorf("begin operation: %w", mapError(s.root, err))
	}
	o := &Operation{s: s, f: f}
	if err := s.sweep(); err != nil && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrNotExist) {
		o.Close()
		return nil, fmt.Errorf("begin operation: %w", mapError(s.root, err))
	}
	return o, nil
}

// sweep removes what will not be finished.
func (s *Store) sweep() error {
	if err := sweepFiles(s.ingest(), all); err != nil {
		return err
	}
	if err := sweepFiles(s.partial(), s.over); err != nil {
		return err
	}
	return s.sweepWork()
}

// over reports whether the file of an interrupted pull can be removed: it is too old, or its blob is complete. A power failure can bring a removed file back beside its blob.
func (s *Store) over(part fs.FileInfo) bool {
	return time.Since(part.ModTime()) >= s.partialAge || exists(filepath.Join(s.blobs(), part.Name()))
}

// Close ends the operation. The last one makes up for a collection that had to wait.
func (o *Operation) Close() error {
	o.once.Do(func() {
		if o.f != nil {
			o.f.Close()
		}
		if !exists(o.s.pending()) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// Whatever keeps it from being done now is met, and reported, by the next Remove.
		_, _ = o.s.collect(ctx)
	})
	return nil
}

// Abandon closes the operation and has the blobs collected that it wrote and did not tag.
func (o *Operation) Abandon() error {
	if err := o.s.postpone(); err != nil {
		o.Close()
		return err
	}
	return o.Close()
}
