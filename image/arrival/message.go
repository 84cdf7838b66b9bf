package arrival

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// message is what clients and servers tell each other: a length of 4 bytes, big-endian, so many bytes of JSON, and the bytes of a
// blob where it says that some follow.
type message struct {
	// A client's.
	Read  *part  `json:"read,omitempty"`  // it asks for bytes
	Watch string `json:"watch,omitempty"` // what it does; the connection is for what follows
	Held  bool   `json:"held,omitempty"`  // it needs nothing any more
	List  bool   `json:"list,omitempty"`  // it wants to be told of segments that are verified; the connection is for that
	// A server's.
	Bytes    int64 `json:"bytes,omitempty"`    // so many follow
	Complete bool  `json:"complete,omitempty"` // all segments are in the store
	// Verified is a segment that is. With the message comes the file that it is; without, it is in the store.
	Verified digest.Digest `json:"verified,omitempty"`
	// Of either.
	Failed *failure.Error `json:"failed,omitempty"`
}

// part is a part of a segment.
type part struct {
	Segment ocispec.Descriptor `json:"segment"`
	Offset  int64              `json:"offset"`
	Length  int64              `json:"length"`
	Why     Why                `json:"why,omitempty"`
}

// Limits of what is taken from the other process.
const (
	maxMessage = 32 << 10
	maxPart    = 16 << 20
)

func writeMessage(w io.Writer, m message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("a message has %d bytes", len(data))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// readMessage gives io.EOF where there is no more.
func readMessage(r io.Reader) (m message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return m, fmt.Errorf("a message has %d bytes", n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return message{}, fmt.Errorf("read a message: %w", err)
	}
	if p := m.Read; p != nil && (p.Offset < 0 || p.Length <= 0 || p.Length > maxPart || p.Offset > p.Segment.Size-p.Length) {
		return message{}, fmt.Errorf("a message asks for %d bytes at %d of %d", p.Length, p.Offset, p.Segment.Size)
	}
	if m.Bytes < 0 || m.Bytes > maxPart {
		return message{}, fmt.Errorf("a message announces %d bytes", m.Bytes)
	}
	return m, nil
}
