"""Kernels that Triton has compiled, and compiles anew whenever it is asked."""

import torch
import triton
import triton.language as tl

from ask import Desk


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr, VARIANT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.load(x + at, mask=inside) * factor + VARIANT, mask=inside)


n = (1 << 24) + 13
x = torch.arange(n, device="cuda", dtype=torch.float32) % 1000
y = torch.empty_like(x)
checks = 0


def run(factor, variant):
    scale[(triton.cdiv(n, 1024),)](x, y, n, factor, BLOCK=1024, VARIANT=variant)
    return bool(torch.equal(y, x * factor + variant))


def tick():
    run(2.0, 0)


def check():
    global checks
    checks += 1
    return run(3.0, 0) and run(2.0, checks), {"verdicts": {"compiled before": run(5.0, 0), "compiled now": run(1.0, 1000 + checks)}}


tick()
torch.cuda.synchronize()
Desk().serve({"check": check}, tick)
