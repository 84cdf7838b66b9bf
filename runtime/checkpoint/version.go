//go:build !previous

package checkpoint

// Newest is the version that the command greets with.
const Newest = 5

// ranges: Previous is spoken as well.
const ranges = true
