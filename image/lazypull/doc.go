// Package lazypull reads segments of a snapshot while they are being pulled.
//
// A [Source] gives the segments that the store has. It reads others from the file into which they are pulled, by this process. A range that has not come yet is requested
// before the rest, and the pull does not fetch it again. What is read this way is not verified: its reader must do that, and may have a segment fetched again.
package lazypull
