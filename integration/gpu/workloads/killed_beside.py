"""Asks a driver what becomes of ranks of NCCL while other processes on the same GPUs are killed in the middle of their work, without cryo.

    killed_beside.py [ROUNDS] [SETTING=VALUE...]

A pair of ranks, one on each of two GPUs, reduces all the time. In each round another pair does the same, with the settings given in its environment, and is killed by SIGKILL after two seconds
of work. Each reduction of the pair that stays must be right. Multicast is left to the environment: NCCL_NVLS_ENABLE=0 turns it off.
"""

import os
import signal
import subprocess
import sys
import time


def work(rank, port):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    rounds = 0
    while True:
        x = torch.full((16 << 20,), float(rank + rounds % 7), device="cuda")
        dist.all_reduce(x)
        if not bool((x == 1.0 + 2 * (rounds % 7)).all()):
            raise RuntimeError(f"round {rounds} is wrong")
        rounds += 1
        if rounds == 10:
            print("works", flush=True)


def pair(port, settings=None):
    ranks = [subprocess.Popen([sys.executable, __file__, "rank", str(i), str(port)], stdout=subprocess.PIPE, env=os.environ | (settings or {})) for i in range(2)]
    for r in ranks:
        r.stdout.readline()
    return ranks


def end(ranks):
    for r in ranks:
        r.send_signal(signal.SIGKILL)
    for r in ranks:
        r.wait()


def main():
    if sys.argv[1:2] == ["rank"]:
        work(int(sys.argv[2]), int(sys.argv[3]))
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    settings = dict(s.split("=", 1) for s in sys.argv[2:])
    stays = pair(29600)
    for i in range(rounds):
        beside = pair(29601 + i, settings)
        time.sleep(2)
        end(beside)
        time.sleep(1)
        codes = [r.poll() for r in stays]
        print(time.strftime("%H:%M:%S"), "round", i, "the pair that stays:", codes, flush=True)
        if codes != [None, None]:
            end(stays)
            sys.exit(1)
    end(stays)
    print("as it should be")


if __name__ == "__main__":
    main()
