"""Arrays, a kernel compiled at run time, and a random generator of CuPy."""

import cupy

from ask import Desk

kernel = cupy.RawKernel(r"""
extern "C" __global__ void step(unsigned long long *x, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 6364136223846793005ull + 1442695040888963407ull;
}
""", "step")

n = 1 << 22
x = cupy.arange(n, dtype=cupy.uint64)
steps = 0
matrix = cupy.random.RandomState(3).standard_normal((1024, 1024))
first = cupy.asnumpy(matrix @ matrix)


def tick():
    global steps
    kernel((n // 256,), (256,), (x, cupy.uint32(n)))
    cupy.cuda.Stream.null.synchronize()
    steps += 1


def check():
    a, c, mask = 1, 0, (1 << 64) - 1
    for _ in range(steps):  # the same steps as one
        a, c = a * 6364136223846793005 & mask, (c * 6364136223846793005 + 1442695040888963407) & mask
    expected = cupy.arange(n, dtype=cupy.uint64) * cupy.uint64(a) + cupy.uint64(c)
    verdicts = {"kernel": bool((x == expected).all()), "matrix": bool((cupy.asnumpy(matrix @ matrix) == first).all())}
    return all(verdicts.values()), {"verdicts": verdicts, "steps": steps}


Desk().serve({"check": check}, tick)
