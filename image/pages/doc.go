// Package pages reads what CRIU's images say about memory: which page of which pages file belongs to which address.
//
// A pagemap image (pagemap-PID.img for a process, pagemap-shmem-ID.img for a shared memory object) begins with two
// magic numbers; then come records, each a little-endian 32-bit length and a protobuf message: one pagemap_head that
// names the pages file, then one pagemap_entry a range of memory (CRIU, images/pagemap.proto and criu/pagemap.c). Pages
// that an entry marks as present follow each other in pages-ID.img without any framing.
//
// Everything read is hostile until checked: a malformed image gives an error of the kind DataLoss, never a panic and never an
// allocation larger than the image itself deserves.
package pages
