"""Training steps of a Llama on two processes: tensor parallel MLPs (DTensor), FSDP2 by blocks and whole, DDP, and a
collective inside of a graph; eager, torch.compile and jit on the same machine, in one run.

A step is the forward, the loss and the backward. Each row prints its milliseconds, the ratio to eager's, the loss and
the norm of the gradient, which have to be eager's. NCCL where there is a GPU for each process, gloo on the CPU
otherwise. Started by itself (two processes) or by torchrun.
"""

from __future__ import annotations

import os
import socket
import statistics
import time

import _harness as harness
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import multiprocessing, nn

SHAPES = {"cuda": (8, 1024, 2816, 16, 32000, 4, 512), "cpu": (2, 64, 128, 4, 128, 2, 16)}


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        b, n, width = x.shape
        q, k, v = (p(x).view(b, n, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(_turned(q, cos, sin), _turned(k, cos, sin), v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, n, width))


def _turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class MLP(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int):
        super().__init__()
        self.attention, self.mlp = Attention(width, heads), MLP(width, inner)
        self.before, self.behind = Norm(width), Norm(width)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.mlp(self.behind(x))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, inner: int, heads: int, words: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        self.norm, self.logits = Norm(width), nn.Linear(width, words, bias=False)
        head = width // heads
        turns = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.logits(self.norm(x))


def loss_of(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def fresh(place) -> tuple:
    """The same model and the same tokens in each process, but for the data of each."""
    layers, width, inner, heads, words, batch, length = SHAPES[place.type]
    torch.manual_seed(0)
    model = Llama(layers, width, inner, heads, words, length)
    for p in model.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=p.shape[1] ** -0.5)
    model = model.to(place, torch.bfloat16 if place.type == "cuda" else torch.float32)
    generator = torch.Generator().manual_seed(1)
    return model, torch.randint(words, (batch, length), generator=generator).to(place)


def mesh_of(place):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(place.type, (dist.get_world_size(),))


def plain_step(compile_, model):
    compiled = compile_(model)
    return lambda tokens: loss_of(compiled(tokens), tokens)


def tensor_parallel(compile_, model, place):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh_of(place)
    for layer in model.layers:
        parallelize_module(layer.mlp, mesh, {"gate": ColwiseParallel(), "up": ColwiseParallel(),
                                             "down": RowwiseParallel()})
    return plain_step(compile_, model)


def fsdp_blocks(compile_, model, place):
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(place)
    for k, layer in enumerate(model.layers):
        model.layers[k] = compile_(layer)
        fully_shard(model.layers[k], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return lambda tokens: loss_of(model(tokens), tokens)


def fsdp_whole(compile_, model, place):
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(place)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return plain_step(compile_, model)


def ddp(compile_, model, place):
    wrapped = nn.parallel.DistributedDataParallel(compile_(model),
                                                  device_ids=[place.index] if place.type == "cuda" else None)
    return lambda tokens: loss_of(wrapped(tokens), tokens)


def collective(compile_, model, place):
    @compile_
    def step(tokens):
        loss = loss_of(model(tokens), tokens)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        return loss, shown / dist.get_world_size()

    return lambda tokens: step(tokens)[0]


ROWS = {"tensor parallel MLPs": tensor_parallel, "FSDP2 by blocks": fsdp_blocks, "FSDP2 whole": fsdp_whole,
        "DDP": ddp, "all_reduce in a graph": collective}


def _compiler(name: str):
    return (lambda program: program) if name == "eager" else lambda program: harness.wrap(name, program)


def _norm(model) -> float:
    """Of all gradients, whole."""
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            g = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            total += float(g.double().square().sum())
    return total ** 0.5


def measured(name: str, make, place, seconds: float) -> dict:
    """Milliseconds a step, and what it gives."""
    model, tokens = fresh(place)
    step = make(_compiler(name), model, place)

    def once():
        model.zero_grad(set_to_none=True)
        loss = step(tokens)
        loss.backward()
        return loss

    begin = time.perf_counter()
    loss = once()
    harness.sync(place.type)
    first = time.perf_counter() - begin
    for _ in range(4):
        loss = once()
    figures = {"compiler": name, "first_s": round(first, 2), "loss": float(loss.detach()), "gradient": _norm(model)}
    harness.sync(place.type)
    dist.barrier()
    # All processes do the same number of steps.
    begin = time.perf_counter()
    once()
    harness.sync(place.type)
    rounds = torch.tensor([min(200, max(5, int(seconds / (time.perf_counter() - begin))))], device=place)
    dist.broadcast(rounds, 0)
    samples = []
    for _ in range(int(rounds)):
        begin = time.perf_counter()
        once()
        harness.sync(place.type)
        samples.append(time.perf_counter() - begin)
    return {**figures, "ms": round(statistics.median(samples) * 1e3, 2)}


def worker(rank: int, world: int, port: int, args, names: list[str], rows: list[str]) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(port))
    place = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    elif args.threads:
        torch.set_num_threads(args.threads)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", rank=rank, world_size=world)
    found = []
    for row in rows:
        eager = None
        for name in names:
            try:
                figures = {"row": row, **measured(name, ROWS[row], place, args.seconds)}
            except Exception as problem:
                figures = {"row": row, "compiler": name, "error": f"{type(problem).__name__}: {problem}"[:200]}
            finally:
                if "torch.compile" in name:
                    torch._dynamo.reset()
            if name == "eager":
                eager = figures.get("ms")
            if eager and "ms" in figures:
                figures["of_eager"] = round(figures["ms"] / eager, 3)
            found.append(figures)
            if rank == 0:
                print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else str(v) if k in ("row", "compiler")
                                else f"{k} {v}" for k, v in figures.items()), flush=True)
    if rank == 0:
        harness.save(args, found)
    dist.destroy_process_group()


def main() -> None:
    p = harness.parser(__doc__, seconds=2.0)
    p.add_argument("--rows", default="", help="comma-separated parts of the names of rows: " + "; ".join(ROWS))
    p.add_argument("--processes", type=int, default=2)
    args = p.parse_args()
    world = int(os.environ.get("WORLD_SIZE", args.processes))
    if args.device is None:
        args.device = "cuda" if torch.cuda.device_count() >= world else "cpu"
    names = harness.start(args)
    wanted = [w.strip().lower() for w in args.rows.split(",") if w.strip()]
    rows = [row for row in ROWS if not wanted or any(w in row.lower() for w in wanted)]
    if "RANK" in os.environ:
        worker(int(os.environ["RANK"]), world, 0, args, names, rows)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(worker, (world, port, args, names, rows), nprocs=world)


if __name__ == "__main__":
    main()
