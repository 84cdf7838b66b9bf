// Package device is what is said with the program cryo-gpu-keeper, both ends of it: as the helper it has NVIDIA's driver save and load the device memory of processes, as the keeper it holds device memory itself, and moves it through a ring.
//
// # Helper
//
// This part asks NVIDIA's driver to take the device memory of running processes into their host memory, and back.
//
// The driver's library must be opened in a process, initialising it costs about 0.35 s each time, and binding it needs
// cgo. So a process of its own does it, the helper: `cryo-gpu-keeper driver`, which is started for one operation and lives as long as that.
// This part is the protocol between the two, the client's side of it ([StartHelper]), and the program's side without the
// driver itself ([ServeHelper]); cmd/cryo-gpu-keeper adds the driver.
//
// # Helper: protocol
//
// A socket pair, descriptor 3 of the helper, with messages of JSON (package runtime/channel). The helper speaks
// first, once the driver is ready (or is not). Then each request has exactly one answer, in order. A request names
// processes by their ids in the helper's pid namespace; they are worked on side by side.
//
// The helper undoes nothing. What became of the processes of one that has died is to be asked of the next ([Helper.States]). With a client that dies, a
// shim, containerd ends the container.
//
// # Helper: sources
//
// The calls are those of "CUDA Checkpointing" in the CUDA driver API's manual, driver 570 and later; GPU pairs need CUDA 13,
// that is driver 580. Facts are NVML's.
//
// # Keeper
//
// This part keeps device memory outside of the processes that use it. At a checkpoint a container's processes hand theirs
// over to the keeper, and it goes from there into a snapshot; at a restore it goes the other way.
//
// `cryo-gpu-keeper keeper` is the process that does so, one for an operation: see cmd/cryo-gpu-keeper. This part is its client
// ([StartKeeper], [Keeper]), and the protocol between the two. Where the memory goes, and where it comes from, is decided by the process at the other end of its ring: see package runtime/gpu/device.
//
// # Keeper: protocol
//
// A socket pair, descriptor 3 of the keeper, with messages of JSON and descriptors (package runtime/channel). The first request,
// open, names the devices that are to be ready and the ring's size. Then each request has exactly one answer, in order; while one is
// carried out that moves memory, the keeper also tells that it comes along. When the socket hangs up, on SIGTERM, or when it has told of an
// error that is not of a copy, the keeper ends: the driver frees what it has, and memory lives on only where another process has its descriptor.
//
// # Keeper: descriptors
//
// Those of memory are the driver's, of the kind POSIX_FILE_DESCRIPTOR. Given ones come from the container: the shim has
// checked that they are the driver's, and here the driver says whether they are memory of that device and size. A descriptor
// that is not is an error that names the piece. The keeper closes each as soon as it has mapped the memory: the client's copies are what
// can be given to another process.
//
// # Keeper: copying ahead
//
// Where a device has no room for copies, most of what is there is copied while its process runs: plan, begin, precopy for each part, precopied. What was copied is sent as it is, and summed with a key that
// only the keeper has. Memory that is then held, at the place of what was planned, is summed again, and what has the same sum is sent as "same". runtime/gpu/DECISIONS.md says why that is sound.
//
// # Ring
//
// This part moves device memory between the process that holds it and the one that packs or reads it, through a few buffers
// that both have mapped. The keeper (package runtime/gpu/device) makes the buffers, a sealed memfd, pins them, and copies between
// them and the devices. At a checkpoint it sends, and the checkpoint process receives; at a restore the loader sends, and it receives.
//
// # Ring: protocol
//
// A unix socket with messages of JSON (package runtime/channel), each with its kind, slot, piece, offset and length.
//
// The first is "ring", from the keeper, with the memfd: slot is the number of slots, length that of each in bytes. Then, from
// the sender: "full": the slot has length bytes of the piece from offset on; "zero": length bytes of the piece from offset on are zero; "same": they are what was copied ahead of the same process, device and addresses; "end": there is no more; "wait": what is to be sent is not
// here yet, and the receiver shall be patient again. From the receiver: "free": the
// slot may be filled again; "done": all has been taken, after end. A slot belongs to the sender at
// first, from full on to the receiver, from free on to the sender again. A side that finds anything else, or can go no further,
// hangs up: there are no messages of errors, as each side reports to a process of its own.
//
// Pieces are numbered from 0, and both sides know their sizes by other means. The keeper sends what lies between two multiples of
// [Window] of its process's addresses in order; several such windows come side by side, so that each can be hashed by a core of its
// own. What is zero it says. The loader may send in any order, and leave out ranges: those are zero.
package device
