// Package records takes CRIU's images apart. An image begins with one or two magic numbers. Records follow, each after its length. Source: CRIU,
// criu/image.c and criu/protobuf.c.
package records

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds, in bytes. CRIU's images of a container with a thousand processes have some MB.
const (
	MaxImage = 64 << 20
	MaxSize  = 16 << 20 // of a record
)

const (
	word   = 4
	common = 0x54564319 // IMG_COMMON_MAGIC, before the image's own magic number in all but a few. Source: CRIU, criu/include/magic.h
)

// Body returns the magic number of an image, and its records.
func Body(image []byte) (magic uint32, body []byte, err error) {
	if len(image) >= word && binary.LittleEndian.Uint32(image) == common {
		image = image[word:]
	}
	if len(image) < word {
		return 0, nil, errors.New("ends within a magic number")
	}
	return binary.LittleEndian.Uint32(image), image[word:], nil
}

// Next splits the first record off.
func Next(body []byte) (record, rest []byte, err error) {
	if len(body) < word {
		return nil, nil, errors.New("ends within the length of a record")
	}
	n := int64(binary.LittleEndian.Uint32(body))
	body = body[word:]
	if n > MaxSize {
		return nil, nil, fmt.Errorf("a record of %d bytes; at most %d are allowed", n, MaxSize)
	}
	if n > int64(len(body)) {
		return nil, nil, errors.New("ends within a record")
	}
	return body[:n], body[n:], nil
}

// Append appends a record as [Next] reads it.
func Append(body, record []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(body, uint32(len(record))), record...)
}

// Head is what an image with this magic number begins with.
func Head(magic uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, common), magic)
}
