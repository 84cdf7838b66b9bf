"""Programs as the manuals of public libraries show them, each with a check of its own results: an epoch begins from seeds, and must give what the first gave, bit for bit.

    programs.py NAME         until it is asked to stop
    programs.py NAME STEPS   that many steps; then it prints how many epochs were compared
    programs.py --list
"""

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor")
os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/triton")
os.environ.setdefault("HOME", "/tmp")

WORKERS = 4


def torch_seeded(seed=1):
    import numpy
    import random
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return torch


class Pictures:
    """Made, not read: each worker computes its own from the index."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        import torch

        g = torch.Generator().manual_seed(i)
        return torch.rand(3, 64, 64, generator=g), i % 10


def loader(context, persistent):
    torch = torch_seeded()
    import torchvision

    order = torch.randperm(len(Pictures())).tolist()
    data = torch.utils.data.DataLoader(Pictures(), 8, sampler=order, num_workers=WORKERS, pin_memory=True, persistent_workers=persistent, multiprocessing_context=context)

    def epoch():
        torch_seeded()
        model = torchvision.models.resnet18(num_classes=10).cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in data:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.item()

    return epoch


class Sentences:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        import torch

        ids = torch.randint(0, 500, (32,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def gpt2():
    import transformers

    config = transformers.GPT2Config(vocab_size=500, n_positions=128, n_embd=128, n_layer=3, n_head=4, resid_pdrop=0.1)
    return transformers.GPT2LMHeadModel(config)


def trainer():
    torch = torch_seeded()
    import transformers

    transformers.utils.logging.set_verbosity_error()

    def epoch():
        torch_seeded()
        losses = []

        class Notes(transformers.TrainerCallback):
            def on_log(self, args, state, control, logs=None, **more):
                losses.extend(v for k, v in logs.items() if k == "loss")

        arguments = transformers.TrainingArguments(
            output_dir="/tmp/trainer", max_steps=8, per_device_train_batch_size=8, dataloader_num_workers=2, dataloader_pin_memory=True, logging_steps=1,
            report_to=[], save_strategy="no", disable_tqdm=True, bf16=True, gradient_checkpointing=True, seed=7,
        )
        transformers.Trainer(model=gpt2(), args=arguments, train_dataset=Sentences(), callbacks=[Notes()]).train()
        yield str(losses)

    return epoch


def generate():
    torch = torch_seeded()
    model = gpt2().cuda().eval()

    def epoch():
        torch_seeded(5)
        prompt = torch.arange(8, device="cuda").reshape(1, 8)
        for sample in (False, True):
            for _ in range(3):
                yield str(model.generate(prompt, max_new_tokens=24, do_sample=sample, pad_token_id=0).tolist())

    return epoch


def accelerated():
    torch = torch_seeded()
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")

    def epoch():
        torch_seeded()
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(256, 256)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 32, num_workers=2)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        for a, b in data:
            loss = torch.nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()
        accelerator.free_memory()

    return epoch


def lightning():
    torch = torch_seeded()
    import logging

    import pytorch_lightning as pl
    from pytorch_lightning.plugins.environments import LightningEnvironment

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
            self.losses = []

        def training_step(self, batch, _):
            loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    def epoch():
        torch_seeded()
        x = torch.randn(128, 64)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 16, num_workers=2)
        model = Model()
        pl.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, plugins=[LightningEnvironment()]).fit(model, data)
        yield str(model.losses)

    return epoch


def sentences():
    torch = torch_seeded()
    import transformers
    from sentence_transformers import SentenceTransformer, models

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"word{i}" for i in range(200)]
    os.makedirs("/tmp/bert", exist_ok=True)
    with open("/tmp/bert/vocab.txt", "w") as f:
        f.write("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(vocab_file="/tmp/bert/vocab.txt")
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)).save_pretrained("/tmp/bert")
    tokenizer.save_pretrained("/tmp/bert")
    word = models.Transformer("/tmp/bert")
    model = SentenceTransformer(modules=[word, models.Pooling(word.get_word_embedding_dimension())], device="cuda")

    def epoch():
        for n in range(6):
            yield model.encode([f"word{n} word{n + i}" for i in range(8)]).tobytes().hex()[:64]

    return epoch


def diffusion():
    torch = torch_seeded()
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 4, 3, padding=1)).cuda().half().eval()

    def epoch():
        torch_seeded(9)
        x = torch.randn(1, 4, 64, 64, device="cuda", dtype=torch.half)
        with torch.inference_mode():
            for t in range(12):
                x = x - 0.1 * net(x) + 0.01 * torch.randn_like(x)
                yield x.float().sum().item()

    return epoch


def compiled(mode):
    torch = torch_seeded()
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda().eval()
    run = torch.compile(model, mode=mode)

    def epoch():
        x = torch.ones(32, 256, device="cuda")
        with torch.inference_mode():
            for _ in range(10):
                x = torch.nn.functional.normalize(run(x).clone())
                yield x.sum().item()

    return epoch


def torchrun():
    """A launcher, and a rank that it starts. Where NCCL and the store keep connections, and what CRIU does not take (io_uring), is said in the environment."""
    if "RANK" in os.environ:
        return one_rank()
    settings = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "UV_USE_IO_URING": "0", "USE_LIBUV": "0"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=gpu"]
    os.execve(sys.executable, launcher + sys.argv, os.environ | settings)


def one_rank():
    torch = torch_seeded()
    import torch.distributed as dist

    store = None if "RANK" in os.environ else dist.HashStore()
    numbers = {} if store is None else {"rank": 0, "world_size": 1}
    dist.init_process_group("nccl", store=store, device_id=torch.device("cuda:0"), **numbers)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(128, 128).cuda())

    def epoch():
        torch_seeded()
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.01)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(10):
            loss = model(torch.full((16, 128), float(i), device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dist.all_reduce(total := loss.detach().clone())
            yield total.item()

    return epoch


def consumer(queue, results):
    import torch

    torch.zeros(1, device="cuda")
    while True:
        tensor = queue.get()
        results.put(tensor.double().sum().item())
        del tensor


def shared_tensors():
    torch = torch_seeded()
    mp = torch.multiprocessing.get_context("spawn")
    queue, results = mp.Queue(), mp.Queue()
    mp.Process(target=consumer, args=(queue, results), daemon=True).start()

    def epoch():
        for i in range(6):
            tensor = torch.full((1 << 20,), i + 0.5, device="cuda")
            queue.put(tensor)
            yield results.get(timeout=60)

    return epoch


def jax_training():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(w, x, y):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
        return w - 0.1 * grad, loss

    def epoch():
        key = jax.random.PRNGKey(0)
        x = jax.random.normal(key, (256, 128))
        w, y = jnp.zeros((128, 1)), x.sum(1, keepdims=True)
        for _ in range(12):
            w, loss = step(w, x, y)
            yield float(loss)

    return epoch


def numpyro_sampling():
    import jax
    import numpyro
    import numpyro.distributions as d
    from numpyro.infer import MCMC, NUTS

    def model(y):
        mean = numpyro.sample("mean", d.Normal(0, 5))
        numpyro.sample("y", d.Normal(mean, 1), obs=y)

    y = jax.numpy.arange(20.0)
    sampler = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)

    def epoch():
        sampler.run(jax.random.PRNGKey(2), y)
        yield str(sampler.get_samples()["mean"].tolist())

    return epoch


def cupy_functions():
    import cupy

    def epoch():
        rng = cupy.random.RandomState(1)
        x = rng.rand(512, 512)
        for _ in range(8):
            x = cupy.linalg.solve(x + 512 * cupy.eye(512), x) + cupy.fft.ifft2(cupy.fft.fft2(x)).real
            yield float(x.sum())

    return epoch


def gaussian_process():
    torch = torch_seeded()
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def epoch():
        torch_seeded()
        x = torch.linspace(0, 1, 100, device="cuda")
        y = torch.sin(x * 6)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
        model = Model(x, y, likelihood).cuda().train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        for _ in range(6):
            optimizer.zero_grad()
            loss = -marginal(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()

    return epoch


def bayesian_optimisation():
    torch = torch_seeded()
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf

    def epoch():
        torch_seeded()
        x = torch.rand(12, 2, device="cuda", dtype=torch.double)
        y = -(x - 0.5).square().sum(1, keepdim=True)
        model = SingleTaskGP(x, y)
        best, _ = optimize_acqf(LogExpectedImprovement(model, y.max()), torch.tensor([[0.0, 0.0], [1.0, 1.0]], device="cuda", dtype=torch.double), q=1, num_restarts=2, raw_samples=16)
        yield str([round(v, 6) for v in best.flatten().tolist()])

    return epoch


def geometric():
    torch = torch_seeded()
    from torch_geometric.nn import GCNConv

    def epoch():
        torch_seeded()
        edges = torch.stack([torch.arange(200), (torch.arange(200) + 1) % 200]).cuda()
        x = torch.eye(200, device="cuda")
        net = GCNConv(200, 16).cuda()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(8):
            optimizer.zero_grad()
            loss = net(x, edges).square().mean()
            loss.backward()
            optimizer.step()
            yield round(loss.item(), 6)  # its sums over edges are by atomic additions

    return epoch


def onnx_beside():
    torch = torch_seeded()
    import numpy
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])], [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnxruntime.disable_telemetry_events()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def epoch():
        x = torch.ones(4, 4, device="cuda")
        for _ in range(8):
            y = session.run(None, {"x": x.cpu().numpy().astype(numpy.float32)})[0]
            x = torch.from_numpy(y).cuda() * 0.75
            yield x.sum().item()

    return epoch


def square(x):
    return x * x


def pools():
    """os.fork, a pool of processes, threads, and a shell pipeline, beside CUDA in the parent."""
    torch = torch_seeded()
    import multiprocessing
    import subprocess

    x = torch.ones(1 << 20, device="cuda")
    pool = multiprocessing.get_context("fork").Pool(4)
    sleeper = subprocess.Popen("while true; do sleep 0.2; done | cat", shell=True)
    child = os.fork()
    if child == 0:
        import time

        while True:
            time.sleep(0.05)

    def epoch():
        for i in range(8):
            assert os.waitpid(child, os.WNOHANG) == (0, 0) and sleeper.poll() is None
            text = subprocess.run("echo 1 2 3 | tr ' ' '\\n' | wc -l", shell=True, capture_output=True, text=True, check=True).stdout.strip()
            yield f"{sum(pool.map(square, range(50)))} {text} {(x * i).sum().item()}"

    return epoch


def two_programs():
    """A supervisor with two different GPU programs, which share nothing."""
    import subprocess

    ends = {name: subprocess.Popen([sys.executable, __file__, name], env=os.environ | {"WORK": work(name)}) for name in ("diffusion", "cupy")}

    def ask(name, question):
        import json
        import time

        directory = work(name)
        ask.seq += 1
        with open(f"{directory}/ask-0.new", "w") as f:
            f.write(f"{ask.seq} {question}\n")
        os.rename(f"{directory}/ask-0.new", f"{directory}/ask-0")
        for _ in range(6000):
            assert ends[name].poll() is None, f"{name} has ended"
            try:
                with open(f"{directory}/answer-0") as f:
                    a = json.load(f)
                if a["seq"] == ask.seq:
                    return a
            except FileNotFoundError:
                pass
            time.sleep(0.01)
        raise TimeoutError(name)

    ask.seq = 0

    def epoch():
        for name in ends:
            while not os.path.exists(f"{work(name)}/answer-0"):
                assert ends[name].poll() is None
        for name in ends:
            a = ask(name, "check")
            assert a["ok"], a
            yield "ok"

    return epoch


def work(name):
    directory = f"/tmp/work-{name}"
    os.makedirs(directory, exist_ok=True)
    return directory


def web_server():
    """Workers of a web server that serve a model: the first process forks them before CUDA, each has a context of its own. The client keeps its connections."""
    import json
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    clients = []
    for _ in range(2):
        if os.fork() == 0:
            torch = torch_seeded()
            model = torch.nn.Linear(64, 64).cuda().eval()
            connection, _ = server.accept()
            while True:
                value = json.loads(connection.recv(1000))
                with torch.inference_mode():
                    connection.sendall(json.dumps(model(torch.full((1, 64), float(value), device="cuda")).sum().item()).encode())
        clients.append(socket.create_connection(server.getsockname()))
        clients[-1].sendall(b"0")
        clients[-1].recv(1000)

    def epoch():
        for i in range(6):
            for s in clients:
                s.sendall(json.dumps(i).encode())
                yield s.recv(1000).decode()

    return epoch


def timm_training():
    torch = torch_seeded()
    import timm
    import timm.optim

    data = torch.utils.data.DataLoader(Pictures(), 8, num_workers=WORKERS, pin_memory=True)

    def epoch():
        torch_seeded()
        model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, drop_path_rate=0.1).cuda().train()
        optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
        for x, y in data:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    return epoch


def lora():
    torch = torch_seeded()
    import peft

    def epoch():
        torch_seeded()
        config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
        model = peft.get_peft_model(gpt2(), config).cuda().train()
        optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
        for i in range(8):
            ids = torch.stack([Sentences()[i * 8 + n]["input_ids"] for n in range(8)]).cuda()
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    return epoch


def flax_training():
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.relu(nn.LayerNorm()(nn.Dense(128)(x))))

    model, optimizer = Model(), optax.adam(1e-3)

    @jax.jit
    def step(parameters, state, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((model.apply(p, x) - y) ** 2))(parameters)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(parameters, updates), state, loss

    def epoch():
        x = jax.random.normal(jax.random.PRNGKey(0), (256, 64))
        parameters = model.init(jax.random.PRNGKey(1), x)
        state, y = optimizer.init(parameters), x.sum(1, keepdims=True)
        for _ in range(12):
            parameters, state, loss = step(parameters, state, x, y)
            yield float(loss)

    return epoch


def equinox_training():
    import equinox
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adamw(1e-3)

    @equinox.filter_jit
    def step(model, state, x, y):
        loss, grads = equinox.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2))(model)
        updates, state = optimizer.update(grads, state, equinox.filter(model, equinox.is_array))
        return equinox.apply_updates(model, updates), state, loss

    def epoch():
        x = jax.random.normal(jax.random.PRNGKey(3), (256, 32))
        model = equinox.nn.MLP(32, 1, 128, 2, key=jax.random.PRNGKey(4))
        state, y = optimizer.init(equinox.filter(model, equinox.is_array)), x.prod(1, keepdims=True)
        for _ in range(12):
            model, state, loss = step(model, state, x, y)
            yield float(loss)

    return epoch


def numba_kernels():
    import numpy

    from numba_advance import advance, cuda

    @cuda.jit
    def total(x, out):
        part = cuda.shared.array(256, numpy.int64)
        t = cuda.threadIdx.x
        part[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        half = 128
        while half > 0:
            if t < half:
                part[t] += part[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            cuda.atomic.add(out, 0, part[0])

    def epoch():
        x = cuda.to_device(numpy.arange(1 << 18, dtype=numpy.int64))
        pinned = cuda.pinned_array(1, dtype=numpy.int64)
        for i in range(10):
            advance[x.size // 256, 256](x, 5 + i)
            out = cuda.to_device(numpy.zeros(1, dtype=numpy.int64))
            total[x.size // 256, 256](x, out)
            out.copy_to_host(pinned)
            yield int(pinned[0])

    return epoch


def opencv_beside():
    torch = torch_seeded()
    import cv2
    import numpy

    cv2.setNumThreads(4)

    def epoch():
        picture = (numpy.indices((256, 256, 3)).sum(0) % 256).astype(numpy.uint8)
        for i in range(8):
            picture = cv2.GaussianBlur(cv2.warpAffine(picture, cv2.getRotationMatrix2D((128, 128), 10 + i, 1.0), (256, 256)), (5, 5), 0)
            _, packed = cv2.imencode(".png", picture)
            x = torch.from_numpy(cv2.imdecode(packed, cv2.IMREAD_COLOR)).cuda().float()
            picture = (x * 0.9 + 7).clamp(0, 255).byte().cpu().numpy()
            yield int(picture.sum(dtype=numpy.int64))

    return epoch


def kernel():
    """As a Jupyter kernel: a process with a TCP socket and a thread for each channel, whose cells use PyTorch. The notebook's end is another process, which keeps its connections."""
    import json
    import socket
    import subprocess

    channels = ("shell", "iopub", "stdin", "control", "heartbeat")
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in channels]
    ports = [str(s.getsockname()[1]) for s in servers]
    for s in servers:
        s.close()
    subprocess.Popen([sys.executable, __file__, "--kernel", *ports])
    clients = {name: connected(int(port)).makefile("rw") for name, port in zip(channels, ports)}

    def ask(channel, **message):
        clients[channel].write(json.dumps(message) + "\n")
        clients[channel].flush()
        return json.loads(clients[channel].readline())

    ask("shell", code="import torch; x = torch.arange(1 << 16, device='cuda', dtype=torch.float64)")

    def epoch():
        for i in range(6):
            assert ask("heartbeat", beat=i) == {"beat": i} and ask("control", beat=i) == {"beat": i}
            assert ask("shell", code=f"y = (x * {i}).sin().sum().item(); print(y)")["status"] == "ok"
            yield json.loads(clients["iopub"].readline())["text"]

    return epoch


def connected(port):
    import socket
    import time

    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError(port)


def kernel_process(ports):
    import contextlib
    import io
    import json
    import socket
    import threading

    servers = [socket.create_server(("127.0.0.1", int(port))) for port in ports]
    shell, iopub, stdin, *echoes = [s.accept()[0].makefile("rw") for s in servers]

    def echo(channel):
        for line in channel:
            channel.write(line)
            channel.flush()

    for channel in echoes:
        threading.Thread(target=echo, args=(channel,), daemon=True).start()
    names = {}
    for line in shell:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(json.loads(line)["code"], names)
        if out.getvalue():
            iopub.write(json.dumps({"text": out.getvalue()}) + "\n")
            iopub.flush()
        shell.write(json.dumps({"status": "ok"}) + "\n")
        shell.flush()


def expandable():
    """PyTorch maps its memory by itself (cuMemCreate, cuMemMap), as long-running training is advised to."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    torch = torch_seeded()

    def epoch():
        torch_seeded()
        model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for i in range(10):
            x = torch.randn(256 * (i % 3 + 1), 512, device="cuda")
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()
        del model, optimizer, x, loss
        torch.cuda.empty_cache()

    return epoch


PROGRAMS = {
    "loader-fork": lambda: loader("fork", False),
    "loader-persistent": lambda: loader("fork", True),
    "loader-forkserver": lambda: loader("forkserver", True),
    "loader-spawn": lambda: loader("spawn", True),
    "trainer": trainer,
    "generate": generate,
    "accelerate": accelerated,
    "lightning": lightning,
    "sentences": sentences,
    "diffusion": diffusion,
    "compile": lambda: compiled("default"),
    "compile-overhead": lambda: compiled("reduce-overhead"),
    "compile-autotune": lambda: compiled("max-autotune"),
    "one-rank": one_rank,
    "torchrun": torchrun,
    "tensor-queue": shared_tensors,
    "jax-training": jax_training,
    "numpyro": numpyro_sampling,
    "cupy": cupy_functions,
    "gpytorch": gaussian_process,
    "botorch": bayesian_optimisation,
    "geometric": geometric,
    "onnx": onnx_beside,
    "pools": pools,
    "two-programs": two_programs,
    "web-server": web_server,
    "timm": timm_training,
    "lora": lora,
    "flax": flax_training,
    "equinox": equinox_training,
    "numba": numba_kernels,
    "opencv": opencv_beside,
    "kernel": kernel,
    "expandable": expandable,
}


class Run:
    def __init__(self, epoch):
        self.epoch, self.first, self.now, self.epochs, self.steps, self.wrong = epoch, [], iter(epoch()), 0, 0, ""
        self.seen = 0

    def tick(self):
        try:
            value = next(self.now)
        except StopIteration:
            if self.epochs and self.seen != len(self.first):
                self.wrong = f"epoch {self.epochs} had {self.seen} steps, the first {len(self.first)}"
            self.epochs, self.seen, self.now = self.epochs + 1, 0, iter(self.epoch())
            return
        if self.epochs == 0:
            self.first.append(value)
        elif self.seen >= len(self.first) or value != self.first[self.seen]:
            self.wrong = self.wrong or f"step {self.seen} of epoch {self.epochs}: {value}, in the first {self.first[self.seen:self.seen + 1]}"
        self.seen += 1
        self.steps += 1

    def whole(self):
        """Reports after a further whole epoch."""
        before = self.epochs
        while self.epochs < before + 2 and not self.wrong:
            self.tick()
        return not self.wrong, {"steps": self.steps, "epochs": self.epochs, "error": self.wrong}


def main():
    if sys.argv[1] == "--list":
        print("\n".join(PROGRAMS))
        return
    if sys.argv[1] == "--kernel":
        return kernel_process(sys.argv[2:])
    run = Run(PROGRAMS[sys.argv[1]]())
    while run.epochs < 1:
        run.tick()
    if len(sys.argv) > 2:
        ok, state = True, {}
        while ok and run.steps < int(sys.argv[2]):
            ok, state = run.whole()
        print(sys.argv[1], ok, state, flush=True)
        os._exit(not ok)
    from ask import Desk

    Desk().serve({"check": run.whole}, run.tick, pause=0.02)


if __name__ == "__main__":
    main()
