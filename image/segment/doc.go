// Package segment encodes and decodes the frames of which segments are made. A segment holds stored frames and nothing else, so memory that did not change
// gives the same bytes, and the same digest, in the next snapshot.
package segment
