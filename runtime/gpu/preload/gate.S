// The stubs that programs call in place of the driver's functions, and what they have in common. A stub has a number; gate.c knows the
// function behind it. The first ones are functions with names, for programs that are linked with the driver; the others are handed out.
// Nothing here is written at run time, so no memory has to be both writable and executable.
#include "gate.h"

	.file "gate.S" // else it is called as the compiler calls what it gives to the assembler, and no two builds are alike

	.text
	.hidden gate_enter
	.hidden gate_functions
	.hidden gate_guard
	.hidden gate_seat
	.hidden interpose_dlsym
	.hidden interpose_next
	.hidden interpose_find_next
	.hidden interpose_skipped

// Each is 16 bytes. r11 is nobody's between a call and the function's first instruction.
	.macro stub
	.p2align 4
	endbr64
	movl $gate_number, %r11d
	jmp gate_common
	.set gate_number, gate_number + 1
	.endm

	.macro named name
	.p2align 4
	.globl \name
	.type \name, @function
\name:
	stub
	.size \name, . - \name
	.endm

	.set gate_number, 0
	.p2align 4
	.globl gate_stubs
	.hidden gate_stubs
gate_stubs:
	.cfi_startproc
#define NAME(name) named name;
#include "names.h"
#undef NAME
	.rept GATE_HANDED
	stub
	.endr
	.cfi_endproc

// gate_common counts the thread in, calls the function with the same arguments, and counts it out. Ten words of the caller's stack are
// copied, so functions may have sixteen integer arguments; the driver's longest has eleven. It has a frame and says so, for debuggers,
// profilers and exceptions of callbacks, which pass through it; a thread that leaves so stays counted, and the gate cannot be closed
// until it has ended. What gate_enter has to be asked for is left to it before anything is counted, or counted back.
	.p2align 4
	.type gate_common, @function
gate_common:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	subq $208, %rsp
	movq gate_seat@gottpoff(%rip), %r10
	movq %fs:(%r10), %r10
	testq %r10, %r10
	je 4f
	addl $1, (%r10)
	cmpl $1, (%r10)
	jne 1f
	cmpl $0, gate_guard(%rip) // who closes the gate sees to it that this is not done before the addition
	jne 3f
1:	leaq gate_functions(%rip), %rax
	movq (%rax, %r11, 8), %rax
	testq %rax, %rax
	je 3f
2:	movups 16(%rbp), %xmm8 // of the registers for floating point, a caller gives up to eight
	movups 32(%rbp), %xmm9
	movups 48(%rbp), %xmm10
	movups 64(%rbp), %xmm11
	movups 80(%rbp), %xmm12
	movups %xmm8, (%rsp)
	movups %xmm9, 16(%rsp)
	movups %xmm10, 32(%rsp)
	movups %xmm11, 48(%rsp)
	movups %xmm12, 64(%rsp)
	call *%rax
	movq gate_seat@gottpoff(%rip), %r10
	movq %fs:(%r10), %r10
	subl $1, (%r10)
	leave
	.cfi_remember_state
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_restore_state
3:	subl $1, (%r10)
4:	movq %rdi, -8(%rbp)
	movq %rsi, -16(%rbp)
	movq %rdx, -24(%rbp)
	movq %rcx, -32(%rbp)
	movq %r8, -40(%rbp)
	movq %r9, -48(%rbp)
	movups %xmm0, -64(%rbp)
	movups %xmm1, -80(%rbp)
	movups %xmm2, -96(%rbp)
	movups %xmm3, -112(%rbp)
	movl %r11d, %edi
	call gate_enter
	movq -8(%rbp), %rdi
	movq -16(%rbp), %rsi
	movq -24(%rbp), %rdx
	movq -32(%rbp), %rcx
	movq -40(%rbp), %r8
	movq -48(%rbp), %r9
	movups -64(%rbp), %xmm0
	movups -80(%rbp), %xmm1
	movups -96(%rbp), %xmm2
	movups -112(%rbp), %xmm3
	jmp 2b
	.cfi_endproc
	.size gate_common, . - gate_common

// dlsym: names that are not the driver's, and RTLD_NEXT, go on to the C library's by a jump, so that it sees its caller as if this were not
// here: what comes next is next to that one.
	.p2align 4
	.globl dlsym
	.type dlsym, @function
dlsym:
	.cfi_startproc
	endbr64
	testq %rsi, %rsi
	je 1f
	cmpb $'c', (%rsi)
	jne 1f
	cmpb $'u', 1(%rsi)
	jne 1f
	movzbl 2(%rsi), %eax
	subl $'A', %eax
	cmpl $25, %eax
	ja 1f
	cmpq $-1, %rdi // RTLD_NEXT
	jne interpose_dlsym
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	call interpose_skipped
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
1:	movq interpose_next(%rip), %rax
	testq %rax, %rax
	je 2f
	jmp *%rax
2:	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	call interpose_find_next
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	jmp *%rax
	.cfi_endproc
	.size dlsym, . - dlsym

	.section .note.GNU-stack, "", @progbits
