// Package ring moves device memory between the process that holds it and the one that packs or reads it, through a few buffers
// that both have mapped. The keeper (package runtime/gpu/keeper) makes the buffers, a sealed memfd, pins them, and copies between
// them and the devices. At a checkpoint it sends, and the cryo command receives; at a restore the loader sends, and it receives.
//
// # Protocol
//
// A unix socket with messages of JSON (package runtime/channel), each with its kind, slot, piece, offset and length.
//
// The first is "ring", from the keeper, with the memfd: slot is the number of slots, length that of each in bytes. Then, from
// the sender: "full": the slot has length bytes of the piece from offset on; "zero": length bytes of the piece from offset on are zero; "end": there is no more; "wait": what is to be sent is not
// here yet, and the receiver shall be patient again. From the receiver: "free": the
// slot may be filled again; "done": all has been taken, after end. A slot belongs to the sender at
// first, from full on to the receiver, from free on to the sender again. A side that finds anything else, or can go no further,
// hangs up: there are no messages of errors, as each side reports to a process of its own.
//
// Pieces are numbered from 0, and both sides know their sizes by other means. The keeper sends what lies between two multiples of
// [Window] of its process's addresses in order; several such windows come side by side, so that each can be hashed by a core of its
// own. What is zero it says. The loader may send in any order, and leave out ranges: those are zero.
package ring

// Window is the length of what a keeper sends in order, bytes. The receiver cuts at its multiples.
const Window = 256 << 20
