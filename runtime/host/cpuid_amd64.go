package host

// cpuid executes CPUID. Source: Intel SDM volume 2A.
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// xsaveSize is the size in bytes of the XSAVE area for the features that the kernel enabled: CPUID leaf 0xD, sub-leaf 0,
// EBX (Intel SDM volume 1, chapter 13.2). A process sees it, and the C library sizes its stacks by it.
func xsaveSize() uint32 {
	const (
		leafFeatures = 0x1
		leafXState   = 0xD
		osxsave      = 1 << 27 // leaf 1, ECX
	)
	highest, _, _, _ := cpuid(0, 0)
	if highest < leafXState {
		return 0
	}
	if _, _, ecx, _ := cpuid(leafFeatures, 0); ecx&osxsave == 0 {
		return 0
	}
	_, enabled, _, _ := cpuid(leafXState, 0)
	return enabled
}
