package host

import (
	"slices"
	"strings"
)

// instructions are the x86 flags of /proc/cpuinfo that user space can rely on: code that uses them on a processor
// without them faults or computes something else. Flags that only the kernel sees (mitigations, virtualization,
// topology) and those that only promise speed (erms, fsrm, cldemote) are not among them: a process runs without them.
// Source: CRIU's x86_ins_capability_mask (criu/arch/x86/cpu.c), Intel SDM volume 2, AMD APM volume 3.
var instructions = strings.Fields(`
	3dnow 3dnowext abm adx aes amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx avx10_1 avx10_2 avx2 avx512_4fmaps
	avx512_4vnniw avx512_bf16 avx512_bitalg avx512_fp16 avx512_vbmi2 avx512_vnni avx512_vp2intersect avx512_vpopcntdq
	avx512bw avx512cd avx512dq avx512er avx512f avx512ifma avx512pf avx512vbmi avx512vl avx_ifma avx_ne_convert
	avx_vnni avx_vnni_int16 avx_vnni_int8 bmi1 bmi2 clflush clflushopt clwb clzero cmov cmpccxadd cx16 cx8 enqcmd f16c
	fma fma4 fpu fsgsbase fxsr gfni lahf_lm lwp misalignsse mmx mmxext movbe movdir64b movdiri mpx mwaitx ospke
	pclmulqdq pni popcnt ptwrite raoint rdpid rdpru rdrand rdseed rdtscp rtm serialize sha512 sha_ni sm3 sm4 sse sse2
	sse4_1 sse4_2 sse4a ssse3 syscall tbm tsc tsxldtrk user_shstk vaes vpclmulqdq waitpkg xgetbv1 xop xsave xsavec
	xsaveopt`)

// cpuFeatures: every flag the snapshot's processor had and a process could have found must be here. More is fine. On
// arm64 /proc/cpuinfo has exactly what the kernel tells processes (HWCAP), so all flags count.
func cpuFeatures(s comparison, t FitTarget) []mismatch {
	if s.Host.Architecture != t.Architecture {
		return nil
	}
	var missing []string
	for _, flag := range s.Host.CPUFeatures {
		if s.Host.Architecture == "amd64" && !slices.Contains(instructions, flag) {
			continue
		}
		if !slices.Contains(t.CPUFeatures, flag) {
			missing = append(missing, flag)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return one(sprintf("this processor (%s) lacks %s, which the snapshot's (%s) had", t.CPUModel, strings.Join(missing, ", "), s.Host.CPUModel),
		"restore on a processor of the same or a later generation; in a virtual machine pass the processor's features through; --force cpu-features if the processes do not use them")
}

// compareXSave: the kernel restores registers from a frame of the size that CRIU wrote and takes smaller and larger ones,
// but the C library has asked for the size once, when the process started, and saves registers on the stack by it
// whenever a symbol is bound (glibc, _dl_runtime_resolve_xsave*). On a processor with more state it writes past the end;
// with less, offsets of the compacted form differ. So the sizes must be equal, which is also what CRIU's own
// check of its cpuinfo image asks.
func compareXSave(s comparison, t FitTarget) []mismatch {
	if s.Host.Architecture != t.Architecture || s.Host.XSaveSize == t.XSaveSize || s.Host.XSaveSize == 0 {
		return nil
	}
	return one(sprintf("register state takes %d bytes on the snapshot's processor and %d on this one", s.Host.XSaveSize, t.XSaveSize),
		"restore on the same generation of processor; --force xsave-size for processes that are linked statically without such buffers (Go programs, for one)")
}
