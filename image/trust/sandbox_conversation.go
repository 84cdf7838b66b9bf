package trust

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A message has a kind, and a length before its contents. What has no kind here goes to the sandbox.
type messageKind byte

const (
	toSandbox messageKind = iota
	ready                 // the process is confined
	unready               // it is not, and why: text
	question              // JSON of asked; it is answered
	request               // JSON of wanted
	result                // JSON of outcome, the last message
)

// Bounds of what the sandbox says, bytes.
const (
	maxMessage  = 32 << 20 // a request may name what has one record's length
	maxQuestion = 1 << 20
)

// maxSaid bounds all that the sandbox says but for questions, which end with the time that a review may take; bytes. Tests lower it.
var maxSaid int64 = 256 << 20

// send writes a message.
func send(w io.Writer, k messageKind, contents []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{byte(k)}, uint32(len(contents)))
	_, err := w.Write(append(head, contents...))
	return ended(err)
}

func sendJSON(w io.Writer, k messageKind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return send(w, k, b)
}

// receive reads a message of no more than most bytes.
func receive(r io.Reader, most int) (messageKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, ended(err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if int64(n) > int64(most) {
		return 0, nil, fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return messageKind(head[0]), b, ended(err)
}

// ended makes the error of a socket whose other end is closed errGone.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return errGone
	}
	return err
}

// reviewOrder is what is to be reviewed, and how.
type reviewOrder struct {
	Images []file
	Spec   *specs.Spec
	Files  bool // what depends on the root file system, and not the images themselves
}

// file is an image as it was handed over. What may be no text is bytes here and below: JSON would change it.
type file struct {
	Name   []byte
	Kind   uint32 // fs.ModeType bits
	Size   int64
	At     int64 // where it is in the memory that is handed over
	Stored int64 // how much of it is there
}

// asked is a question.
type asked struct {
	Exists []byte       `json:",omitempty"` // is there such a file on the host?
	Look   *look        `json:",omitempty"` // see Files
	May    *may         `json:",omitempty"` // see Files
	Read   *readMessage `json:",omitempty"` // the answer is bytes, none at the end
}

type look struct {
	Mount  int
	Within []byte
}

type may struct {
	Mount  int
	Within []byte
	Do     Access
}

type readMessage struct {
	Name []byte
	At   int64
}

// answer is what was asked for.
type answer struct {
	Yes    bool   `json:",omitempty"`
	Kind   uint32 `json:",omitempty"`
	Target []byte `json:",omitempty"`
	Err    []byte `json:",omitempty"`
}

// wanted is a Request.
type wanted struct {
	Rule  string
	Grant Grant
	What  []byte
}

// outcome is how the review ended, beside the requests that came before.
type outcome struct {
	Damaged *damaged `json:",omitempty"`
	Err     []byte   `json:",omitempty"` // of another kind
}

// damaged is a DamagedError.
type damaged struct {
	Rule      string
	File, Err []byte
}

func outcomeOf(err error) (o outcome) {
	var d *DamagedError
	switch {
	case err == nil:
	case errors.As(err, &d):
		o.Damaged = &damaged{Rule: d.Rule, File: []byte(d.File), Err: []byte(d.Err.Error())}
	default:
		o.Err = []byte(err.Error())
	}
	return o
}

func (o outcome) error() error {
	switch {
	case o.Damaged != nil:
		return &DamagedError{Rule: o.Damaged.Rule, File: string(o.Damaged.File), Err: errors.New(string(o.Damaged.Err))}
	case len(o.Err) > 0:
		return errors.New(string(o.Err))
	}
	return nil
}
