package format

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
)

// EncodeIndex writes the text of an index. An index that breaks a rule of [Index.Check] is refused.
func EncodeIndex(w io.Writer, x *Index) error {
	if err := x.Check(); err != nil {
		return err
	}
	e := encoder{w: bufio.NewWriterSize(w, 64<<10)}
	e.line(append(e.word("cryo-index"), fmt.Sprintf(" %d sha256 xxh64 %d", x.Version(), x.PageSize)...))
	for i, s := range x.Segments {
		b := number(e.word("segment"), int64(i))
		b = appendHex(b, s.Digest[:])
		e.line(number(number(b, s.Size), s.Raw))
	}
	for _, f := range x.Files {
		if f.IsDevice() {
			e.line(number(fileID(e.word("device"), f.ID), f.Count))
			continue
		}
		b := fileID(e.word("pages"), f.ID)
		b = append(append(b, ' '), f.Pagemap...)
		e.line(number(b, f.Count))
	}
	for i := range x.Frames {
		e.frame(&x.Frames[i])
	}
	e.line(number(e.word("end"), e.lines))
	if e.err != nil {
		return fmt.Errorf("write index: %w", e.err)
	}
	if err := e.w.Flush(); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}

type encoder struct {
	w     *bufio.Writer
	buf   [maxLine]byte
	lines int64
	err   error
}

func (e *encoder) word(s string) []byte { return append(e.buf[:0], s...) }

func (e *encoder) frame(f *Frame) {
	b := number(e.word("frame"), int64(f.Segment))
	b = number(number(b, f.Offset), f.Stored)
	b = append(append(b, ' '), f.Codec.String()...)
	b = appendHex(number(b, f.Raw), f.Digest[:])
	e.line(appendHex(b, binary.BigEndian.AppendUint64(nil, f.Check)))
	for _, r := range f.Runs {
		b := fileID(e.word("run"), r.File)
		b = append(number(number(b, r.First), r.Count), ' ')
		e.line(strconv.AppendUint(b, r.Addr, 16))
	}
}

func (e *encoder) line(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(append(b, '\n'))
	}
	e.lines++
}

func number(b []byte, v int64) []byte { return strconv.AppendInt(append(b, ' '), v, 10) }

// fileID writes the number of a pages file, or process and GPU of device memory: d12.0.
func fileID(b []byte, id uint64) []byte {
	if pid, gpu, ok := DeviceOf(id); ok {
		b = strconv.AppendInt(append(b, " d"...), int64(pid), 10)
		return strconv.AppendInt(append(b, '.'), int64(gpu), 10)
	}
	return number(b, int64(id))
}

func appendHex(b, v []byte) []byte { return hex.AppendEncode(append(b, ' '), v) }
