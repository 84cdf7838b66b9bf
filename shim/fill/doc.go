// Package fill fills the memory of containers from a snapshot while they run.
//
// Two processes share the work. The shim ([Start], [Filling]) takes the place of CRIU's lazy-pages daemon: it gets each process's
// userfaultfd and passes it on to the restore process ([Memory.Serve]), which reads the snapshot and fills the memory. Both hold
// each userfaultfd. While one of them lives, a process that touches a missing page waits, and never reads zeros instead. So there is
// time to end the container if the other process dies, or if the snapshot turns out to be damaged.
//
// They speak over a channel of their own, in messages of JSON; see message.go.
package fill
