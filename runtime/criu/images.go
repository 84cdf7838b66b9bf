package criu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// An image of CRIU's begins with two magic numbers. Records follow, each after its length. Source: CRIU, criu/image.c and criu/protobuf.c.
const imageHead, recordHead = 8, 4

// message is a protobuf message, by the type that it has without its pointer.
type message[T any] interface {
	*T
	proto.Message
}

// eachRecord reads an image that CRIU has just written. A file that is not there has none.
func eachRecord(dir, name string, f func(data []byte) error) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read CRIU's images: %w", err)
	}
	if err := walkRecords(data, f); err != nil {
		return fmt.Errorf("read CRIU's image %s: %w", name, err)
	}
	return nil
}

// walkRecords calls f with each record of an image. Errors are DataLoss.
func walkRecords(image []byte, f func(data []byte) error) error {
	for rest := image[min(len(image), imageHead):]; len(rest) > 0; {
		if len(rest) < recordHead || int64(binary.LittleEndian.Uint32(rest)) > int64(len(rest)-recordHead) {
			return fmt.Errorf("it ends within a record: %w", errdefs.ErrDataLoss)
		}
		end := recordHead + int(binary.LittleEndian.Uint32(rest))
		if err := f(rest[recordHead:end]); err != nil {
			return fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
		}
		rest = rest[end:]
	}
	return nil
}

// decodeImage reads the records of an image.
func decodeImage[T any, P message[T]](image []byte) (all []P, err error) {
	if len(image) < imageHead {
		return nil, fmt.Errorf("it has no head: %w", errdefs.ErrDataLoss)
	}
	err = walkRecords(image, func(data []byte) error {
		record := P(new(T))
		all = append(all, record)
		return proto.Unmarshal(data, record)
	})
	return all, err
}

// encodeImage returns an image with other records.
func encodeImage[T any, P message[T]](image []byte, all []P) ([]byte, error) {
	image = image[:imageHead:imageHead]
	for _, r := range all {
		record, err := proto.Marshal(r)
		if err != nil {
			return nil, err
		}
		image = append(binary.LittleEndian.AppendUint32(image, uint32(len(record))), record...)
	}
	return image, nil
}

// changeRecords has change change the records of the images in dir whose names match a pattern, and writes the images anew.
func changeRecords[T any, P message[T]](dir, pattern string, change func(all []P) error) error {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return fmt.Errorf("find the images %s: %w", pattern, err)
	}
	for _, file := range files {
		if err := changeImage(file, change); err != nil {
			return fmt.Errorf("change %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

func changeImage[T any, P message[T]](file string, change func(all []P) error) error {
	image, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	all, err := decodeImage[T, P](image)
	if err != nil {
		return err
	}
	if err := change(all); err != nil {
		return err
	}
	changed, err := encodeImage(image, all)
	if err != nil || bytes.Equal(changed, image) {
		return err
	}
	return os.WriteFile(file, changed, 0o600)
}
