package trust

import (
	"fmt"
	"io"
	"io/fs"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/format"
)

// maxRecords bounds the records of an image that are looked at.
const maxRecords = 1 << 19

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

// ByRule returns the rule by which the image was found.
func (e *DamagedError) ByRule() string { return e.Rule }

// What says which image it is, and what is wrong with it.
func (e *DamagedError) What() string {
	if e.File == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

// Hint returns how to mend it.
func (e *DamagedError) Hint() string {
	const untrusted = "the snapshot cannot be trusted: get it again from where it was taken"
	if again, ok := again[e.Rule]; ok {
		return untrusted + "; or it is of an older cryo: " + again + ", and take it again"
	}
	return untrusted
}

// again says what to do before a snapshot is taken again, by the rule that refuses what an older cryo may have written.
var again = map[string]string{
	nestedRule:  "have the processes leave namespaces of their own",
	deletedRule: "have the program close the deleted file, or keep it in the container's root file system or in a tmpfs",
}

// Unwrap returns the kind and the cause.
func (e *DamagedError) Unwrap() []error { return []error{errdefs.ErrDataLoss, e.Err} }

// readImage returns an image, or as much of it as a first record may have.
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
	if info.Size() > format.MaxImage {
		return nil, fmt.Errorf("more than %d bytes", format.MaxImage)
	}
	data := make([]byte, info.Size())
	_, err = io.ReadFull(f, data)
	return data, err
}

// message is a protobuf message, by the type that it has without its pointer.
type message[T any] interface {
	*T
	proto.Message
}

// each reviews the records of all images whose names match a pattern. What review returns becomes a [*DamagedError] of that image.
func each[T any, P message[T]](images fs.FS, pattern string, review func(P) error) error {
	names, err := files(images, pattern)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := eachIn(images, name, review); err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

func eachIn[T any, P message[T]](images fs.FS, name string, review func(P) error) error {
	data, err := readImage(images, name, false)
	if err != nil {
		return err
	}
	_, body, err := format.ImageBody(data)
	for n := 0; err == nil && len(body) > 0; n++ {
		if n == maxRecords {
			return fmt.Errorf("more than %d records", maxRecords)
		}
		m := P(new(T))
		if body, err = nextInto(body, m); err == nil {
			err = review(m)
		}
	}
	return err
}

// nextInto splits the first record off, and reads it into m.
func nextInto(body []byte, m proto.Message) (rest []byte, err error) {
	record, rest, err := format.NextRecord(body)
	if err != nil {
		return nil, err
	}
	return rest, proto.Unmarshal(record, m)
}

// read returns the records of an image. One that is not there has none.
func read[T any, P message[T]](images fs.FS, name string) (all []P, err error) {
	err = each(images, name, func(m P) error {
		all = append(all, m)
		return nil
	})
	return all, err
}

// maxFirst bounds the first record of an image of which no more is looked at, bytes.
const maxFirst = 64 << 10

// readFirst returns the first record of an image; what follows it may be as large as it likes, and no record.
func readFirst[T any, P message[T]](images fs.FS, name string) (P, error) {
	record := P(new(T))
	data, err := readImage(images, name, true)
	if err == nil {
		_, data, err = format.ImageBody(data)
	}
	if err == nil {
		_, err = nextInto(data, record)
	}
	if err != nil {
		return nil, &DamagedError{File: name, Err: err}
	}
	return record, nil
}
