"""A language model of 8 billion parameters (the shape of Llama 3 8B, random weights, bfloat16): the same tokens must come after as before.

    torch_inference.py [LAYERS]      32

"requests N" has it serve so many requests, no two alike.
"""

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ask import Desk

layers = int(sys.argv[1]) if len(sys.argv) > 1 else 32
begin = time.time()
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128256, max_position_embeddings=4096,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
prompt = torch.arange(1, 65, device="cuda")[None]


def tokens():
    with torch.inference_mode():
        return model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0)[0, 64:].tolist()


def weights():
    """A sum over all bits of all parameters, in parts: a sum in 64 bits copies what it adds, and the copies stay with the process."""
    total = 0
    for p in model.parameters():
        for part in p.detach().view(torch.int16).flatten().split(1 << 24):
            total += int(part.sum(dtype=torch.int64))
    return total


first, sum_of_weights = tokens(), weights()
torch.cuda.synchronize()
loaded = time.time() - begin
beat = torch.zeros(1, device="cuda", dtype=torch.float64)


def check():
    now, sum_now = tokens(), weights()
    ok = now == first and sum_now == sum_of_weights
    return ok, {
        "tokens": now, "first": first, "sameWeights": sum_now == sum_of_weights, "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.memory_reserved(), "cold": round(loaded, 2),
    }


served = 0


def requests(count):
    global served
    produced = 0
    for _ in range(int(count)):
        served += 1
        other = (prompt * (served + 1) + served) % config.vocab_size
        with torch.inference_mode():
            produced += model.generate(other, max_new_tokens=16, do_sample=False, pad_token_id=0).shape[1] - prompt.shape[1]
    torch.cuda.synchronize()
    return True, {"served": served, "produced": produced}


def tick():
    beat.add_(1)
    torch.cuda.synchronize()


Desk().serve({"check": check, "requests": requests}, tick)
