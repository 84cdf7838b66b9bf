package tmpfs

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pax reads the records of a pax header: POSIX.1-2024, pax, "pax Extended Header". What it does not know informs only.
func (h *header) pax(records string) error {
	for records != "" {
		digits, rest, ok := strings.Cut(records, " ")
		length, err := strconv.ParseUint(digits, 10, 31)
		if !ok || err != nil || int(length) <= len(digits)+1 || int(length) > len(records) {
			return fmt.Errorf("a pax header has %.20q for a record", records)
		}
		record := rest[:int(length)-len(digits)-1]
		records = records[length:]
		key, value, ok := strings.Cut(strings.TrimSuffix(record, "\n"), "=")
		if !ok || key == "" || !strings.HasSuffix(record, "\n") {
			return fmt.Errorf("a pax header has %.20q for a record", record)
		}
		if err := h.record(key, value); err != nil {
			return fmt.Errorf("a pax header says %.40q of %.40s: %w", value, key, err)
		}
	}
	return nil
}

func (h *header) record(key, value string) (err error) {
	switch {
	case key == "path":
		h.name = &value
	case key == "linkpath":
		h.link = &value
	case key == "size":
		h.size, err = parse(value, math.MaxInt64, func(n uint64) int64 { return int64(n) })
	case key == "uid":
		h.uid, err = parse(value, math.MaxUint32, func(n uint64) uint32 { return uint32(n) })
	case key == "gid":
		h.gid, err = parse(value, math.MaxUint32, func(n uint64) uint32 { return uint32(n) })
	case key == "mtime":
		h.mtime, err = parseTime(value)
	case key == "atime":
		h.atime, err = parseTime(value)
	case key == "GNU.sparse.major":
		h.sparseMajor = value
	case key == "GNU.sparse.minor":
		h.sparseMinor = value
	case key == "GNU.sparse.name":
		h.sparseName = &value
	case key == "GNU.sparse.realsize":
		h.realSize, err = parse(value, math.MaxInt64, func(n uint64) int64 { return int64(n) })
	case strings.HasPrefix(key, "GNU.sparse."):
		return errors.New("sparse files are supported in version 1.0 only")
	case strings.HasPrefix(key, paxXattr):
		h.xattrs = append(h.xattrs, xattr{strings.TrimPrefix(key, paxXattr), value})
	}
	return err
}

func parse[T any](value string, limit uint64, as func(uint64) T) (*T, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n > limit {
		return nil, errors.New("it is no such number")
	}
	t := as(n)
	return &t, nil
}

// timeLimit bounds times, seconds before and after 1970: what is closer can be negated and written again. No file system goes as far.
const timeLimit = 1 << timeBits

const timeBits = 62

// parseTime is the inverse of [formatTime]; it takes any number of digits after the point.
func parseTime(value string) (*unix.Timespec, error) {
	digits, negative := strings.CutPrefix(value, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	sec, err := strconv.ParseUint(whole, 10, timeBits)
	nsec, err2 := strconv.ParseUint((fraction + "000000000")[:9], 10, 31)
	if err := errors.Join(err, err2); err != nil || strings.Trim(fraction, "0123456789") != "" {
		return nil, errors.New("it is no time")
	}
	t := unix.Timespec{Sec: int64(sec), Nsec: int64(nsec)}
	if negative {
		if t.Sec = -t.Sec; t.Nsec > 0 {
			t.Sec, t.Nsec = t.Sec-1, 1e9-t.Nsec
		}
	}
	return &t, nil
}
