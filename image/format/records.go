package format

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds, in bytes. CRIU's images of a container with a thousand processes have some MB.
const (
	MaxImage  = 64 << 20
	MaxRecord = 16 << 20 // of a record
)

const (
	wordSize = 4
	common   = 0x54564319 // IMG_COMMON_MAGIC, before the image's own magic number in all but a few. Source: CRIU, criu/include/magic.h
)

// ImageBody returns the magic number of an image, and its records.
func ImageBody(image []byte) (magic uint32, body []byte, err error) {
	if len(image) >= wordSize && binary.LittleEndian.Uint32(image) == common {
		image = image[wordSize:]
	}
	if len(image) < wordSize {
		return 0, nil, errors.New("ends within a magic number")
	}
	return binary.LittleEndian.Uint32(image), image[wordSize:], nil
}

// NextRecord splits the first record off.
func NextRecord(body []byte) (record, rest []byte, err error) {
	if len(body) < wordSize {
		return nil, nil, errors.New("ends within the length of a record")
	}
	n := int64(binary.LittleEndian.Uint32(body))
	body = body[wordSize:]
	if n > MaxRecord {
		return nil, nil, fmt.Errorf("a record of %d bytes; at most %d are allowed", n, MaxRecord)
	}
	if n > int64(len(body)) {
		return nil, nil, errors.New("ends within a record")
	}
	return body[:n], body[n:], nil
}

// AppendRecord appends a record as [NextRecord] reads it.
func AppendRecord(body, record []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(body, uint32(len(record))), record...)
}

// ImageHead is what an image with this magic number begins with.
func ImageHead(magic uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, common), magic)
}
