package library

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// answerTimeout is how long a library has for an answer to what does not wait for devices. Handing over 16 GiB takes 4 ms.
const answerTimeout = 60 * time.Second

// leaveTimeout is how long it has to hang up.
const leaveTimeout = time.Second

// Process is a conversation with the library in a process. It is for one goroutine at a time.
type Process struct {
	pid    int
	socket int
	id     uint32
	pieces int // that Table has told of
}

// PID is the process's.
func (p *Process) PID() int { return p.pid }

// Hello asks the library for what it is and has. It comes first, and one that has just been woken answers at once.
func (p *Process) Hello() (Hello, error) {
	const step = "hello"
	ctx, cancel := context.WithTimeout(context.Background(), wakeTimeout)
	defer cancel()
	head, payload, files, err := p.request(ctx, step, header{Kind: hello}, nil, nil)
	_, payload, err = p.plain(step, head, payload, files, err)
	if err != nil {
		return Hello{}, err
	}
	h, err := decodeHello(payload)
	if err != nil {
		return Hello{}, p.wrong(err)
	}
	return h, nil
}

// Close closes the gate: the program's calls of the driver wait from then on, and its devices are idle. Where that is not so before the
// deadline the error is a [BusyError], and where the memory cannot be handed over an [UnableError]; the gate is open again.
func (p *Process) Close(ctx context.Context, deadline time.Duration) error {
	return p.closeWithin(ctx, closing, deadline)
}

// Stand closes the gate as Close does, but by turns with other processes, for which devices may wait: after a [BusyError] of work the gate stays closed, until
// Stand or Open comes. Before, each thread that waits at the gate makes a call, and again when all are back and one waits, up to so many times: fewer where that takes 100 ms, or a
// call or the program between two calls more than 2 ms.
func (p *Process) Stand(ctx context.Context, deadline time.Duration, calls uint32) error {
	return p.closeWithin(ctx, standing, deadline, calls)
}

func (p *Process) closeWithin(ctx context.Context, how kind, deadline time.Duration, more ...uint32) error {
	const step = "stop"
	payload := binary.LittleEndian.AppendUint32(nil, uint32(min(max(deadline.Milliseconds(), 1), 1<<31)))
	for _, word := range more {
		payload = binary.LittleEndian.AppendUint32(payload, word)
	}
	ctx, cancel := context.WithTimeout(ctx, deadline+answerTimeout)
	defer cancel()
	h, _, _, err := p.request(ctx, step, header{Kind: how}, payload, nil)
	if err != nil {
		return err
	}
	if h.Result == notReady || h.Result == capturing {
		return &BusyError{PID: p.pid, Timeout: deadline, Capturing: h.Result == capturing}
	}
	if h.Result == notSupported {
		if hello, err := p.Hello(); err == nil && hello.Unable != "" {
			return &UnableError{PID: p.pid, Reason: hello.Unable}
		}
	}
	return p.result(step, h)
}

// Table lists the process's pieces, in ascending order of addresses: each is mapped at its address, and has a descriptor of its own. Their numbers in that order
// remain the same until the gate is opened. The gate is closed.
func (p *Process) Table() ([]record.GPUPiece, error) {
	pieces, err := p.list(table)
	if err == nil {
		p.pieces = len(pieces)
	}
	return pieces, err
}

// list asks for pieces, those of the table or those of the moment.
func (p *Process) list(which kind) (pieces []record.GPUPiece, err error) {
	const step = "list"
	h, payload, err := p.ask(step, header{Kind: which}, nil)
	for {
		if err != nil {
			return nil, err
		}
		if pieces, err = decodeEntries(pieces, h, payload); err != nil {
			return nil, p.wrong(err)
		}
		if h.Flags&last != 0 {
			return pieces, nil
		}
		if h.Count == 0 {
			return nil, p.wrong(errors.New("an answer lists nothing"))
		}
		h, payload, err = p.next(step, which)
	}
}

// Give has the process give a descriptor of each piece, in the order of Table, which came before.
func (p *Process) Give() (files []*os.File, err error) {
	const step = "take over"
	defer func() {
		if err != nil {
			closeFiles(files)
			files = nil
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, got, err := p.request(ctx, step, header{Kind: give}, nil, nil)
	for {
		if err != nil {
			return files, err
		}
		files = append(files, got...)
		if err := p.result(step, h); err != nil {
			return files, err
		}
		if err := decodeNumbers(len(files)-len(got), h, payload); err != nil {
			return files, p.wrong(err)
		}
		if len(got) != int(h.Count) || len(files) > p.pieces {
			return files, p.wrong(fmt.Errorf("%d descriptors came for %d pieces", len(files), p.pieces))
		}
		for _, f := range got {
			if err := checkMemory(f); err != nil {
				return files, p.wrong(err)
			}
		}
		switch {
		case h.Flags&last != 0 && len(files) == p.pieces:
			return files, nil
		case h.Flags&last != 0, len(got) == 0:
			return files, p.wrong(fmt.Errorf("%d descriptors came for %d pieces", len(files), p.pieces))
		}
		h, payload, got, err = p.receive(ctx, step, give)
	}
}

// Release has the process let go of all it has given. Where it fails the process has all of it.
func (p *Process) Release() error {
	_, _, err := p.ask("let go of", header{Kind: release}, nil)
	return err
}

// Attach gives the process its pieces back, at the addresses they had: all, or after an error none. The files are in the order of the pieces;
// they stay the caller's. What there is room for becomes the process's own memory at once; Own does the rest when the files are closed.
func (p *Process) Attach(ctx context.Context, pieces []record.GPUPiece, files []*os.File) error {
	const step = "give back"
	if len(pieces) != len(files) {
		return fmt.Errorf("%s GPU memory of process %d: %d files for %d pieces", step, p.pid, len(files), len(pieces))
	}
	h, _, _, err := p.request(ctx, step, header{Kind: attach, Count: uint32(len(pieces))}, nil, nil)
	if err == nil {
		err = p.result(step, h)
	}
	for begin := 0; err == nil && begin < len(pieces); begin += batch {
		end := min(begin+batch, len(pieces))
		h := header{Kind: attach, Count: uint32(end - begin)}
		if end == len(pieces) {
			h.Flags = last
		}
		var numbers []byte
		for n := begin; n < end; n++ {
			numbers = binary.LittleEndian.AppendUint32(numbers, uint32(n))
		}
		if h, _, _, err = p.request(ctx, step, h, numbers, files[begin:end]); err == nil {
			err = p.result(step, h)
		}
	}
	return err
}

// Make has the process make memory of its own for one of its pieces, instead of Attach, and gives a descriptor of it for the caller to fill: one after the other, from the
// first on. What is in it before is of no meaning. All pieces are made and filled, or none: the process has none of them when the conversation ends before Filled, or
// after an error, and may be asked for the first again.
func (p *Process) Make(ctx context.Context, pieces []record.GPUPiece, n int) (*os.File, error) {
	const step = "make"
	if n == 0 {
		has, err := p.Table()
		if err != nil {
			return nil, err
		}
		same := func(a, b record.GPUPiece) bool { return a.Address == b.Address && a.Size == b.Size }
		if !slices.EqualFunc(has, pieces, same) {
			return nil, p.wrong(errors.New("it makes other pieces than it gave"))
		}
	}
	number := binary.LittleEndian.AppendUint32(nil, uint32(n))
	h, payload, files, err := p.request(ctx, step, header{Kind: making, Count: uint32(len(pieces))}, number, nil)
	return p.single(step, n, h, payload, files, err)
}

// single returns the one descriptor of an answer, which is that of the memory with a number.
func (p *Process) single(step string, n int, h header, payload []byte, files []*os.File, err error) (*os.File, error) {
	if err == nil {
		err = p.result(step, h)
	}
	if err == nil && (h.Count != 1 || len(files) != 1 || decodeNumbers(n, h, payload) != nil) {
		err = p.wrong(fmt.Errorf("%d descriptors came for piece %d", len(files), n))
	}
	if err == nil {
		if err = checkMemory(files[0]); err != nil {
			err = p.wrong(err)
		}
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	return files[0], nil
}

// Filled tells the process that all that Make gave has its contents.
func (p *Process) Filled() error {
	_, _, err := p.ask("fill", header{Kind: filled}, nil)
	return err
}

// Own makes memory that was attached, and still is another process's, the process's own, piece by piece from device to device. The gate
// is closed. It gives how many pieces there was no room for; they can be handed over again all the same.
func (p *Process) Own(ctx context.Context) (int, error) {
	const step = "make its own"
	h, _, _, err := p.request(ctx, step, header{Kind: own}, nil, nil)
	if err == nil {
		err = p.result(step, h)
	}
	if err == nil && h.Count > maxPieces {
		err = p.wrong(fmt.Errorf("it says that %d pieces are left", h.Count))
	}
	if err != nil {
		return 0, err
	}
	return int(h.Count), nil
}

// Open opens the gate.
func (p *Process) Open() error {
	_, _, err := p.ask("let go on", header{Kind: opening}, nil)
	return err
}

// HangUp ends the conversation; without a Release before it, or with an Attach after that, the library opens the gate.
func (p *Process) HangUp() error { return p.hangUp() }

// Leave is HangUp, and waits until the library has nothing open any more, which a dump could meet.
func (p *Process) Leave(ctx context.Context) {
	if p.socket >= 0 && unix.Shutdown(p.socket, unix.SHUT_WR) == nil {
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		_ = p.when(ctx, unix.POLLIN, func() error {
			_, _, err := unix.Recvfrom(p.socket, make([]byte, 1), unix.MSG_DONTWAIT)
			return err
		})
	}
	_ = p.hangUp()
}

// ask makes a request that has no descriptors, and gives its first answer.
func (p *Process) ask(step string, h header, payload []byte) (header, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, h, payload, nil)
	return p.plain(step, h, payload, files, err)
}

// next returns a further answer that has no descriptors.
func (p *Process) next(step string, which kind) (header, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	h, payload, files, err := p.receive(ctx, step, which)
	return p.plain(step, h, payload, files, err)
}

func (p *Process) plain(step string, h header, payload []byte, files []*os.File, err error) (header, []byte, error) {
	if err == nil && len(files) > 0 {
		closeFiles(files)
		err = p.wrong(errors.New("descriptors came that were not asked for"))
	}
	if err == nil {
		err = p.result(step, h)
	}
	return h, payload, err
}

// NotFound is CUDA_ERROR_NOT_FOUND of cuda.h.
const NotFound = 500

// Of cuda.h: CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED and CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
const (
	notReady     = 600
	notSupported = 801
	capturing    = 900
)

func (p *Process) result(step string, h header) error {
	if h.Result == 0 {
		return nil
	}
	return &device.CallError{Call: fmt.Sprintf("%s GPU memory of process %d", step, p.pid), Code: int(h.Result), Name: name(int(h.Result))}
}

func (p *Process) wrong(err error) error { return protocolError(p.pid, err) }
