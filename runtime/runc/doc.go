// Package runc executes the container runtime for what the stock shim does not do itself: freezing, dumping with an
// abort that leaves the container running, and reading the runtime's own words for a failure.
package runc
