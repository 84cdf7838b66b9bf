"""A model in PyTorch that is restored warm, and whose clones draw different samples.

NOT RUN by cryo's tests: they have no PyTorch. It uses public interfaces of PyTorch alone.
"""

import torch

import cryo_contract

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).to(device).eval()
contract = cryo_contract.Contract()


@torch.inference_mode()
def answer():
    return model(torch.randn(1, 1024, device=device)).argmax().item()


answer()  # what is initialised by the first call is in the snapshot then
if device == "cuda":
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # memory that nothing uses is neither saved nor loaded
contract.ready()
while True:
    event, generation = contract.wait()
    if event != cryo_contract.RESTORED:
        continue
    contract.unready()
    cryo_contract.renew()  # of the CPU and of all GPUs: every clone has the same state until here
    changes = contract.changes()
    print("restored after", changes.get("pause"), "s on", changes["gpus"], "answers", answer(), flush=True)
