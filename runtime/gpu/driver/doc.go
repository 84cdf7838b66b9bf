// Package driver asks NVIDIA's driver to take the device memory of running processes into their host memory, and back.
//
// The driver's library must be opened in a process, initialising it costs about 0.35 s each time, and binding it needs
// cgo. So a process of its own does it, the helper: `cryo-gpu-keeper driver`, which is started for one operation and lives as long as that.
// This package is the protocol between the two, the client's side of it ([Start]), and the program's side without the
// driver itself ([Serve]); cmd/cryo-gpu-keeper adds the driver.
//
// # Protocol
//
// A socket pair, descriptor 3 of the helper, with messages of JSON (package runtime/channel). The helper speaks
// first, once the driver is ready (or is not). Then each request has exactly one answer, in order. A request names
// processes by their ids in the helper's pid namespace; they are worked on side by side.
//
// The helper undoes nothing. What became of the processes of one that has died is to be asked of the next ([Client.States]). With a client that dies, a
// shim, containerd ends the container.
//
// # Sources
//
// The calls are those of "CUDA Checkpointing" in the CUDA driver API's manual, driver 570 and later; GPU pairs need CUDA 13,
// that is driver 580. Facts are NVML's.
package driver
