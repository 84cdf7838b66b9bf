//go:build !amd64

package host

// xsaveSize is 0: only x86 has an XSAVE area.
func xsaveSize() uint32 { return 0 }
