"""One process with two GPUs that copies from one to the other."""

import torch

from ask import Desk

a = torch.full((64 << 20,), 1.0, device="cuda:0")
b = torch.full((64 << 20,), 2.0, device="cuda:1")


def tick():
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)


def check():
    total = (a.to("cuda:1") + b).sum(dtype=torch.float64).item()
    return total == 3.0 * (64 << 20), {"sum": total, "peer": torch.cuda.can_device_access_peer(0, 1)}


check()
Desk().serve({"check": check}, tick)
