// Package segment cuts memory into segments and frames and encodes frames.
//
// Memory is cut by address, not in the order of a dump: [Cut] gives every window of a process (or shared memory object)
// a segment of its own and pools windows that hold little. A segment holds stored frames and nothing else, so memory that
// did not change gives the same bytes, and the same digest, in the next snapshot.
package segment
