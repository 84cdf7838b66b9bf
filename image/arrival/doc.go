// Package arrival reads the segments of a snapshot while they are still on their way into the store.
//
// A [Source] gives what has arrived, from the files in which downloads grow, and asks for the rest. The process that downloads has a
// [Server], which answers with parts fetched ahead of all else; another process that needs the segments asks it as a [Client], over a
// socket, and hears from it that all is there, or why it will not be. Whoever of the two ends first leaves the other with an
// error at once: nobody waits for what does not come.
//
// Nothing that is read is verified here: readers know the digests of frames, segments have theirs for the whole only.
package arrival
