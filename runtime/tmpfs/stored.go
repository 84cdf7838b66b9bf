package tmpfs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// A piece of output is what is written at once: 16 blocks, so that writes to a file begin at multiples of their own length.
const (
	outBlock  = 64 << 10 // a stored block with its header
	outPiece  = 1 << 20
	outPieces = 4 // of memory
	// storedHead is the length of a stored block's header: RFC 1951, section 3.2.4.
	storedHead = 5
)

// gzipHead: RFC 1952, section 2.3: deflate, no flags, no time, made on Unix.
var gzipHead = [10]byte{0x1f, 0x8b, 8, 9: 3}

// storedWriter writes a gzip stream of stored blocks. Its output is written, and summed up, while more comes in.
type storedWriter struct {
	piece []byte // being filled; its length is what is in it
	block int    // where in it the header of the block being filled is

	full chan []byte
	free chan []byte
	done chan struct{}
	err  error // once done is closed

	// Of the goroutine that writes: what there was, in the words of the trailer, and whether anything was.
	sum, size uint32
	begun     bool
}

func newStoredWriter(w io.Writer) *storedWriter {
	s := &storedWriter{full: make(chan []byte, outPieces), free: make(chan []byte, outPieces), done: make(chan struct{})}
	for range outPieces {
		s.free <- make([]byte, 0, outPiece)
	}
	s.piece = append(<-s.free, gzipHead[:]...)
	s.begin()
	go s.write(w)
	return s
}

func (s *storedWriter) begin() {
	s.block = len(s.piece)
	s.piece = s.piece[:s.block+storedHead]
}

// end completes the header of the block being filled, of which the first bit says whether it is the last one.
func (s *storedWriter) end(last byte) {
	n := uint16(len(s.piece) - s.block - storedHead)
	h := s.piece[s.block:]
	h[0] = last
	binary.LittleEndian.PutUint16(h[1:], n)
	binary.LittleEndian.PutUint16(h[3:], ^n)
}

// room gives where more may be put, at least one byte; added then says how much was.
func (s *storedWriter) room() ([]byte, error) {
	end := (s.block/outBlock + 1) * outBlock
	if len(s.piece) == end {
		s.end(0)
		if end == outPiece {
			s.full <- s.piece
			select {
			case s.piece = <-s.free:
			case <-s.done:
				return nil, s.err
			}
			s.piece = s.piece[:0]
			end = 0
		}
		s.begin()
		end += outBlock
	}
	return s.piece[len(s.piece):end], nil
}

func (s *storedWriter) added(n int) { s.piece = s.piece[:len(s.piece)+n] }

// Write implements [io.Writer].
func (s *storedWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		room, err := s.room()
		if err != nil {
			return n, err
		}
		c := copy(room, p[n:])
		s.added(c)
		n += c
	}
	return n, nil
}

// readAt takes exactly n bytes of f's contents from offset on.
func (s *storedWriter) readAt(f io.ReaderAt, offset, n int64) error {
	for end := offset + n; offset < end; {
		room, err := s.room()
		if err != nil {
			return err
		}
		got, err := f.ReadAt(room[:min(int64(len(room)), end-offset)], offset)
		s.added(got)
		offset += int64(got)
		if err != nil && offset < end {
			if err == io.EOF {
				err = fmt.Errorf("the file has become shorter: %w", io.ErrUnexpectedEOF)
			}
			return err
		}
	}
	return nil
}

// close ends the stream, or after an error gives it up, and waits until all has been written.
func (s *storedWriter) close(err error) error {
	if err == nil {
		s.end(1)
		s.full <- s.piece
	}
	close(s.full)
	<-s.done
	if err == nil {
		err = s.err
	}
	return err
}

// write writes pieces. After an error it takes no more, see room.
func (s *storedWriter) write(w io.Writer) {
	defer close(s.done)
	for piece := range s.full {
		last := s.add(piece)
		if last {
			piece = binary.LittleEndian.AppendUint32(piece, s.sum)
			piece = binary.LittleEndian.AppendUint32(piece, s.size)
		}
		if _, err := w.Write(piece); err != nil {
			s.err = fmt.Errorf("write the image: %w", err)
			return
		}
		s.free <- piece[:0:outPiece]
	}
}

// add sums up the contents of a piece's blocks, and tells whether it has the last one.
func (s *storedWriter) add(piece []byte) (last bool) {
	if !s.begun {
		s.begun = true
		piece = piece[len(gzipHead):]
	}
	for len(piece) > 0 {
		last = piece[0] == 1
		data := piece[storedHead:][:binary.LittleEndian.Uint16(piece[1:])]
		s.sum = crc32.Update(s.sum, crc32.IEEETable, data)
		s.size += uint32(len(data))
		piece = piece[storedHead+len(data):]
	}
	return last
}
