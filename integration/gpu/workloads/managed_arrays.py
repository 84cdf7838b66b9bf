"""CuPy on managed memory, as its manual shows, and arrays that the host and a kernel change by turns."""

import ctypes

import cupy
import numpy

from ask import Desk

cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)

step = cupy.RawKernel(r"""
extern "C" __global__ void step(unsigned long long *x, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}
""", "step")

n = 1 << 23
x = cupy.arange(n, dtype=cupy.uint64)
cupy.cuda.Stream.null.synchronize()
# The same memory as an array of the host.
host = numpy.ctypeslib.as_array(ctypes.cast(x.data.ptr, ctypes.POINTER(ctypes.c_uint64)), (n,))
steps = 0
matrix = cupy.random.RandomState(3).standard_normal((1024, 1024))
first = cupy.asnumpy(matrix @ matrix)


def tick():
    global steps
    step((n // 256,), (256,), (x, cupy.uint32(n)))
    host[:: 1 << 12] += numpy.uint64(2)  # it waits for the kernel
    host[:: 1 << 12] -= numpy.uint64(2)
    steps += 1


def check():
    expected = numpy.arange(n, dtype=numpy.uint64) + numpy.uint64(steps)
    verdicts = {
        "host": bool((host == expected).all()),
        "device": bool((x == cupy.asarray(expected)).all()),
        "matrix": bool((cupy.asnumpy(matrix @ matrix) == first).all()),
        "managed": bool(cupy.cuda.runtime.pointerGetAttributes(x.data.ptr).type == 3),
    }
    return all(verdicts.values()), {"verdicts": verdicts, "steps": steps}


Desk().serve({"check": check}, tick)
