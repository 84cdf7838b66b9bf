// Package storetest makes small snapshots, keys and signatures for tests of what stores, moves and checks them.
//
// # Stores
//
// This part makes small snapshots for tests of what stores and moves them. Their blobs hold random bytes: nothing in them
// can be restored.
//
// # Signatures
//
// This part makes keys and signatures for tests of what moves, keeps and checks them.
package storetest
