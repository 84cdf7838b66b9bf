package tmpfs

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"sync/atomic"
)

const (
	inPiece  = 1 << 20
	inPieces = 4 // of memory
)

// stream is the contents of a gzip file, which another goroutine reads ahead and decompresses.
type stream struct {
	compressed atomic.Int64 // bytes read so far
	full       chan piece
	free       chan []byte
	stop       chan struct{}
	now        piece
	rest       []byte // of now
}

type piece struct {
	data []byte
	err  error // after data
}

func newStream(r io.Reader) *stream {
	s := &stream{full: make(chan piece, inPieces), free: make(chan []byte, inPieces), stop: make(chan struct{})}
	for range inPieces {
		s.free <- make([]byte, inPiece)
	}
	go s.read(r)
	return s
}

// read ends after a piece with an error.
func (s *stream) read(r io.Reader) {
	z, err := gzip.NewReader(bufio.NewReaderSize(&counted{r, &s.compressed}, inPiece))
	if err != nil {
		s.full <- piece{err: fmt.Errorf("decompress the image: %w", cut(err))}
		return
	}
	for {
		var b []byte
		select {
		case b = <-s.free:
		case <-s.stop:
			return
		}
		n, err := io.ReadFull(z, b)
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			// Of the decompressor's own: whether that is the end is what it says when asked again.
			if _, err = z.Read(make([]byte, 1)); err != io.EOF {
				err = fmt.Errorf("decompress the image: %w", cut(err))
			}
		default:
			err = fmt.Errorf("decompress the image: %w", err)
		}
		s.full <- piece{b[:n], err}
		if err != nil {
			return
		}
	}
}

// take gives up to limit bytes, at least one, which hold until the next call; io.EOF at the end of a sound gzip file.
func (s *stream) take(limit int64) ([]byte, error) {
	for len(s.rest) == 0 {
		if s.now.err != nil {
			return nil, s.now.err
		}
		if s.now.data != nil {
			s.free <- s.now.data[:inPiece]
		}
		s.now = <-s.full
		s.rest = s.now.data
	}
	n := min(limit, int64(len(s.rest)))
	p := s.rest[:n]
	s.rest = s.rest[n:]
	return p, nil
}

// Read implements [io.Reader].
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := s.take(int64(len(p)))
	return copy(p, b), err
}

// close ends reading ahead.
func (s *stream) close() { close(s.stop) }

// counted counts what is read.
type counted struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}
