package format

import (
	"crypto/sha256"
	"fmt"
	"math"

	"github.com/cryo-project/cryo/image/record"
)

// IndexVersion is the newest version of the text that this package reads. What has no device memory is of version 1.
const IndexVersion = 2

// Limits of an index. No sum of two of them overflows an int64.
const (
	MaxFrame        = 1 << 20 // raw bytes of a frame; frames also end where this divides the address
	MaxSegments     = 1 << 16 // of a snapshot
	MaxPagesFiles   = 1 << 23 // twice what a pid namespace can hold
	MaxPages        = 1 << 40 // pages of one pages file
	MaxSegmentBytes = 1 << 60 // bytes of a segment, raw or stored
	MaxAddress      = record.MaxAddress
	MaxPID          = record.MaxPID
	MaxIndexText    = 168 << 20 // bytes of the text: its reader has at most three times as much in memory
	maxLine         = 256       // bytes of a line, its end included
	maxNumber       = 1 << 62   // no number of the text is larger
	minPageSize     = 4 << 10   // bytes
	maxPageSize     = 64 << 10  // bytes
)

// Codec is how a frame is stored.
type Codec uint8

// The codecs of version 1.
const (
	Raw  Codec = iota // as it is
	Zstd              // one zstd frame (RFC 8878)
)

var codecNames = [...]string{Raw: "raw", Zstd: "zstd"}

// String returns the codec's name in the text.
func (c Codec) String() string {
	if int(c) < len(codecNames) {
		return codecNames[c]
	}
	return "invalid"
}

// Index says where the memory of a snapshot is.
type Index struct {
	PageSize int64 // bytes
	Segments []Segment
	Files    []PagesFile // by ascending ID
	Frames   []Frame     // by segment and offset
}

// Segment is one blob of memory.
type Segment struct {
	Digest [sha256.Size]byte // of the blob
	Size   int64             // of the blob, bytes
	Raw    int64             // sum of its frames' raw lengths, bytes
}

// PagesFile is one pages file of CRIU's, or what a process has on one GPU.
type PagesFile struct {
	ID      uint64 // of pages-ID.img, or [DeviceFile]
	Pagemap string // name of the image that describes it; empty: the config describes device memory
	Count   int64  // pages
}

// Frame is a piece of a segment that can be read by itself.
type Frame struct {
	Segment int
	Offset  int64 // in the segment, bytes
	Stored  int64 // bytes in the segment
	Codec   Codec
	Raw     int64             // bytes when decoded
	Digest  [sha256.Size]byte // of the decoded bytes
	Check   uint64            // XXH64 of the decoded bytes, against errors of disk and memory only
	Runs    []Run             // filled in this order by the decoded bytes
}

// End is the address behind its last page.
func (f *Frame) End(pageSize int64) uint64 {
	r := f.Runs[len(f.Runs)-1]
	return r.Addr + uint64(r.Count*pageSize)
}

// Run is a range of pages of one pages file.
type Run struct {
	File  uint64 // ID of the pages file
	First int64  // index of the first page in it
	Count int64  // pages
	Addr  uint64 // of the first page, in the process or the shared memory object
}

// RawBytes is the sum of all frames' raw lengths: memory that is not zero, in bytes.
func (x *Index) RawBytes() int64 {
	var n int64
	for _, s := range x.Segments {
		n = saturate(n, s.Raw)
	}
	return n
}

// Used gives, for each segment, how many of its bytes frames take.
func (x *Index) Used() []int64 {
	used := make([]int64, len(x.Segments))
	for i := range x.Frames {
		used[x.Frames[i].Segment] += x.Frames[i].Stored
	}
	return used
}

// Version is the one that the text of the index has.
func (x *Index) Version() int {
	if n := len(x.Files); n > 0 && x.Files[n-1].IsDevice() {
		return 2
	}
	return 1
}

// IsDevice reports whether it is device memory.
func (f PagesFile) IsDevice() bool {
	_, _, ok := DeviceOf(f.ID)
	return ok
}

// String returns which it is.
func (f PagesFile) String() string {
	if pid, gpu, ok := DeviceOf(f.ID); ok {
		return fmt.Sprintf("device memory of process %d on GPU %d", pid, gpu)
	}
	return fmt.Sprintf("pages file %d", f.ID)
}

// MemoryBytes is the sum of all pages files' lengths and of device memory, in bytes, and what of that is device memory.
func (x *Index) MemoryBytes() (all, device int64) {
	for _, f := range x.Files {
		all = saturate(all, f.Count*x.PageSize)
		if f.IsDevice() {
			device = saturate(device, f.Count*x.PageSize)
		}
	}
	return all, device
}

func saturate(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
