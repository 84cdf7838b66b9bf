"""Holds what CUDA's libraries keep on a device, each with a verdict of its own: graphs, streams and events, cuBLAS, cuDNN, cuFFT."""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch import nn

from ask import Desk

torch.manual_seed(2)
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = True
device = torch.device("cuda")


class Graph:
    """A captured graph is replayed on fixed memory; each replay counts on."""

    def __init__(self):
        self.x = torch.arange(1 << 20, device=device, dtype=torch.float32)
        self.count = torch.zeros(1, device=device, dtype=torch.int64)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.x.copy_(torch.arange(1 << 20, device=device))
        self.count.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()
        self.replays = 0

    def step(self):
        self.x.mul_(3).add_(1).remainder_(1 << 20)
        self.count.add_(1)

    def tick(self):
        self.graph.replay()
        self.replays += 1

    def check(self):
        expected = torch.arange(1 << 20, dtype=torch.int64, device=device)
        a, c = 1, 0
        for _ in range(self.replays):  # the same steps as one
            a, c = a * 3 % (1 << 20), (c * 3 + 1) % (1 << 20)
        expected = (expected * a + c) % (1 << 20)
        return int(self.count) == self.replays and bool((self.x.to(torch.int64) == expected).all())


class Streams:
    """Work goes from stream to stream through events."""

    def __init__(self):
        self.streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(8)]
        self.events = [torch.cuda.Event() for _ in self.streams]
        self.data = torch.zeros(1 << 22, device=device, dtype=torch.int64)
        self.rounds = 0
        torch.cuda.synchronize()

    def tick(self):
        before = None
        for stream, event in zip(self.streams, self.events):
            with torch.cuda.stream(stream):
                if before is not None:
                    stream.wait_event(before)
                self.data.add_(1)
                event.record(stream)
            before = event
        torch.cuda.current_stream().wait_event(before)
        torch.cuda.current_stream().synchronize()
        self.rounds += 1

    def check(self):
        return bool((self.data == self.rounds * len(self.streams)).all())


class Same:
    """The same computation through a library's handle gives the same bits as at first."""

    def __init__(self, compute):
        self.compute = compute
        self.first = compute().clone()

    def tick(self):
        self.last = self.compute()

    def check(self):
        return bool(torch.equal(self.compute(), self.first))


def blas():
    a, b = (torch.randn(2048, 2048, device=device, dtype=t) for t in (torch.float32, torch.float32))
    h = torch.randn(64, 256, 256, device=device, dtype=torch.bfloat16)
    return lambda: (a @ b) + torch.bmm(h, h).float().sum()


def dnn():
    convolution = nn.Conv2d(64, 128, 3, padding=1).to(device)
    recurrent = nn.LSTM(128, 128, num_layers=2, batch_first=True).to(device)
    image, text = torch.randn(8, 64, 56, 56, device=device), torch.randn(8, 32, 128, device=device)

    def compute():
        with torch.no_grad():
            return convolution(image).sum(dim=(1, 2, 3)) + recurrent(text)[0].sum(dim=(1, 2))

    return compute


def fft():
    x = torch.randn(256, 4096, device=device)
    return lambda: torch.fft.irfft(torch.fft.rfft(x))


parts = {"graphs": Graph(), "streams": Streams(), "cublas": Same(blas()), "cudnn": Same(dnn()), "cufft": Same(fft())}


def tick():
    for part in parts.values():
        part.tick()
    torch.cuda.synchronize()


def check():
    verdicts = {name: part.check() for name, part in parts.items()}
    return all(verdicts.values()), {"verdicts": verdicts, "replays": parts["graphs"].replays}


Desk().serve({"check": check}, tick)
