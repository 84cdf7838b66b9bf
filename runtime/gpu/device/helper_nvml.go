package device

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What the preloaded library tells of NVML in its process: struct nvml_state of runtime/gpu/preload/nvml.h, in the library's writable memory.
const (
	nvmlMagic = "cryo-gpu-nvml-1\x00"

	offsetOpened = len(nvmlMagic) // uint32: initialisations
	offsetUnable = offsetOpened + 4
	offsetLost   = offsetUnable + 4 // uint32: how often device files were taken
	nvmlSize     = offsetLost + 4

	maxLibraryData = 1 << 20
)

// nvmlState is NVML in a process that has the preloaded library.
type nvmlState struct {
	at           int64 // its address; 0: there is none
	opened, able bool
	lost         uint32
}

// RenewsNVML reports whether a process has initialised NVML by way of the preloaded library, which initialises it again when the process has given up its device files. A process that has ended does not.
func RenewsNVML(pid int) (bool, error) {
	s, err := nvmlOf(pid)
	return s.opened && s.able, err
}

// nvmlOf reads what the library tells.
func nvmlOf(pid int) (nvmlState, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	start, end, err := libraryData(dir)
	if err != nil {
		return nvmlState{}, passed(err)
	}
	if start == 0 {
		return nvmlState{}, nil
	}
	memory, err := os.Open(filepath.Join(dir, "mem"))
	if err != nil {
		return nvmlState{}, passed(err)
	}
	defer memory.Close()
	data := make([]byte, min(end-start, maxLibraryData))
	n, _ := memory.ReadAt(data, start) // less than all: it has ended, or runs another program
	i := bytes.Index(data[:n], []byte(nvmlMagic))
	if i < 0 || i+nvmlSize > n {
		return nvmlState{}, nil
	}
	word := func(offset int) uint32 { return binary.NativeEndian.Uint32(data[i+offset:]) }
	return nvmlState{at: start + int64(i), opened: word(offsetOpened) > 0, able: word(offsetUnable) == 0, lost: word(offsetLost)}, nil
}

// libraryData returns where the library's variables are in a process; 0 where it has not loaded the library.
func libraryData(dir string) (start, end int64, err error) {
	maps, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return 0, 0, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "rw-p" || filepath.Base(fields[5]) != "libcryo-gpu.so" {
			continue
		}
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &start, &end); err != nil {
			return 0, 0, fmt.Errorf("read mapping %q: %w", lines.Text(), err)
		}
		return start, end, nil
	}
	return 0, 0, lines.Err()
}

// loseNVML has the library of a process that has given up device files, if it has one, initialise NVML again at the next call.
func loseNVML(pid int) error {
	s, err := nvmlOf(pid)
	if err != nil || !s.opened {
		return err
	}
	memory, err := os.OpenFile(filepath.Join("/proc", strconv.Itoa(pid), "mem"), os.O_WRONLY, 0)
	if err != nil {
		return passed(err)
	}
	defer memory.Close()
	if _, err := memory.WriteAt(binary.NativeEndian.AppendUint32(nil, s.lost+1), s.at+int64(offsetLost)); err != nil {
		return fmt.Errorf("tell its library: %w", err)
	}
	return nil
}

// giveUp has processes give up all device files that they have, and returns how many did. They stand still from then on: what NVML would open again, CRIU would meet. A process that has ended is passed over.
func (s *stopper) giveUp(pids []int) (changed int, err error) {
	for _, pid := range pids {
		var done bool
		s.do(func() { done, err = s.giveUpOne(pid) })
		if err != nil && !over(pid) {
			return changed, fmt.Errorf("take device files from process %d: %w", pid, err)
		}
		if done {
			changed++
		}
	}
	return changed, nil
}

// giveUpOne is giveUp for one process, by the tracing thread.
func (s *stopper) giveUpOne(pid int) (done bool, err error) {
	if err := s.still(pid); err != nil {
		return false, err
	}
	files, err := deviceFilesOf(pid, s.prefix)
	if err != nil || files.none() {
		return false, err
	}
	return true, s.exchange(pid, files)
}

// still stops all threads of a process, and waits until they stand still.
func (s *stopper) still(pid int) error {
	if s.stopped[pid] == nil {
		s.stopped[pid] = map[int]bool{}
	}
	return s.await(pid)
}

// exchange puts other things in the place of device files of a process that stands still, and has its library initialise NVML again: its threads, which may be in calls of that, are not to see one without the other.
func (s *stopper) exchange(pid int, files deviceFiles) (err error) {
	for _, tid := range threads(pid) { // the first may have ended before the others
		if !s.stopped[pid][tid] || dead(tid) {
			continue
		}
		r, err := inject(pid, tid)
		if err != nil {
			return err
		}
		return errors.Join(r.giveUp(files), loseNVML(pid), r.end())
	}
	return unix.ESRCH
}
