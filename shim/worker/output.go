package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput is how large a file becomes, in bytes. The one before it is kept too.
const maxOutput = 1 << 20

// patience is how long a client that attaches may take to read what a FIFO holds.
const patience = time.Second

// OutputPath is the file with the latest output in a bundle. When it is full, it is renamed to the name that before gives.
func OutputPath(bundle string) string { return filepath.Join(bundle, "cryo-output.log") }

// OutputPipe is the FIFO in a bundle that Keep reads. It is removed when all of the output is kept.
func OutputPipe(bundle string) string { return filepath.Join(bundle, "cryo-output") }

func before(bundle string) string { return OutputPath(bundle) + ".1" }

// ReadOutput returns what is kept of the output in a bundle, and how much of it is in the file that Path gives, in bytes. The error is [fs.ErrNotExist] if none is kept.
func ReadOutput(bundle string) (all []byte, latest int64, err error) {
	all, err = os.ReadFile(before(bundle))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("read output: %w", err)
	}
	last, err := os.ReadFile(OutputPath(bundle))
	if err != nil && (all == nil || !errors.Is(err, fs.ErrNotExist)) { // else it is about to be made
		return nil, 0, fmt.Errorf("read output: %w", err)
	}
	return append(all, last...), int64(len(last)), nil
}

// KeepOutput keeps what comes from pipe, which is that of the bundle, and writes it to the FIFO attached while a process has that open for reading. It closes pipe at
// its end.
func KeepOutput(pipe *os.File, attached, bundle string) {
	defer func() {
		_ = pipe.Close()
		_ = os.Remove(OutputPipe(bundle)) // a client that follows waits until it is gone; at the latest it goes with the bundle
	}()
	l, r := log{bundle: bundle}, outputReader{path: attached}
	defer l.close()
	defer r.close()
	l.write(nil) // there is a file although nothing was said yet
	chunk := make([]byte, 32<<10)
	for {
		n, err := pipe.Read(chunk)
		l.write(chunk[:n])
		r.write(chunk[:n])
		if err != nil {
			return
		}
	}
}

// log writes files. What cannot be written is left out.
type log struct {
	bundle string
	file   *os.File // nil: there is none
	size   int64
}

func (l *log) write(p []byte) {
	if l.file != nil && l.size+int64(len(p)) > maxOutput {
		l.close()
		_ = os.Rename(OutputPath(l.bundle), before(l.bundle)) // else the file is begun afresh
	}
	if l.file == nil {
		f, err := os.OpenFile(OutputPath(l.bundle), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return
		}
		l.file, l.size = f, 0
	}
	n, _ := l.file.Write(p)
	l.size += int64(n)
}

func (l *log) close() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// outputReader is the client that has attached.
type outputReader struct {
	path string
	file *os.File // nil: none
	late bool     // it did not read within patience; until it reads again, no process waits for it
}

func (r *outputReader) write(p []byte) {
	if r.file == nil {
		f, err := os.OpenFile(r.path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil { // ENXIO: no process reads
			return
		}
		r.file, r.late = f, false
	}
	wait := patience
	if r.late {
		wait = time.Millisecond
	}
	err := r.file.SetWriteDeadline(time.Now().Add(wait))
	if err == nil {
		_, err = r.file.Write(p)
	}
	r.late = errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && !r.late { // EPIPE: it has gone
		r.close()
	}
}

func (r *outputReader) close() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}
