# Each rank passes numbers and arrays round, and all sum what they have; every message is counted. A system of equations is solved by Jacobi's way on the side. All end when the first rank finds /tmp/end.
import os
import time
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
n = 64
x = numpy.zeros(n)
rows = range(rank * n // size, (rank + 1) * n // size)
step = 0
while True:
    step += 1
    for i in range(200):
        came = world.sendrecv((step, i, rank), dest=(rank + 1) % size, source=(rank - 1) % size)
        if came != (step, i, (rank - 1) % size):
            print("wrong: step", step, "message", i, "is", came, flush=True)
    block = numpy.full(20000, float(step * (rank + 1)))
    total = numpy.zeros(20000)
    world.Allreduce(block, total)
    if not (total == step * size * (size + 1) / 2).all():
        print("wrong: step", step, "the sum is", total[0], flush=True)
    # 4 x[i] - x[i-1] - x[i+1] = 2, with 1 beyond the ends: the solution is 1 everywhere
    mine = [(2 + (x[i - 1] if i else 1) + (x[i + 1] if i + 1 < n else 1)) / 4 for i in rows]
    x = numpy.concatenate(world.allgather(numpy.array(mine)))
    if step > 100 and abs(x - 1).max() > 1e-9:
        print("wrong: step", step, "the solution is", x, flush=True)
    if rank == 0:
        print("step", step, flush=True)
    if world.bcast(os.path.exists("/tmp/end")):
        break
    time.sleep(0.02)
