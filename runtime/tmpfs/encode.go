package tmpfs

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// What the fields of a ustar header hold.
const (
	maxName  = 100
	maxID    = 1<<21 - 1
	maxLarge = 1<<33 - 1
)

// encode gives what comes before the contents of an entry: a pax header where one is needed, the header, the map of a sparse file.
func encode(e *entry) ([]byte, error) {
	h := *e
	var pax []byte
	add := func(key, value string) { pax = appendRecord(pax, key, value) }
	if len(h.name) > maxName && !h.sparse {
		add("path", h.name)
	}
	if len(h.link) > maxName {
		add("linkpath", h.link)
	}
	if h.uid > maxID {
		add("uid", strconv.FormatUint(uint64(h.uid), 10))
		h.uid = 0
	}
	if h.gid > maxID {
		add("gid", strconv.FormatUint(uint64(h.gid), 10))
		h.gid = 0
	}
	add("mtime", formatTime(h.mtime))
	add("atime", formatTime(h.atime))
	if h.mtime.Sec < 0 || h.mtime.Sec > maxLarge {
		h.mtime.Sec = 0
	}
	for _, x := range h.xattrs {
		add(paxXattr+x.name, x.value)
	}
	size := h.stored()
	var sparseMap []byte
	if h.sparse {
		// GNU tar's manual, "Storing Sparse Files": version 1.0.
		add("GNU.sparse.major", "1")
		add("GNU.sparse.minor", "0")
		add("GNU.sparse.name", h.name)
		add("GNU.sparse.realsize", strconv.FormatInt(h.size, 10))
		h.name = "./GNUSparseFile.0/file"
		sparseMap = encodeMap(h.extents, h.size)
		size += int64(len(sparseMap))
	}
	if size > maxLarge {
		add("size", strconv.FormatInt(size, 10))
		size = 0
	}
	if len(pax) > maxPax {
		return nil, fmt.Errorf("%q: its attributes have %d bytes; %d are supported", e.name, len(pax), maxPax)
	}
	out := appendHeader(nil, &entry{name: "./PaxHeaders/entry", kind: typePax, mode: 0o600}, int64(len(pax)))
	out = appendPadded(out, pax)
	out = appendHeader(out, &h, size)
	return append(out, sparseMap...), nil
}

// appendRecord appends "length key=value\n", the length being its own too.
func appendRecord(b []byte, key, value string) []byte {
	rest := len(key) + len(value) + len(" =\n")
	length := rest
	for next := rest + len(strconv.Itoa(length)); next != length; next = rest + len(strconv.Itoa(length)) {
		length = next
	}
	return fmt.Appendf(b, "%d %s=%s\n", length, key, value)
}

// formatTime gives seconds with a fraction, also before 1970.
func formatTime(t unix.Timespec) string {
	sec, nsec, sign := t.Sec, t.Nsec, ""
	if sec < 0 {
		if nsec > 0 {
			sec, nsec = sec+1, 1e9-nsec
		}
		sec, sign = -sec, "-"
	}
	return fmt.Sprintf("%s%d.%09d", sign, sec, nsec)
}

func encodeMap(extents []extent, size int64) []byte {
	if n := len(extents); n == 0 || extents[n-1].offset+extents[n-1].length < size {
		extents = append(extents[:n:n], extent{offset: size}) // says how long the file is to readers that go by the map
	}
	b := fmt.Appendf(nil, "%d\n", len(extents))
	for _, x := range extents {
		b = strconv.AppendInt(b, x.offset, 10)
		b = append(b, '\n')
		b = strconv.AppendInt(b, x.length, 10)
		b = append(b, '\n')
	}
	return append(b, make([]byte, padding(int64(len(b))))...)
}

func appendPadded(b, data []byte) []byte {
	return append(append(b, data...), make([]byte, padding(int64(len(data))))...)
}

// appendHeader appends a ustar header. What does not fit is in the pax header before it, and cut off here.
func appendHeader(b []byte, e *entry, size int64) []byte {
	var h [blockSize]byte
	octal := func(at, width int, v uint64) { copy(h[at:], fmt.Sprintf("%0*o", width-1, v)) }
	copy(h[:maxName], e.name)
	octal(100, 8, uint64(e.mode))
	octal(108, 8, uint64(e.uid))
	octal(116, 8, uint64(e.gid))
	octal(124, 12, uint64(size))
	octal(136, 12, uint64(e.mtime.Sec))
	h[156] = e.kind
	copy(h[157:157+maxName], e.link)
	copy(h[257:], "ustar\x0000")
	if e.kind == typeCharacter || e.kind == typeBlock {
		octal(329, 8, uint64(e.major))
		octal(337, 8, uint64(e.minor))
	}
	octal(148, 7, uint64(checksum(&h)))
	h[155] = ' '
	return append(b, h[:]...)
}

// checksum is the sum of a header's bytes, its own taken as spaces.
func checksum(h *[blockSize]byte) (sum uint32) {
	for i, c := range h {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += uint32(c)
	}
	return sum
}
