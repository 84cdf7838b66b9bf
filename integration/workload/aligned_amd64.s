#include "textflag.h"

// func readAligned(fd int)
TEXT ·readAligned(SB), 0, $8192-8
	MOVQ fd+0(FP), DI
	MOVQ SP, R12
	LEAQ 4095(SP), SI
	ANDQ $~4095, SI
	MOVQ SI, SP
	MOVQ $1, DX
again:
	XORL AX, AX // read(2)
	SYSCALL
	CMPQ AX, $-4 // EINTR
	JEQ  again
	MOVQ R12, SP
	RET
