// Package library is the host's side of the preloaded library, runtime/gpu/preload: it finds the library in a process, wakes
// its one thread, and has it hand device memory over and take it back. [Locate] and [Lib.Inject] put it into a container.
//
// The library has nothing open while it is not asked for anything. [Dial] sends its thread a signal; the thread makes a socket
// pair, says the number of one end in its own name, and that end is taken with pidfd_getfd(2). So no path, no network and no
// namespace matter. wire.go has the messages.
//
// The order of a hand-over is Hello, Close, Table, Give, Release, HangUp; of the way back Hello, Attach, Own, Open, HangUp. Who hangs up
// before Release leaves the process as it was: its library opens the gate. After Release the gate stays closed, since memory is elsewhere,
// until an Attach has brought all of it back.
//
// [Process.Shared] lists the memory that processes share by descriptors. [Process.Part] takes the sharing away, in all of them ahead of the first Release. After Attach, [Process.Export]
// of the owner and [Process.Import] of the others bring it back. From Part on only Open opens a gate, and not before its process has all its imports.
//
// While its program runs, a process lists what it has ([Process.Places]) and lends one piece at a time ([Process.Lend], [Process.Return]), for the host to copy what may not have changed when all gates are closed.
//
// A library to which nothing is said for a minute hangs up too. Memory that is still foreign after Own ([Hello.Foreign]) can be handed over again, but
// must not be left to the driver's own checkpoint: the driver saves a process with imported memory and cannot load it. Processes that work
// together are closed in short attempts, as those that wait for each other cannot be stopped one after the other.
//
// The process is not trusted. Every count, size and descriptor that comes from it is checked, and nothing waits for it without a bound.
package library
