"""A kernel of Numba's that programs here share."""

import numpy

if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack  # gone from NumPy 2.5, and Numba wants it
from numba import cuda


@cuda.jit
def advance(x, a):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = (x[i] * a + i) % 1000003
