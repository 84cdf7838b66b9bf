"""Trains a small transformer deterministically: the losses must be those of a run that nobody disturbed, step for step, bit for bit.

    torch_training.py            until it is asked to stop
    torch_training.py STEPS      that many steps, at full speed; then it prints the losses
"""

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA starts; deterministic cuBLAS wants it

import torch
from torch import nn

from ask import Desk

torch.use_deterministic_algorithms(True)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)
torch.manual_seed(1)

VOCABULARY, WIDTH, LENGTH, BATCH = 1024, 512, 128, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, x):
        return self.head(self.layers(self.tokens(x) + self.places, mask=self.mask))


model = Model().cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
losses = []
done = False


def step():
    # Data and dropout are drawn on the device: its generator's state has to come through as well.
    start = torch.randint(0, VOCABULARY, (BATCH, 1), device="cuda")
    x = (start + torch.arange(LENGTH + 1, device="cuda") * 7) % VOCABULARY
    logits = model(x[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), x[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item().hex())


def tick():
    if not done:
        step()


def check():
    return True, {"steps": len(losses), "loss": losses[-1] if losses else ""}


def stop():
    global done
    done = True
    return True, {"losses": losses, "device": torch.cuda.memory_reserved()}


if len(sys.argv) > 1:
    while len(losses) < int(sys.argv[1]):
        step()
    print("\n".join(losses))
else:
    Desk().serve({"check": check, "stop": stop}, tick, pause=0.03)
