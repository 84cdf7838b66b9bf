// Package direct reads and writes large files past the page cache (O_DIRECT, see open(2)).
//
// Segments are written once and read once. Through the page cache, the kernel would have to find a page of memory for each page of
// a file and to evict others, which costs more than copying, and a host that takes or restores snapshots has little memory to spare.
// What is already in the page cache is read from there. If a file system does not support O_DIRECT, files are read and written as
// usual. What is written is the same.
package direct
