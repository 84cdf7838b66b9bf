"""Two processes, one a GPU, that reduce over NCCL; each answers for itself.

    nccl_ranks.py [graph | symmetric | GIB]

Each has 256 MiB, or so many GiB of random bytes. With graph they also replay a CUDA graph that holds an all-reduce, with symmetric they also reduce PyTorch's symmetric memory. Multicast
is left to the environment: NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 turn it off.
"""

import os
import sys

children = []
for rank in range(2):
    pid = os.fork()  # before CUDA is used
    if pid == 0:
        break
    children.append(pid)
else:
    os.waitpid(-1, 0)  # one without the other makes no sense
    os._exit(1)

os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}

import torch
import torch.distributed as dist

from ask import Desk

torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
kept = torch.full((64 << 20,), float(rank + 1), device="cuda")
dist.all_reduce(kept)
way = sys.argv[1] if len(sys.argv) > 1 else ""
more_bytes = [torch.randint(-(1 << 62), 1 << 62, (128 << 20,), device="cuda") for _ in range(int(way) if way.isdigit() else 0)]
sums = [int(part.sum()) for part in more_bytes]
torch.cuda.synchronize()
rounds = 0
right = True

if way == "graph":
    inside = torch.ones(1 << 20, device="cuda")
    for _ in range(3):  # NCCL connects before anything is captured
        dist.all_reduce(inside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(inside)
elif way == "symmetric":
    import torch.distributed._symmetric_memory as symmetric

    inside = symmetric.empty(1 << 20, dtype=torch.float32, device=f"cuda:{rank}")
    symmetric.rendezvous(inside, dist.group.WORLD)


def more(value, total):
    """Reduces by the other way as well."""
    if not way or more_bytes:
        return True
    inside.fill_(value)
    if way == "graph":
        graph.replay()
        return bool((inside == total).all())
    dist.barrier()
    reduced = torch.ops.symm_mem.one_shot_all_reduce(inside, "sum", dist.group.WORLD.group_name)
    dist.barrier()
    return bool((reduced == total).all())


def tick():
    """Both ranks take part in each round, whatever they are asked."""
    global rounds, right
    rounds += 1
    x = torch.full((1 << 20,), float(rank + rounds % 7), device="cuda")
    dist.all_reduce(x)
    total = 1.0 + 2 * (rounds % 7)
    right = bool((x == total).all()) and more(float(rank + rounds % 7), total) and right


def check():
    same = sums == [int(part.sum()) for part in more_bytes]
    return right and same and bool((kept == 3.0).all()), {"rounds": rounds, "rank": rank}


Desk(rank).serve({"check": check}, tick)
