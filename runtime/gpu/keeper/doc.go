// Package keeper keeps device memory outside of the processes that use it. At a checkpoint a container's processes hand theirs
// over to the keeper, and it goes from there into a snapshot; at a restore it goes the other way.
//
// `cryo-gpu-keeper keeper` is the process that does so, one for an operation: see cmd/cryo-gpu-keeper. This package is its client
// ([Start], [Client]), and the protocol between the two. Where the memory goes, and where it comes from, is decided by the process at the other end of its ring: see package runtime/gpu/ring.
//
// # Protocol
//
// A socket pair, descriptor 3 of the keeper, with messages of JSON and descriptors (package runtime/channel). The first request,
// open, names the devices that are to be ready and the ring's size. Then each request has exactly one answer, in order; while one is
// carried out that moves memory, the keeper also tells that it comes along. When the socket hangs up, on SIGTERM, or when it has told of an
// error that is not of a copy, the keeper ends: the driver frees what it has, and memory lives on only where another process has its descriptor.
//
// # Descriptors
//
// Those of memory are the driver's, of the kind POSIX_FILE_DESCRIPTOR. Given ones come from the container: the shim has
// checked that they are the driver's, and here the driver says whether they are memory of that device and size. A descriptor
// that is not is an error that names the piece. The keeper closes each as soon as it has mapped the memory: the client's copies are what
// can be given to another process.
package keeper
