"""Numba's managed arrays, which kernels and the host change by turns."""

import numpy
from numba_advance import advance, cuda

from ask import Desk

n = 1 << 21
x = cuda.managed_array(n, dtype=numpy.int64)
expected = numpy.arange(n, dtype=numpy.int64)
x[:] = expected
numbers = numpy.arange(n, dtype=numpy.int64)
steps = 0


def tick():
    global steps, expected
    advance[n // 256, 256](x, 5 + steps % 7)
    expected = (expected * (5 + steps % 7) + numbers) % 1000003
    cuda.synchronize()
    x[steps % n :: 4099] += 1  # by the host
    expected[steps % n :: 4099] += 1
    short = cuda.managed_array(1000, dtype=numpy.int64)  # freed at once
    short[:] = x[:1000]
    advance[4, 256](short, 3)
    cuda.synchronize()
    assert (short == (expected[:1000] * 3 + numbers[:1000]) % 1000003).all()
    steps += 1


def check():
    return bool((x == expected).all()), {"steps": steps, "sum": int(x.sum())}


Desk().serve({"check": check}, tick)
