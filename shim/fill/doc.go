// Package fill has containers run while their memory is still being filled in from a snapshot.
//
// Two processes share the work. The shim ([Start], [Filling]) stands where CRIU looks for its lazy-pages daemon: it takes each
// process's userfaultfd and passes it on to the restore process ([Memory.Serve]), which reads the snapshot and fills the memory.
// Both hold each userfaultfd. While one of them lives, no process goes on with memory that is not its own: who touches what is not
// there waits. So the container can be ended in peace when the other dies, or the snapshot turns out to be damaged.
//
// They speak over a channel of their own, in messages of JSON; see message.go.
package fill
