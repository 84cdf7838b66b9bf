// Package gpu saves what a container has on NVIDIA GPUs before it is dumped, and loads it afterwards or elsewhere.
//
// By the engine "driver", NVIDIA's driver moves device memory into the memory of the processes that own it, where CRIU finds it,
// and moves it back. It takes any CUDA program as it is. A process of its own, the helper, asks the driver: package driver.
// By the engine "keeper", processes first hand over what they can to another process, the keeper: package keeper.
// [Engine] is for a checkpoint, [Restore] for the start of a container from a snapshot.
//
//	discover -> preflight -> interrupt, lock -> checkpoint -> (freeze, dump, thaw) -> restore -> unlock
//	   \_______________ any failure: back by the state that the driver tells ______________/
//
// A container in which nothing has opened a GPU costs a look at /proc; without device nodes of GPUs not even that.
//
// The driver accepts on the way down what it cannot bring back up. [Rules] lists what is refused for that, each with the
// evidence; DECISIONS.md has more.
package gpu
