package trust

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// Bounds of what is looked at. CRIU's images of a container with a thousand processes have some MB.
const (
	maxImage   = 64 << 20 // bytes of an image
	maxRecord  = 16 << 20 // bytes of a record
	maxRecords = 1 << 19  // of an image
)

// MaxReviewed bounds how many bytes of all images are looked at. A snapshot with more is refused.
const MaxReviewed = 256 << 20

// DamagedError says that an image of CRIU's is not what it should be. Its kind is DataLoss.
type DamagedError struct {
	Rule string // by which it was found
	File string // empty: none of them in particular
	Err  error
}

func (e *DamagedError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("read CRIU images: %s (rule %s)", e.What(), e.Rule)
	}
	return fmt.Sprintf("read CRIU image %s (rule %s)", e.What(), e.Rule)
}

// What says which image it is, and what is wrong with it.
func (e *DamagedError) What() string {
	if e.File == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

// Hint says how to mend it.
func (e *DamagedError) Hint() string {
	return "the snapshot cannot be trusted: get it again from where it was taken"
}

// Unwrap gives the kind and the cause.
func (e *DamagedError) Unwrap() []error { return []error{errdefs.ErrDataLoss, e.Err} }

// readImage gives an image, or as much of it as a first record may have.
func readImage(images fs.FS, name string, first bool) ([]byte, error) {
	f, err := images.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if first {
		return io.ReadAll(io.LimitReader(f, maxFirst))
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxImage {
		return nil, fmt.Errorf("more than %d bytes", maxImage)
	}
	data := make([]byte, info.Size())
	_, err = io.ReadFull(f, data)
	return data, err
}

// read gives the records of an image: after one or two magic numbers, each is a length and a protobuf message. Source:
// CRIU, criu/image.c and criu/protobuf.c. A file that is not there has none.
func read[T any, P interface {
	*T
	proto.Message
}](images fs.FS, name string) ([]P, error) {
	data, err := readImage(images, name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var records []P
	if err == nil {
		err = parse(data, func(m P) error {
			records = append(records, m)
			return nil
		})
	}
	if err != nil {
		return nil, &DamagedError{File: name, Err: err}
	}
	return records, nil
}

// each reviews the records of all images whose names match a pattern. What review returns becomes a [*DamagedError] of that image.
func each[T any, P interface {
	*T
	proto.Message
}](r *imageReviewer, pattern string, review func(P) error) error {
	names, err := r.files(pattern)
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := readImage(r.images, name, false)
		if err == nil {
			err = parse(data, review)
		}
		if err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

// maxFirst bounds the first record of an image of which no more is looked at, bytes.
const maxFirst = 64 << 10

// readFirst gives the first record of an image; what follows it may be as large as it likes, and no record.
func readFirst[T any, P interface {
	*T
	proto.Message
}](images fs.FS, name string) (P, error) {
	data, err := readImage(images, name, true)
	if err == nil {
		data, err = records(data)
	}
	if err == nil {
		data, _, err = next(data)
	}
	record := P(new(T))
	if err == nil {
		err = proto.Unmarshal(data, record)
	}
	if err != nil {
		return nil, &DamagedError{File: name, Err: err}
	}
	return record, nil
}

// records gives what follows an image's magic numbers.
func records(data []byte) ([]byte, error) {
	const (
		word   = 4
		common = 0x54564319 // IMG_COMMON_MAGIC, before the type's own
	)
	if len(data) < word {
		return nil, errors.New("no magic number")
	}
	skip := word
	if binary.LittleEndian.Uint32(data) == common {
		skip = 2 * word
	}
	if len(data) < skip {
		return nil, errors.New("no magic number")
	}
	return data[skip:], nil
}

// next splits the first record off.
func next(data []byte) (record, rest []byte, err error) {
	const word = 4
	if len(data) < word {
		return nil, nil, errors.New("ends within a length")
	}
	n := int64(binary.LittleEndian.Uint32(data))
	data = data[word:]
	if n > maxRecord {
		return nil, nil, fmt.Errorf("a record of %d bytes", n)
	}
	if n > int64(len(data)) {
		return nil, nil, errors.New("ends within a record")
	}
	return data[:n], data[n:], nil
}

// parse takes one record at a time, of maxRecords at most.
func parse[T any, P interface {
	*T
	proto.Message
}](data []byte, take func(P) error) error {
	data, err := records(data)
	if err != nil {
		return err
	}
	for n := 0; len(data) > 0; n++ {
		if n == maxRecords {
			return fmt.Errorf("more than %d records", maxRecords)
		}
		var record []byte
		if record, data, err = next(data); err != nil {
			return err
		}
		m := P(new(T))
		if err := proto.Unmarshal(record, m); err != nil {
			return err
		}
		if err := take(m); err != nil {
			return err
		}
	}
	return nil
}
