# The ring of mpi_ring.py for MPICH, whose library is called without mpi4py, which Debian has for OpenMPI alone.
import ctypes
import time

mpi = ctypes.CDLL("libmpich.so.12")
WORLD, LONG, SUM, IGNORE = 0x44000000, 0x4C000807, 0x58000003, ctypes.c_void_p(1)  # of its mpi.h
mpi.MPI_Init(None, None)
number = ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(number))
rank = number.value
mpi.MPI_Comm_size(WORLD, ctypes.byref(number))
size = number.value
out, came = ctypes.c_long(), ctypes.c_long()
step = 0
while True:
    step += 1
    for i in range(200):
        out.value = step * 1000 + i + rank * 10**12
        mpi.MPI_Sendrecv(ctypes.byref(out), 1, LONG, (rank + 1) % size, i, ctypes.byref(came), 1, LONG, (rank - 1) % size, i, WORLD, IGNORE)
        if came.value != step * 1000 + i + (rank - 1) % size * 10**12:
            print("wrong: step", step, "message", i, "is", came.value, flush=True)
    out.value = step * (rank + 1)
    mpi.MPI_Allreduce(ctypes.byref(out), ctypes.byref(came), 1, LONG, SUM, WORLD)
    if came.value != step * size * (size + 1) // 2:
        print("wrong: step", step, "the sum is", came.value, flush=True)
    if rank == 0:
        print("step", step, flush=True)
    time.sleep(0.02)
