// Package record has what a snapshot records of its container for others than its reader: the GPUs, and the choices of the dump. The GPU helper links it, so it imports next to nothing.
//
// # Contents
//
// This part has what a snapshot says of its container, for all who write or read it. It imports nothing of this project, and nothing that does.
//
// # Choices
//
// This part has the choices of a dump, which its restore must repeat.
package record
