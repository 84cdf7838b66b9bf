// Package lazypull reads segments of a snapshot while they are being pulled.
//
// A [Source] gives the segments that the store has. It reads others from the file that grows in the store. A range that has not come yet is requested before the
// rest. What is read this way is not verified: its reader must do that, and may have a segment fetched again.
package lazypull
