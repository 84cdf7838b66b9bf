// Package fill has containers run while their memory is still being filled in from a snapshot.
//
// Two processes share the work. The shim ([Start], [Filling]) stands where CRIU looks for its lazy-pages daemon: it takes each
// process's userfaultfd and passes it on to a process of its own program ([Serve]), which reads the snapshot and fills the memory.
// Both hold each userfaultfd. While one of them lives, no process goes on with memory that is not its own: who touches what is not
// there waits. So the container can be ended in peace when the other dies, or the snapshot turns out to be damaged.
//
// They speak over a socket pair, in messages of JSON; see message.go. The restore process says what to read; see package order.
package fill
