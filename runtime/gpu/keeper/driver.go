package keeper

import "os"

// Driver is what [Serve] works with. Its methods and those of what it gives are called from several goroutines, but for one [Memory]
// never two that change it. Errors of the driver's calls are [driver.CallError].
type Driver interface {
	// Device opens the one with this UUID; opening it again gives the same. Its error is of kind NotFound where there is none.
	Device(uuid string) (Device, error)
	// Pin makes host memory, which is page-aligned, reachable for all devices at once, until the process ends. At least one device is open.
	Pin(host []byte) error
}

// Device is one of the driver's.
type Device interface {
	// Import maps memory of this device and size by its descriptor, which remains the caller's.
	Import(file *os.File, size int64) (Memory, error)
	// Make maps new memory. What is in it is of no meaning.
	Make(size int64) (Memory, error)
	// Clear makes memory of this device all zero, and waits once, for all of it.
	Clear(all []Memory) error
	// Copy copies all of one to another of this device and size, and waits for it.
	Copy(to, from Memory) error
	// Room is how much could be made, in bytes.
	Room() (int64, error)
}

// Streams is how many of a device copy side by side: one copies while the slots of others are handed on, by threads that wait for a processor.
const Streams = 4

// Memory is mapped memory of a device. What it does is done when it returns.
type Memory interface {
	// Read and Write copy from and to pinned host memory, on one of the device's [Streams].
	Read(stream int, to []byte, offset int64) error
	Write(stream int, from []byte, offset int64) error
	// Export gives a descriptor; imported memory has none.
	Export() (*os.File, error)
	// Free unmaps it and lets go of it.
	Free() error
}
