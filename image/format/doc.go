// Package format reads and writes the bytes that a snapshot is made of: index, frames of segments, CRIU's own files, tar with holes, and JSON from outside.
//
// # Index
//
// This part reads and writes the index of a snapshot: a text that says which bytes of which segment hold which pages.
//
// FORMAT.md is normative. The text is made of lines that awk can read:
//
//	cryo-index 1 sha256 xxh64 4096
//	segment 0 <sha256> 8123456 16777216
//	pages 1 pagemap-1.img 4096
//	frame 0 0 524288 zstd 1048576 <sha256> <xxh64>
//	run 1 0 256 7f0000000000
//	end 4
//
// A snapshot with device memory has a text of version 2, with lines device d<pid>.<gpu> <pages>, whose runs have the same id.
//
// [EncodeIndex] writes exactly one text for an [Index] and [DecodeIndex] reads nothing else: a text that is decoded and encoded again
// has the same bytes. [Index.Check] holds the rules that tie the parts together; both call it.
//
// # Pagemaps
//
// This part reads what CRIU's images say about memory: which page of which pages file belongs to which address.
//
// A pagemap image (pagemap-PID.img for a process, pagemap-shmem-ID.img for a shared memory object) begins with two
// magic numbers; then come records, each a little-endian 32-bit length and a protobuf message: one pagemap_head that
// names the pages file, then one pagemap_entry a range of memory (CRIU, images/pagemap.proto and criu/pagemap.c). Pages
// that an entry marks as present follow each other in pages-ID.img without any framing.
//
// Everything read is hostile until checked: for a malformed image the functions return an error of the kind DataLoss. They never panic, and they allocate
// no more than the image itself deserves.
//
// # Frames
//
// This part encodes and decodes the frames of which segments are made. A segment holds stored frames and nothing else, so memory that did not change
// has the same bytes, and the same digest, in the next snapshot.
//
// # Large files
//
// This part reads and writes large files past the page cache (O_DIRECT, see open(2)).
//
// Segments are written once and read once. Through the page cache, the kernel would have to find a page of memory for each page of
// a file and to evict others, which costs more than copying, and a host that takes or restores snapshots has little memory to spare.
// What is already in the page cache is read from there. If a file system does not support O_DIRECT, files are read and written as
// usual. What is written is the same.
//
// # CRIU's records
//
// This part takes CRIU's images apart. An image begins with one or two magic numbers. Records follow, each after its length. Source: CRIU,
// criu/image.c and criu/protobuf.c.
//
// # Tar with holes
//
// This part reads and writes entries of a tar, files with holes among them.
//
// A file with holes is as GNU tar has it in version 1.0 ("Storing Sparse Files" in its manual): records of a pax header say that it is one, and its
// contents begin with a map of what is not a hole. Go's archive/tar cannot write such files, and reads their holes as zeros, so it is given
// the same records under another prefix, which it ignores, and the map is read and written here. All else is archive/tar's.
//
// # JSON from outside
//
// This part reads JSON from outside. It counts before anything is built: in memory a value takes many times what it takes as text, "{}" a
// hundred times.
package format
