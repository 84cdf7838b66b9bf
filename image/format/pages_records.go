package format

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
)

// Magic numbers, from CRIU's criu/include/magic.h.
const (
	magicPagemap   = 0x56084025
	magicPSTree    = 0x50273030
	magicCore      = 0x55053847
	magicMM        = 0x57492820
	magicInventory = 0x58313116
)

// read returns the records of the image called name.
func read(name string, r io.Reader, magic uint32) (body []byte, err error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxImage+1))
	if err != nil {
		return nil, fmt.Errorf("read CRIU image %s: %w", name, err)
	}
	if len(data) > MaxImage {
		return nil, MalformedImage(name, "it has more than %d bytes", MaxImage)
	}
	got, body, err := ImageBody(data)
	if err != nil {
		return nil, MalformedImage(name, "%w", err)
	}
	if got != magic {
		return nil, MalformedImage(name, "magic number %#x instead of %#x", got, magic)
	}
	return body, nil
}

// each hands the records of an image to take.
func each(name string, body []byte, take func(record []byte) error) error {
	for len(body) > 0 {
		record, rest, err := NextRecord(body)
		if err != nil {
			return MalformedImage(name, "%w", err)
		}
		if err := take(record); err != nil {
			return err
		}
		body = rest
	}
	return nil
}

// unmarshal reads a record into m. Required fields may be missing in the images of other versions: not all of them are wanted here.
func unmarshal(name string, record []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(record, m); err != nil {
		return MalformedImage(name, "a record is no %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// readIn is read of a file in dir. One that is not there gives nil.
func readIn(dir, name string, magic uint32) (body []byte, err error) {
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	return read(name, f, magic)
}

// readFirst reads the first record of a file in dir into m. Where the file is not there, m is as it was.
func readFirst(dir, name string, magic uint32, m proto.Message) error {
	body, err := readIn(dir, name, magic)
	if err != nil || body == nil {
		return err
	}
	record, _, err := NextRecord(body)
	if err != nil {
		return MalformedImage(name, "%w", err)
	}
	return unmarshal(name, record, m)
}
