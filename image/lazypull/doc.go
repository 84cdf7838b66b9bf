// Package lazypull reads segments of a snapshot while they are being pulled.
//
// A [Source] gives the segments that the store has, and others as they come: from the file that grows in the store, or, where what is wanted has not come yet, by
// asking for it ahead of the rest. What is read is not verified by then: its reader does that. It may have a segment fetched again.
package lazypull
