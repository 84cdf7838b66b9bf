// Package gpu saves what a container has on NVIDIA GPUs before it is dumped, and loads it afterwards or elsewhere.
//
// By the engine "driver", NVIDIA's driver moves device memory into the memory of the processes that own it, where CRIU finds it,
// and moves it back. That works for any CUDA program. A process of its own, the helper, asks the driver: package driver.
// By the engine "keeper", processes first hand over what they can to another process, the keeper: package keeper.
// [Engine] is for a checkpoint, [Restore] for the start of a container from a snapshot.
//
//	discover -> preflight -> interrupt, lock, stop -> checkpoint -> (freeze, dump, thaw) -> restore -> unlock
//	   \_______________ any failure: back by the state that the driver tells ______________/
//
// From the driver's checkpoint to its restore a process runs no code of its program: its threads are stopped by ptrace while the cgroup is not frozen (driver.Client.Stop). After CRIU has
// restored a container, its cgroup is frozen until they are.
//
// For a container in which nothing has opened a GPU, only /proc is read; without device nodes of GPUs not even that.
//
// The driver saves some programs that it cannot load again. [Rules] lists what is refused for that reason; DECISIONS.md has
// the evidence.
package gpu
