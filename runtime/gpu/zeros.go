package gpu

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// The driver's checkpoint of a process leaves what its contexts have on devices in host memory, and most of that is zeros: 690 of 720 MiB for a
// PyTorch process. CRIU would send them all while the container stands still.
const (
	zerosLeast = 16 << 20    // bytes of memory side by side that are worth a look
	zerosTime  = time.Second // for a process
	zerosSlack = time.Second // for its library to answer
)

// faults is the device without which nothing can be dropped: Linux 6.1 and newer.
func (e *Engine) faults() string { return filepath.Join(e.host().root, "dev/userfaultfd") }

// noteMemory notes what private memory processes with the library have, beside what the caller does until it asks for it. Of a process that is missing
// nothing is dropped.
func (e *Engine) noteMemory(all []cudaProcess) func() map[int][]library.Range {
	noted := map[int][]library.Range{}
	if _, err := os.Stat(e.faults()); err != nil || e.Library == nil {
		return func() map[int][]library.Range { return noted }
	}
	var mu sync.Mutex
	var work sync.WaitGroup
	for _, p := range all {
		work.Go(func() {
			ranges, err := e.host().private(p.PID)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				noted[p.PID] = ranges
			}
		})
	}
	return func() map[int][]library.Range {
		work.Wait()
		return noted
	}
}

// dropZeros has the libraries of processes that the driver has saved let go of zeros in memory that was not there before. Where that cannot be done, or not in
// time, the checkpoint goes on as it is.
func (e *Engine) dropZeros(ctx context.Context, saved []cudaProcess, before map[int][]library.Range) {
	if len(before) == 0 {
		return
	}
	faults, err := os.OpenFile(e.faults(), os.O_RDWR, 0)
	if err != nil {
		log.G(ctx).WithError(err).Debug("zeros that the driver has written stay")
		return
	}
	defer faults.Close()
	ctx, cancel := context.WithTimeout(ctx, zerosTime+zerosSlack)
	defer cancel()
	var work sync.WaitGroup
	for _, p := range saved {
		old, ok := before[p.PID]
		if !ok {
			continue
		}
		work.Go(func() {
			start := time.Now()
			dropped, err := e.dropZerosOf(ctx, p.PID, old, faults)
			l := log.G(ctx).WithFields(log.Fields{"pid": p.PID, "bytes": dropped, "duration": time.Since(start)})
			if err != nil {
				l = l.WithError(err)
			}
			l.Debug("let go of zeros that the driver has written")
		})
	}
	work.Wait()
}

func (e *Engine) dropZerosOf(ctx context.Context, pid int, old []library.Range, faults *os.File) (int64, error) {
	now, err := e.host().private(pid)
	if err != nil {
		return 0, err
	}
	ranges := slices.DeleteFunc(without(now, old), func(r library.Range) bool { return r.End-r.First < zerosLeast })
	if len(ranges) == 0 {
		return 0, nil
	}
	slices.SortFunc(ranges, func(a, b library.Range) int { return cmp.Compare(b.End-b.First, a.End-a.First) })
	dial := e.Dial
	if e.Handover != nil {
		dial = e.Handover.Dial
	}
	l, err := dial(ctx, pid)
	if err != nil {
		return 0, err
	}
	defer l.Leave(ctx)
	return l.DropZeros(ctx, ranges, faults, zerosTime)
}

// private are a process's writable private anonymous mappings without a name of the kernel's, in ascending order.
func (p proc) private(pid int) (ranges []library.Range, err error) {
	err = p.eachMapping(pid, func(line string) (bool, error) {
		// first-end perms offset device inode, and a path where there is one.
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[1] != "rw-p" || fields[4] != "0" || len(fields) > 5 && !strings.HasPrefix(fields[5], "[anon:") {
			return true, nil
		}
		first, end, _ := strings.Cut(fields[0], "-")
		var r library.Range
		if r.First, err = strconv.ParseUint(first, 16, 64); err == nil {
			r.End, err = strconv.ParseUint(end, 16, 64)
		}
		ranges = append(ranges, r)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return ranges, nil
}

// without is what of ranges is not in others; both ascend, and so does it.
func without(ranges, others []library.Range) (left []library.Range) {
	for _, r := range ranges {
		for len(others) > 0 && others[0].End <= r.First {
			others = others[1:]
		}
		for _, o := range others {
			if o.First >= r.End {
				break
			}
			if o.First > r.First {
				left = append(left, library.Range{First: r.First, End: o.First})
			}
			r.First = min(o.End, r.End)
		}
		if r.First < r.End {
			left = append(left, r)
		}
	}
	return left
}
