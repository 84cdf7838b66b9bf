package trust

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// pieceSize is how much is read of an image at once, bytes.
const pieceSize = 256 << 10

// gather puts what the review reads of the images in a directory into a file in memory, and seals it. Those of file systems in memory it leaves where they are; more
// is how long they are, bytes.
func gather(memory *os.File, dir *os.Root) (files []file, more int64, err error) {
	entries, err := fs.ReadDir(dir.FS(), ".") // sorted
	if err != nil {
		return nil, 0, err
	}
	files = []file{} // none is not unknown
	at := int64(0)
	buffer := make([]byte, pieceSize)
	for _, e := range entries {
		f := file{Name: []byte(e.Name()), Kind: uint32(e.Type()), At: at}
		switch {
		case e.Type().IsRegular():
			if f.Size, f.Stored, err = gatherOne(memory, dir, e.Name(), at, buffer); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, 0, err
			}
			if Unpacked(e.Name()) {
				more += f.Size
			}
		case e.Name() == Parent: // a link
			if info, err := os.Stat(dir.Name() + "/" + e.Name()); err == nil && info.IsDir() {
				f.Kind = uint32(fs.ModeDir)
			}
		}
		at += f.Stored
		files = append(files, f)
	}
	if _, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return nil, 0, err
	}
	return files, more, nil
}

// gatherOne copies as much of an image as is reviewed, and nothing when there is more already than the review accepts.
func gatherOne(to *os.File, dir *os.Root, name string, at int64, buffer []byte) (size, n int64, err error) {
	f, err := openImage(dir, name)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	most := min(info.Size(), Reviewed(name))
	if at > MaxReviewed {
		most = 0
	}
	for n < most {
		piece := buffer[:min(int64(len(buffer)), most-n)]
		if _, err := f.ReadAt(piece, n); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := to.Write(piece); err != nil {
			return 0, 0, err
		}
		n += int64(len(piece))
	}
	return info.Size(), n, nil
}

// openImage opens a file, and nothing that waits for another process.
func openImage(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, errors.Join(fmt.Errorf("%s is no regular file", name), err)
	}
	return f, nil
}

// images are those that were handed over, as the review reads them.
type images struct {
	memory []byte // longer than what is there
	files  []file // by name
	ask    func(readMessage) []byte
}

// maxMemory is more than what is handed over: where MaxReviewed is exceeded is read to its end.
const maxMemory = 2 * MaxReviewed

var (
	_ fs.ReadDirFS = (*images)(nil)
	_ fs.StatFS    = (*images)(nil)
)

func (i *images) find(op, name string) (file, error) {
	n, ok := slices.BinarySearchFunc(i.files, name, func(f file, name string) int { return bytes.Compare(f.Name, []byte(name)) })
	if !ok {
		return file{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return i.files[n], nil
}

// Stat implements [fs.StatFS].
func (i *images) Stat(name string) (fs.FileInfo, error) {
	f, err := i.find("stat", name)
	return info{f}, err
}

// ReadDir implements [fs.ReadDirFS].
func (i *images) ReadDir(name string) ([]fs.DirEntry, error) {
	if name != "." {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	all := make([]fs.DirEntry, len(i.files))
	for n, f := range i.files {
		all[n] = fs.FileInfoToDirEntry(info{f})
	}
	return all, nil
}

// Open implements [fs.FS].
func (i *images) Open(name string) (fs.File, error) {
	f, err := i.find("open", name)
	if err != nil {
		return nil, err
	}
	return &imageFile{file: f, left: i.memory[f.At : f.At+f.Stored], asks: Unpacked(name), ask: i.ask}, nil
}

// imageFile is one that is read from its beginning.
type imageFile struct {
	file file
	at   int64
	left []byte // that is here
	asks bool   // for what comes then
	ask  func(readMessage) []byte
}

var _ fs.File = (*imageFile)(nil)

// Stat implements [fs.File].
func (i *imageFile) Stat() (fs.FileInfo, error) { return info{i.file}, nil }

// Close implements [fs.File].
func (i *imageFile) Close() error { return nil }

// Read implements [fs.File].
func (i *imageFile) Read(b []byte) (int, error) {
	if len(i.left) == 0 && i.asks {
		i.left = i.ask(readMessage{i.file.Name, i.at})
	}
	if len(i.left) == 0 {
		if i.at < i.file.Size {
			return 0, fmt.Errorf("its bytes from %d on are not here", i.at)
		}
		return 0, io.EOF
	}
	n := copy(b, i.left)
	i.left, i.at = i.left[n:], i.at+int64(n)
	return n, nil
}

// info is what is known of an image.
type info struct{ file file }

var _ fs.FileInfo = info{}

func (i info) Name() string       { return string(i.file.Name) }
func (i info) Size() int64        { return i.file.Size }
func (i info) Mode() fs.FileMode  { return fs.FileMode(i.file.Kind) }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.Mode().IsDir() }
func (i info) Sys() any           { return nil }
