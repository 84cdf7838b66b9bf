"""Asks a driver whether the kernels of a process give way to those of another after the driver has saved and restored it, without cryo.

    preempted.py [SECONDS]

A process runs a kernel of so many seconds (3), and another beside it runs one of some microseconds over and over. Where the GPU takes turns between them, none of the short ones takes long. It is
asked before the first process is saved and restored, after that, in another stream, after a second time, and in another context. With 5 seconds or more the driver may end the process.
"""

import ctypes
import os
import subprocess
import sys
import time

DRIVER = ctypes.CDLL("libcuda.so.1")


def child():
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    rate = 0
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "rate":  # cycles a second, of a kernel that was measured
            torch.cuda._sleep(1000)
            torch.cuda.synchronize()
            began = time.monotonic()
            torch.cuda._sleep(1 << 28)
            torch.cuda.synchronize()
            rate = (1 << 28) / (time.monotonic() - began)
            print("rate", f"{rate / 1e9:.2f} GHz", flush=True)
        elif words[0] == "long":
            stream = torch.cuda.Stream() if words[2:] == ["stream"] else torch.cuda.current_stream()
            if words[2:] == ["context"]:
                DRIVER.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0)  # it is this thread's from here on
            began = time.monotonic()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(int(rate * float(words[1])))
            stream.synchronize()
            print("took", f"{time.monotonic() - began:.2f}", flush=True)
        elif words[0] == "short":
            end, worst, count = time.monotonic() + float(words[1]), 0.0, 0
            x = torch.zeros(1024, device="cuda")
            while time.monotonic() < end:
                began = time.monotonic()
                x += 1
                torch.cuda.synchronize()
                worst, count = max(worst, time.monotonic() - began), count + 1
            print("worst", f"{worst * 1000:.1f} ms of {count}", flush=True)


class Child:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()


def through_checkpoint(pid):
    DRIVER.cuInit(0)
    for call in ("Lock", "Checkpoint", "Restore", "Unlock"):
        r = getattr(DRIVER, "cuCheckpointProcess" + call)(pid, ctypes.byref((ctypes.c_ulonglong * 8)()))
        if r:
            raise RuntimeError(f"cuCheckpointProcess{call}: {r}")


def beside(first, second, seconds, *more):
    first.ask(" ".join(["long", str(seconds), *more]))
    time.sleep(0.5)
    second.ask(f"short {seconds - 1}")
    return f"the short ones: {second.answer()}; the long one: {first.answer()}"


def main():
    if sys.argv[1:2] == ["child"]:
        return child()
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    first, second = Child(), Child()
    first.ask("rate")
    print(first.answer())
    print("before:", beside(first, second, seconds), flush=True)
    through_checkpoint(first.process.pid)
    print("after:", beside(first, second, seconds), flush=True)
    print("after, in another stream:", beside(first, second, seconds, "stream"), flush=True)
    through_checkpoint(first.process.pid)
    print("after twice:", beside(first, second, seconds), flush=True)
    print("after twice, in another context:", beside(first, second, seconds, "context"), flush=True)
    for c in (first, second):
        c.process.stdin.close()
        c.process.wait()


if __name__ == "__main__":
    main()
