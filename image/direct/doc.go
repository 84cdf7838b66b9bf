// Package direct reads and writes large files past the page cache (O_DIRECT, see open(2)).
//
// Segments are written once and read once, and memory is what a host that takes or restores snapshots has least of: the kernel has to
// find a page for each page of a file, and to throw others out, which costs more than the copying itself. What is in the page cache
// already is read from there. Where a file system knows no O_DIRECT, all of this is reading and writing as usual; nothing that is
// written differs.
package direct
