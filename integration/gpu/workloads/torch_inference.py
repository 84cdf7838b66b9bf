"""A language model with random weights, bfloat16: the same tokens must come after as before.

    torch_inference.py [LAYERS]      so many of the 32 layers of Llama 3 8B
    torch_inference.py 32b           the shape of Qwen2.5 32B
    torch_inference.py DIR           what is in files there
    torch_inference.py --save DIR    writes 8 billion parameters into files

"requests N" has it serve so many requests, no two alike, "token" one for a single token.
"""

import os
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ask import Desk

which = sys.argv[1] if len(sys.argv) > 1 else "32"
begin = time.time()
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)


def made(which):
    shape = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, vocab_size=128256)
    if which == "32b":
        shape, which = dict(hidden_size=5120, intermediate_size=27648, num_attention_heads=40, vocab_size=152064), 64
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(num_hidden_layers=int(which), num_key_value_heads=8, max_position_embeddings=4096, **shape)).eval()


if which == "--save":
    made("32").save_pretrained(sys.argv[2])
    sys.exit()
model = LlamaForCausalLM.from_pretrained(which, dtype=torch.bfloat16, device_map="cuda").eval() if os.path.isdir(which) else made(which)
config = model.config
prompt = torch.arange(1, 65, device="cuda")[None]


def tokens(count=32):
    with torch.inference_mode():
        return model.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0)[0, 64:].tolist()


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


def token():
    return tokens(1) == first[:1], {}


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


Desk().serve({"check": check, "requests": requests, "token": token}, tick)
