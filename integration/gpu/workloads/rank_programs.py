"""Programs on several GPUs as the manuals of public libraries show them: one process a GPU, started by torchrun, or one process on all. An epoch begins from seeds, and must give what the first
gave, bit for bit; each rank answers for itself.

    rank_programs.py NAME [NODE NODES ADDRESS]

NAME is ddp, fsdp, tensor, pipeline, custom, or device-map, which is one process. With NODE, this is one of several hosts, of which the first has ADDRESS; their ranks speak Gloo, which
goes by TCP alone.
"""

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

from programs import Run, torch_seeded


def launch():
    """Becomes torchrun, which starts a rank for each GPU. Where the store keeps its connections, and what CRIU does not take (io_uring), is said in the environment."""
    settings = {"UV_USE_IO_URING": "0", "USE_LIBUV": "0"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=gpu"]
    if len(sys.argv) > 2:
        node, nodes, address = sys.argv[2:]
        launcher += ["--node-rank=" + node, "--nnodes=" + nodes, "--master-addr=" + address, "--master-port=29500"]
    else:
        launcher.append("--standalone")
    os.execve(sys.executable, launcher + sys.argv, os.environ | settings)


def begin():
    torch = torch_seeded()
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    if len(sys.argv) > 2:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("nccl", device_id=device)
    return torch, dist, dist.get_rank()


class Lines:
    """Made, not read: each worker computes its own from the index."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        import torch

        return torch.rand(32, 256, generator=torch.Generator().manual_seed(i)), i % 10


def encoder(torch):
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.nn.Flatten(), torch.nn.Linear(32 * 256, 10)).cuda().train()


def training(wrap):
    torch, dist, _ = begin()
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    sampler = torch.utils.data.DistributedSampler(Lines(), shuffle=True, seed=1)
    data = torch.utils.data.DataLoader(Lines(), 8, sampler=sampler, num_workers=2, pin_memory=True, persistent_workers=True)
    torch_seeded()
    start = {name: value.clone() for name, value in encoder(torch).state_dict().items()}
    plain = encoder(torch)
    model = wrap(torch, plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    whole = {name: value.clone() if hasattr(value, "clone") else value for name, value in model.state_dict().items()} if wrap is sharded else None

    def epoch():
        torch_seeded()
        with torch.no_grad():
            if whole is None:
                plain.load_state_dict(start)
            else:
                model.load_state_dict(whole)
        optimizer.state.clear()
        sampler.set_epoch(0)
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            dist.all_reduce(total := loss.detach().double())
            yield total.item()

    return epoch


def replicated(torch, model):
    return torch.nn.parallel.DistributedDataParallel(model)


def sharded(torch, model):
    from torch.distributed.fsdp import fully_shard

    for layer in model[0].layers:
        fully_shard(layer)
    return fully_shard(model)


def llama(torch, layers, width=4096):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 7 // 2, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8, vocab_size=32000, max_position_embeddings=4096
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval()


def generated(torch, model):
    prompt = torch.arange(1, 65, device="cuda")[None]
    with torch.inference_mode():
        return model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, 64:].tolist()


def tensor():
    """A language model of the shape of Llama 3 8B, each layer cut into parts for all ranks."""
    torch, dist, rank = begin()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = llama(torch, int(os.environ.get("LAYERS", "32")))
    cut = {f"self_attn.{n}_proj": ColwiseParallel() for n in "qkv"} | {f"mlp.{n}_proj": ColwiseParallel() for n in ("gate", "up")}
    cut |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model.model.layers:
        parallelize_module(layer, mesh, cut)
    torch.cuda.empty_cache()

    def epoch():
        yield generated(torch, model)

    return epoch


def pipeline():
    """Two stages: the first rank sends what it has computed to the next, which sends the sum back."""
    torch, dist, rank = begin()
    world = dist.get_world_size()
    stage = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()

    def epoch():
        for i in range(8):
            x = torch.full((256, 1024), i / 8, device="cuda")
            with torch.no_grad():
                if rank:
                    dist.recv(x, rank - 1)
                x = stage(x)
                if rank < world - 1:
                    dist.send(x, rank + 1)
                total = x.double().sum()
                dist.broadcast(total, world - 1)
            yield total.item()

    return epoch


# Each rank sums what all ranks have in memory, in the same order. Its blocks wait for those of the others before they read, and after it. A block's number of rounds is in memory, so that
# a replayed graph goes on with it.
ALL_REDUCE = r"""
extern "C" __global__ void all_reduce(float *out, const volatile float *const *in, volatile unsigned *const *flags, unsigned *rounds, int rank, int world, long long count)
{
	unsigned round = 2 * rounds[blockIdx.x] + 1;
	for (int step = 0; step < 2; step++, round++) {
		__syncthreads();
		if (threadIdx.x < world) {
			__threadfence_system();
			flags[threadIdx.x][blockIdx.x * world + rank] = round;
			while ((int)(flags[rank][blockIdx.x * world + threadIdx.x] - round) < 0)
				;
			__threadfence_system();
		}
		__syncthreads();
		for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; !step && i < count; i += (long long)gridDim.x * blockDim.x) {
			float sum = 0;
			for (int r = 0; r < world; r++)
				sum += in[r][i];
			out[i] = sum;
		}
	}
	if (threadIdx.x == 0)
		rounds[blockIdx.x]++;
}
"""


class Opened:
    """Memory of all ranks, by the runtime's legacy IPC: addresses of each rank's, in a tensor on the device."""

    def __init__(self, torch, dist, pointer, offset=0):
        import ctypes

        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_byte * 64)]

        runtime, handle = cuda_runtime(), Handle()
        succeed(runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(pointer - offset)))
        handles = [None] * dist.get_world_size()
        dist.all_gather_object(handles, (bytes(handle), offset))
        addresses = []
        for rank, (text, at) in enumerate(handles):
            opened = ctypes.c_void_p(pointer - offset)
            if rank != dist.get_rank():
                succeed(runtime.cudaIpcOpenMemHandle(ctypes.byref(opened), Handle.from_buffer_copy(text), 1))  # cudaIpcMemLazyEnablePeerAccess
            addresses.append(opened.value + at)
        self.addresses = torch.tensor(addresses, dtype=torch.int64, device="cuda")


def cuda_runtime():
    """The library that PyTorch has loaded, as vLLM finds it."""
    import ctypes

    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))


def succeed(result):
    if result:
        raise RuntimeError(f"CUDA's runtime: {result}")


def start_of(tensor):
    """Where the allocation of a tensor begins, which is what a handle is of."""
    import ctypes

    start = ctypes.c_uint64()
    succeed(ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(ctypes.byref(start), 11, ctypes.c_uint64(tensor.data_ptr())))  # CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
    return start.value


def custom():
    """All-reduces by a kernel that reads the memory of all ranks, which they open by legacy IPC, as the custom all-reduce of vLLM does: flags by cudaMalloc, data by PyTorch's
    allocator; launched, and replayed in a CUDA graph."""
    torch, dist, rank = begin()
    import ctypes

    import cupy
    import numpy

    cupy.cuda.Device(torch.cuda.current_device()).use()
    world, blocks, count = dist.get_world_size(), 32, 1 << 22
    kernel = cupy.RawKernel(ALL_REDUCE, "all_reduce")
    pointer = ctypes.c_void_p()
    size = blocks * world * 4 + (8 << 20)  # of flags, and as vLLM has it, data
    succeed(cuda_runtime().cudaMalloc(ctypes.byref(pointer), size))
    succeed(cuda_runtime().cudaMemset(pointer, 0, size))
    flags = Opened(torch, dist, pointer.value)
    x, out = torch.zeros(count, device="cuda"), torch.zeros(count, device="cuda")
    data = Opened(torch, dist, x.data_ptr(), x.data_ptr() - start_of(x))
    rounds = torch.zeros(blocks, dtype=torch.int32, device="cuda")

    def reduce():
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            pointers = [numpy.uint64(v) for v in (out.data_ptr(), data.addresses.data_ptr(), flags.addresses.data_ptr(), rounds.data_ptr())]
            kernel((blocks,), (512,), (*pointers, numpy.int32(rank), numpy.int32(world), numpy.int64(count)))

    torch.cuda.synchronize()
    dist.barrier()
    reduce()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        reduce()

    def epoch():
        for i in range(8):
            torch.manual_seed(8 * rank + i)
            x.normal_()
            graph.replay() if i % 2 else reduce()
            by_library = x.clone()
            dist.all_reduce(by_library)
            if not torch.allclose(out, by_library, atol=1e-5):
                raise RuntimeError(f"rank {rank}, round {i}: not the sum that NCCL computes")
            yield out.sum(dtype=torch.float64).item()

    return epoch


def device_map():
    """One process whose model lies on all GPUs, as accelerate lays it out."""
    torch = torch_seeded()
    from accelerate import dispatch_model

    model = llama(torch, 8, 2048)
    count = torch.cuda.device_count()
    places = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": count - 1, "lm_head": count - 1}
    places |= {f"model.layers.{i}": i * count // 8 for i in range(8)}
    model = dispatch_model(model, places)
    copied = torch.full((64 << 20,), 1.0, device="cuda:0")

    def epoch():
        yield generated(torch, model)
        for other in range(1, count):
            yield (copied.to(f"cuda:{other}") + other).sum(dtype=torch.float64).item()

    return epoch


PROGRAMS = {"ddp": lambda: training(replicated), "fsdp": lambda: training(sharded), "tensor": tensor, "pipeline": pipeline, "custom": custom, "device-map": device_map}


def main():
    if sys.argv[1] != "device-map" and "RANK" not in os.environ:
        launch()
    run = Run(PROGRAMS[sys.argv[1]]())
    while run.epochs < 1:
        run.tick()
    from ask import Desk

    Desk(int(os.environ.get("LOCAL_RANK", 0))).serve({"check": run.whole}, run.tick, pause=0.02)


if __name__ == "__main__":
    main()
