// Package gpu saves what a container has on NVIDIA GPUs before it is dumped, and loads it afterwards or elsewhere.
//
// By the engine "driver", NVIDIA's driver moves device memory into the memory of the processes that own it, where CRIU finds it,
// and moves it back. That works for any CUDA program. A process of its own, the helper, asks the driver: package device.
// By the engine "keeper", processes first hand over what they can to another process, the keeper: package device.
// [Engine] is for a checkpoint, [Restore] for the start of a container from a snapshot.
//
//	discover -> preflight -> interrupt, lock, stop -> checkpoint -> (freeze, dump, thaw) -> restore -> unlock
//	   \_______________ any failure: back by the state that the driver tells ______________/
//
// From the driver's checkpoint to its restore a process runs no code of its program: its threads are stopped by ptrace while the cgroup is not frozen (device.Helper.Stop). After CRIU has
// restored a container, its cgroup is frozen until they are.
//
// For a container in which nothing has opened a GPU, only /proc is read; without device nodes of GPUs not even that.
//
// The driver saves some programs that it cannot load again. [Rules] lists what is refused for that reason; DECISIONS.md has
// the evidence.
//
// # Prewarmed memory
//
// This part keeps a snapshot's device memory loaded, so that a restore only attaches it.
//
// For each snapshot a process holds the descriptors of memory that a keeper (package device) has made and filled. The keeper has ended: memory
// lives as long as a process has its descriptor. So this process has no context on a device, opens no driver and cannot hang in one.
// It is started by `cryo prewarm --gpu` ([PrewarmedDir.Begin], [PrewarmedBeginning.Keep]) with [ServePrewarmed], does nothing, and is killed when a restore uses what it has, or
// to make room.
//
// # Prewarmed memory: directory
//
// <root>/warm.gpu, root's alone, has a directory for each, with the file prewarmed.json ([Prewarmed]). A process that has something says so by a lock on a byte of it:
//
//	0  the process that keeps the memory, until it ends. The kernel tells its id (F_GETLK)
//	1  a restore that has a lease
//
// A restore that has the lease copies the descriptors out of the process (pidfd_getfd(2)). If it ends before it has killed the process, it has not touched the
// memory, and the next may lease it.
//
// A directory gets its name when everything is loaded. One that is called new-… is being made by the process that holds <root>/warm.gpu.lock,
// or was left by one that died. A directory is ignored if byte 0 is not locked: after a reboot, or when the process was killed.
//
// # Interrupts
//
// This part asks kernels on a GPU to return early, so that the driver can lock a process whose kernels run for
// minutes. It reaches programs made with contrib/cuda/cryo_interrupt.cuh and leaves all others alone.
//
// Such a program keeps a flag in a page of shared memory, a memfd named "cryo-interrupt", which its kernels read and which is
// found from outside in /proc/PID/maps. While the flag is raised, kernels save their progress and return, and the program
// launches none. Raise it before the driver's lock, lower it once the lock is held or was given up: what the program then
// launches waits for the lock's end.
//
// A flag that is not lowered does not stop a program for good: it expires after a time that the program itself counts.
//
// The process is not trusted. What is opened is made sure to be memory before it is opened, so that no file system of the
// container's can make the caller wait, and nothing is written to memory that the process could not write itself.
// Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN for /proc/PID/map_files, in the first user namespace. Source: proc(5).
//
// # CDI
//
// This part puts GPUs into runtime specifications, and takes them out again, by the Container Device Interface.
//
// A client that is asked for a CDI device (ctr run --device nvidia.com/gpu=0) expands it when it makes the container: the
// specification holds device nodes, mounts of the driver's libraries, environment and hooks of that host, and no longer the
// name. A snapshot is worth nothing to another host with all that in it. [CDI.Find] finds the names again, [CDIEdits.Strip]
// removes what they were expanded to, and [CDI.Inject] expands them to what the restoring host has under these names.
//
// Names and edits that come out of a snapshot are another's words. A name only selects a device that this host's own
// CDI files define; hooks, which are programs, come from these files and from nowhere else.
//
// Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
package gpu
