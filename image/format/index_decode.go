package format

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
)

// DecodeIndex reads the text of an index and checks it. It returns an error of kind DataLoss for a text that is not an index, an error of kind NotImplemented for an index of another version,
// and the errors of r. It uses memory as the text comes in, at most three times the text's length and some MB.
func DecodeIndex(r io.Reader) (*Index, error) {
	d := decoder{r: bufio.NewReaderSize(r, 64<<10), x: new(Index)}
	if err := d.read(); err != nil {
		if errdefs.IsDataLoss(err) {
			err = broken("line %d: %s", d.lines, strings.TrimPrefix(err.Error(), reading))
		}
		return nil, err
	}
	if v := d.x.Version(); v != d.version {
		return nil, broken("a text of version %d that should be of version %d", d.version, v)
	}
	if err := d.x.Check(); err != nil {
		return nil, err
	}
	return d.x, nil
}

type decoder struct {
	r       *bufio.Reader
	x       *Index
	version int   // of the header
	lines   int   // read so far
	size    int64 // of them
	stage   int   // of the last line, by its kind
	ended   bool
	runs    []Run // of the last frame, with room for those of further frames
}

// stageOf returns the stage of a line by its first word: stages do not go back, and a run belongs to the frame before it. -1: there is no
// such line.
func stageOf(word []byte) int {
	switch string(word) {
	case "run", "frame":
		return 3
	case "segment":
		return 0
	case "pages":
		return 1
	case "device":
		return 2
	case "end":
		return 4
	}
	return -1
}

func (d *decoder) read() error {
	line, err := d.line()
	if err != nil {
		return err
	}
	if err := d.header(line); err != nil {
		return err
	}
	for !d.ended {
		if line, err = d.line(); err != nil {
			return err
		}
		f := fields{line: line}
		word := f.word()
		stage := stageOf(word)
		switch {
		case stage < 0:
			return broken("a line of unknown kind %q", clip(word))
		case stage < d.stage:
			return broken("a %s line is out of order", word)
		}
		d.stage = stage
		switch word[0] {
		case 'r':
			d.run(&f)
		case 'f':
			d.frame(&f)
		case 's':
			d.segment(&f)
		case 'p':
			d.pages(&f)
		case 'd':
			d.device(&f)
		case 'e':
			d.end(&f)
		}
		if err := f.finish(); err != nil {
			return err
		}
	}
	switch _, err := d.r.ReadByte(); {
	case err == nil:
		return broken("something follows the end")
	case err != io.EOF:
		return fmt.Errorf("read index: %w", err)
	}
	return nil
}

// line returns the next line without its end, valid until the next call.
func (d *decoder) line() ([]byte, error) {
	line, err := d.r.ReadSlice('\n')
	d.lines++
	d.size += int64(len(line))
	if err == nil && len(line) <= maxLine && d.size <= MaxIndexText {
		return line[:len(line)-1], nil
	}
	switch {
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, broken("the text is cut short")
	case len(line) > maxLine || errors.Is(err, bufio.ErrBufferFull):
		return nil, broken("a line of more than %d bytes", maxLine)
	case err != nil:
		return nil, fmt.Errorf("read index: %w", err)
	}
	return nil, broken("more than %d bytes of text", int64(MaxIndexText))
}

func (d *decoder) header(line []byte) error {
	f := fields{line: line}
	if string(f.word()) != "cryo-index" {
		return broken("the text does not begin with cryo-index")
	}
	switch v := f.word(); string(v) {
	case "1":
		d.version = 1
	case "2":
		d.version = 2
	default:
		if len(v) > 0 && len(v) < 10 && strings.Trim(string(v), "0123456789") == "" {
			return otherVersion(string(v))
		}
		return broken("its version is not a number")
	}
	if a := f.word(); f.err == nil && string(a) != "sha256" {
		return broken("digest algorithm %q instead of sha256", clip(a))
	}
	switch c := f.word(); {
	case f.err == nil && f.none() && len(c) > 0 && strings.Trim(string(c), "0123456789") == "":
		return otherVersion("1 without xxh64") // as it was before a release
	case f.err == nil && string(c) != "xxh64":
		return broken("quick check %q instead of xxh64", clip(c))
	}
	d.x.PageSize = f.number(maxPageSize)
	return f.finish()
}

func (d *decoder) segment(f *fields) {
	if n := f.number(MaxSegments - 1); f.err == nil && n != int64(len(d.x.Segments)) {
		f.fail("segment %d instead of %d", n, len(d.x.Segments))
	}
	var s Segment
	f.digest(&s.Digest)
	s.Size, s.Raw = f.number(MaxSegmentBytes), f.number(MaxSegmentBytes)
	d.x.Segments = append(d.x.Segments, s)
}

func (d *decoder) pages(f *fields) {
	id := f.number(1<<32 - 1)
	name := string(f.word())
	d.file(f, PagesFile{ID: uint64(id), Pagemap: name, Count: f.number(MaxPages)})
}

func (d *decoder) device(f *fields) {
	file := PagesFile{ID: f.fileID(), Count: f.number(MaxPages)}
	if !file.IsDevice() {
		f.fail("device memory with the id of a pages file")
	}
	d.file(f, file)
}

func (d *decoder) file(f *fields, file PagesFile) {
	if len(d.x.Files) == MaxPagesFiles {
		f.fail("more than %d pages files", MaxPagesFiles)
		return
	}
	d.x.Files = append(d.x.Files, file)
}

func (d *decoder) frame(f *fields) {
	var fr Frame
	fr.Segment = int(f.number(MaxSegments - 1))
	fr.Offset, fr.Stored = f.number(MaxSegmentBytes), f.number(MaxFrame)
	switch name := f.word(); string(name) {
	case "raw":
		fr.Codec = Raw
	case "zstd":
		fr.Codec = Zstd
	default:
		f.fail("unknown codec %q", clip(name))
	}
	fr.Raw = f.number(MaxFrame)
	f.digest(&fr.Digest)
	fr.Check = f.check()
	if d.x.Frames == nil {
		d.x.Frames = make([]Frame, 0, d.frames())
	}
	d.x.Frames = append(d.x.Frames, fr)
	d.runs = d.runs[len(d.runs):]
}

// frames guesses how many frames there will be: as few as there can be, and some. A text that lies has a few MB made room for.
func (d *decoder) frames() int64 {
	var least int64
	for _, s := range d.x.Segments {
		least = min(least+s.Raw/MaxFrame+1, 1<<15)
	}
	return least + least/8
}

func (d *decoder) run(f *fields) {
	if len(d.x.Frames) == 0 {
		f.fail("a run before the first frame")
		return
	}
	fr := &d.x.Frames[len(d.x.Frames)-1]
	if len(fr.Runs) == MaxFrame/minPageSize {
		f.fail("more runs than pages in a frame")
		return
	}
	r := Run{File: f.fileID(), First: f.number(MaxPages), Count: f.number(MaxPages)}
	r.Addr = f.address()
	if len(d.runs) == cap(d.runs) {
		d.runs = append(make([]Run, 0, len(d.runs)+runsAtOnce), d.runs...)
	}
	d.runs = append(d.runs, r)
	fr.Runs = d.runs[:len(d.runs):len(d.runs)]
}

// runsAtOnce is for how many runs there is made room.
const runsAtOnce = 512

func (d *decoder) end(f *fields) {
	if n := f.number(maxNumber); f.err == nil && n != int64(d.lines-1) {
		f.fail("the end counts %d lines, there are %d", n, d.lines-1)
	}
	d.ended = true
}

// fields takes a line apart: words separated by single spaces. The first error is kept.
type fields struct {
	line []byte
	at   int // where the next word begins
	err  error
}

// none reports whether nothing is left, not even an empty word.
func (f *fields) none() bool { return f.at > len(f.line) }

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = broken(format, args...)
	}
}

func (f *fields) word() []byte {
	if f.none() {
		f.fail("too few fields")
		return nil
	}
	word := f.line[f.at:]
	if n := bytes.IndexByte(word, ' '); n >= 0 {
		word = word[:n]
	}
	f.at += len(word) + 1
	if len(word) == 0 {
		f.fail("an empty field")
	}
	return word
}

// number reads a decimal number without sign or leading zeros, at most limit.
func (f *fields) number(limit int64) int64 { return f.parse(f.word(), limit) }

// fileID reads the number of a pages file, or process and GPU of device memory: d12.0.
func (f *fields) fileID() uint64 {
	word := f.word()
	if len(word) > 0 && word[0] == 'd' {
		pid, gpu, _ := bytes.Cut(word[1:], []byte("."))
		return DeviceFile(int(f.parse(pid, MaxPID)), int(f.parse(gpu, record.MaxGPUs-1)))
	}
	return uint64(f.parse(word, 1<<32-1))
}

func (f *fields) parse(word []byte, limit int64) int64 {
	if len(word) == 0 {
		f.fail("a number is missing")
	}
	var v int64
	for i, c := range word {
		if c < '0' || c > '9' || i == 0 && c == '0' && len(word) > 1 {
			f.fail("%q is not a number", clip(word))
			return 0
		}
		if v > maxNumber/10 || v*10+int64(c-'0') > limit {
			f.fail("%q is larger than %d", clip(word), limit)
			return 0
		}
		v = v*10 + int64(c-'0')
	}
	return v
}

// digits are the values of hexadecimal digits in lower case; noDigit: it is none.
var digits = func() (values [256]byte) {
	for c := range values {
		values[c] = noDigit
	}
	for v, c := range []byte("0123456789abcdef") {
		values[c] = byte(v)
	}
	return values
}()

const noDigit = 0xff

// hexadecimal fills to with the bytes of a word of twice as many digits in lower case.
func hexadecimal(to, word []byte) bool {
	if len(word) != 2*len(to) {
		return false
	}
	var bad byte
	for i := range to {
		high, low := digits[word[2*i]], digits[word[2*i+1]]
		bad |= high | low
		to[i] = high<<4 | low
	}
	return bad < 16
}

// address reads a hexadecimal number in lower case without leading zeros.
func (f *fields) address() uint64 {
	word := f.word()
	if len(word) > 16 || len(word) > 1 && word[0] == '0' {
		f.fail("%q is not an address", clip(word))
		return 0
	}
	var v uint64
	for _, c := range word {
		digit := digits[c]
		if digit == noDigit {
			f.fail("%q is not an address", clip(word))
			return 0
		}
		v = v<<4 | uint64(digit)
	}
	return v
}

func (f *fields) digest(to *[32]byte) {
	word := f.word()
	if f.err == nil && !hexadecimal(to[:], word) {
		f.fail("%q is not a sha256 digest", clip(word))
	}
}

// check reads an XXH64: 16 hexadecimal digits in lower case.
func (f *fields) check() uint64 {
	word := f.word()
	var sum [8]byte
	if f.err == nil && !hexadecimal(sum[:], word) {
		f.fail("%q is not an xxh64", clip(word))
	}
	return binary.BigEndian.Uint64(sum[:])
}

func (f *fields) finish() error {
	if !f.none() {
		f.fail("too many fields")
	}
	return f.err
}

func clip(b []byte) []byte { return b[:min(len(b), 80)] }
