package conformance

import "regexp"

// known lists the differences that have a reason. Each form is matched with a line "TEST NUMBER FUNCTION(ARGUMENTS) OUTCOME-WITHOUT | OUTCOME-WITH".
var known = []struct {
	form *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`^bounds-exact `), "the driver's own memory ends with the byte that was asked for, memory with handles with its 2 MiB: a copy past the end is not refused there"},
	{regexp.MustCompile(`cuPointerGetAttribute\(.*, 21\) = 0 is=1 \| = 0 is=0$`), decompression},
	{regexp.MustCompile(`cuPointerGetAttributes\(.* 21: is=1 \| .* 21: is=0$`), decompression},
	{regexp.MustCompile(`^(pools \d+ cuMemGetAddressRange_v2\(freed on a stream\)|per-thread \d+ cuMemGetAddressRange_v2\(freed\)) = 0.* \| = 500$`), "memory of cuMemAlloc that is freed on a stream is gone when the call returns, not when the stream gets there"},
	{regexp.MustCompile(`^segments \d+ cuMemExportToShareableHandle\(large\) = 0.* \| = 801$`), "memory of several pieces has no one descriptor; one piece would have to be moved to a GPU with another number as a whole"},
}

const decompression = "memory of the library is not made for the decompression engine, which GPUs have from Blackwell on"
