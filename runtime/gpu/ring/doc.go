// Package ring moves device memory between the process that holds it and the one that packs or reads it, through a few buffers
// that both have mapped. The keeper (package runtime/gpu/keeper) makes the buffers, a sealed memfd, pins them, and copies between
// them and the devices. At a checkpoint it sends, and the cryo command receives; at a restore the loader sends, and it receives.
//
// # Protocol
//
// Over a unix socket of SOCK_SEQPACKET (package runtime/channel): messages of 32 bytes, little-endian:
//
//	0   u32  magic, 0x52475543 ("CUGR")
//	4   u16  version, 1
//	6   u16  kind
//	8   u32  slot
//	12  u32  piece
//	16  u64  offset
//	24  u64  length
//
// kind 1, ring, is the first, from the keeper, with the memfd: slot is the number of slots, length that of each in bytes. Then, from
// who sends: 2, full: the slot has length bytes of the piece from offset on; 4, end: there is no more; 6, wait: what is to be sent is not
// here yet, and who receives shall be patient again. From who receives: 3, free: the
// slot may be filled again; 5, done: all has been taken, after end. What a kind does not use is zero. A slot belongs to the sender at
// first, from full on to the receiver, from free on to the sender again. Who finds anything else, or can go no further,
// hangs up: there are no messages of errors, as each side reports to somebody of its own.
//
// Pieces are numbered from 0, and both sides know their sizes by other means. The keeper sends what lies between two multiples of
// [Window] of its process's addresses in order; several such windows come side by side, so that each can be hashed by a core of its
// own. The loader may send in any order, and leave out ranges: those are zero.
package ring

// Window is the length of what a keeper sends in order, bytes. Who receives cuts at its multiples.
const Window = 256 << 20
