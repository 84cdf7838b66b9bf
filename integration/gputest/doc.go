// Package gputest is a host with the fake NVIDIA driver of integration/fakecuda, for tests of the packages that work with a driver: its devices, the helper that
// asks the driver, and programs that have device memory.
package gputest
