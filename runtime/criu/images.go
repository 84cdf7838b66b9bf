package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// changeRecords has change change the records of the images in dir whose names match a pattern, and writes them anew. Two magic numbers are first, and each record follows its
// length. Source: CRIU 4.2, criu/image.c, criu/protobuf.c.
func changeRecords[T any, P interface {
	*T
	proto.Message
}](dir, pattern string, change func(all []P) error) error {
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

func changeImage[T any, P interface {
	*T
	proto.Message
}](file string, change func(all []P) error) error {
	const head, length = 8, 4
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	cut := errors.Join(errors.New("it ends within a record"), errdefs.ErrDataLoss)
	if len(data) < head {
		return cut
	}
	var all []P
	for rest := data[head:]; len(rest) > 0; {
		if len(rest) < length || uint64(binary.LittleEndian.Uint32(rest)) > uint64(len(rest)-length) {
			return cut
		}
		end := length + int(binary.LittleEndian.Uint32(rest))
		record := P(new(T))
		if err := proto.Unmarshal(rest[length:end], record); err != nil {
			return errors.Join(err, errdefs.ErrDataLoss)
		}
		all, rest = append(all, record), rest[end:]
	}
	if err := change(all); err != nil {
		return err
	}
	data = data[:head:head]
	for _, r := range all {
		record, err := proto.Marshal(r)
		if err != nil {
			return err
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(record))), record...)
	}
	return os.WriteFile(file, data, 0o600)
}
