"""Two ranks of NCCL, one a GPU, that measure all-reduces when the first is asked to: seconds of one of 8 KiB, 1 MiB and 256 MiB."""

import os
import time

for rank in range(2):
    if os.fork() == 0:
        break
else:
    os.waitpid(-1, 0)
    os._exit(1)

os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}

import torch
import torch.distributed as dist

from ask import Desk

torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
sizes = {"all-reduce 8 KiB": (8 << 10, 400), "all-reduce 1 MiB": (1 << 20, 200), "all-reduce 256 MiB": (256 << 20, 20)}
data = {name: torch.zeros(size // 4, device="cuda") for name, (size, _) in sizes.items()}
asked = 0


def tick():
    """The first rank says whether all are to measure."""
    global asked
    dist.all_reduce(flag := torch.tensor([asked], device="cuda"))
    asked = 0
    took = {}
    if flag.item():
        for name, (_, times) in sizes.items():
            dist.all_reduce(data[name])
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(times):
                dist.all_reduce(data[name])
            torch.cuda.synchronize()
            took[name] = (time.perf_counter() - began) / times
    return took


def measure(seconds):
    global asked
    asked = 1
    return True, tick()


tick()
Desk(rank).serve({"measure": measure, "check": lambda: (True, {})}, tick)
