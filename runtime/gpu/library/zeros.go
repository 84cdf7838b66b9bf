package library

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Range is memory of a process, in whole pages.
type Range struct {
	First, End uint64 // addresses; End is behind it
}

// maxRanges is how many [Process.DropZeros] takes.
const maxRanges = 512

// DropZeros has the process let go of pages in ranges of private anonymous memory that are zero, for so long at most; what it reads and writes stays as
// it is. Its threads run, and who writes to what is being looked at waits. faults is /dev/userfaultfd. It gives how many bytes have gone at most: pages that had
// never been written count too. The error, if any, says why it was not more.
func (p *Process) DropZeros(ctx context.Context, ranges []Range, faults *os.File, bound time.Duration) (int64, error) {
	const step = "let go of zeros"
	ranges = ranges[:min(len(ranges), maxRanges)]
	payload := binary.LittleEndian.AppendUint32(nil, uint32(max(bound.Milliseconds(), 1)))
	all := uint64(0)
	for _, r := range ranges {
		payload = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(payload, r.First), r.End)
		all += r.End - r.First
	}
	ctx, cancel := context.WithTimeout(ctx, bound+answerTimeout)
	defer cancel()
	h, payload, files, err := p.request(ctx, step, header{Kind: zeros, Count: uint32(len(ranges))}, payload, []*os.File{faults})
	if _, payload, err = p.plain(step, h, payload, files, err); err != nil {
		return 0, err
	}
	dropped, problem, err := decodeZeros(payload)
	if err == nil && dropped > all {
		err = errors.New("it has let go of more than it was asked for")
	}
	if err != nil {
		return 0, p.wrong(err)
	}
	if problem != 0 {
		err = fmt.Errorf("process %d: %s: %w", p.pid, step, problem)
	}
	return int64(dropped), err
}

// decodeZeros reads the answer to zeros.
func decodeZeros(payload []byte) (dropped uint64, problem unix.Errno, err error) {
	if len(payload) != 16 {
		return 0, 0, errShort
	}
	return binary.LittleEndian.Uint64(payload), unix.Errno(binary.LittleEndian.Uint32(payload[8:])), nil
}
