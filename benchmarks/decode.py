"""Decoding with a static cache: one token after the other from a model of Llama-1B's shape with random weights, batch
1, bfloat16, where each token reads all weights and the GPU waits for the host.

Each compiler runs the whole step (embedding, layers, logits, the next token's choice) as one function; the chosen token
is the next step's input. Prints tokens per second, and the share of the rate at which the memory can give the weights.
With transformers installed, its own ``generate`` with a static cache is measured too.
"""

from __future__ import annotations

import time

import _harness as harness
import torch
import torch.nn.functional as F
from _compare import difference, table
from torch import nn


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotated(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    """Grouped queries over a cache (1, kv heads, length, head width) that is written in place."""

    def __init__(self, width: int, heads: int, kv_heads: int, length: int):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.head, bias=False) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, kv_heads, length, self.head), persistent=False)

    def forward(self, x, at, cos, sin, mask):
        n = x.shape[1]
        q, k, v = (p(x).view(1, n, -1, self.head).transpose(1, 2) for p in (self.q, self.k, self.v))
        self.keys.index_copy_(2, at, rotated(k, cos, sin))
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(rotated(q, cos, sin), self.keys, self.values, attn_mask=mask,
                                           enable_gqa=self.heads != self.kv_heads)
        return self.o(y.transpose(1, 2).reshape(1, n, -1))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, kv_heads: int, length: int):
        super().__init__()
        self.attention, self.before, self.behind = (Attention(width, heads, kv_heads, length), Norm(width),
                                                    Norm(width))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, *place):
        x = x + self.attention(self.before(x), *place)
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Llama's architecture: token (1, n) int64 at positions ``at`` (n,) -> logits (1, n, vocabulary)."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, kv_heads: int, words: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, inner, heads, kv_heads, length) for _ in range(layers))
        self.norm, self.logits = Norm(width), nn.Linear(width, words, bias=False)
        turns = 5e5 ** (-torch.arange(0, width // heads, 2) / (width // heads))
        self.register_buffer("turns", turns.repeat(2), persistent=False)
        self.register_buffer("places", torch.arange(length), persistent=False)

    def forward(self, token, at):
        angle = at[:, None].float() * self.turns.float()
        x = self.embedding(token)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        mask = self.places <= at[:, None]
        for layer in self.layers:
            x = layer(x, at, cos, sin, mask)
        return self.logits(self.norm(x))

    def clear(self):
        for layer in self.layers:
            layer.attention.keys.zero_()
            layer.attention.values.zero_()

    @property
    def bytes_read(self) -> int:
        """Of weights, for one token."""
        return sum(p.numel() * p.element_size() for p in self.parameters()) - self.embedding.weight.nbytes


def decoding(model: Decoder):
    def step(token, at):
        """token (1, 1), at (1,): writes the next ones into both, and gives the logits."""
        logits = model(token, at)
        token.copy_(logits[:, -1].argmax(-1, keepdim=True))
        at.add_(1)
        return logits

    return step


def run(step, model, tokens: int, start: int) -> tuple[float, list]:
    """(seconds for so many tokens, the tokens)."""
    model.clear()
    device = model.logits.weight.device
    token, at = (torch.full(shape, value, device=device) for shape, value in (((1, 1), start), ((1,), 0)))
    harness.sync(device.type)
    begin = time.perf_counter()
    chosen = []
    for _ in range(tokens):
        step(token, at)
        chosen.append(token.clone())
    harness.sync(device.type)
    return time.perf_counter() - begin, [int(t) for t in chosen]


def followed(step, model, tokens: list, start: int) -> torch.Tensor:
    """The logits of each step at the same tokens, whatever a step would choose: of equal logits any may be chosen."""
    model.clear()
    device = model.logits.weight.device
    token, at = (torch.full(shape, value, device=device) for shape, value in (((1, 1), start), ((1,), 0)))
    found = []
    for following in tokens:
        found.append(step(token, at).clone())
        token.fill_(following)
    return torch.cat(found)


def copy_rate(device: str) -> float:
    """Bytes per second that are read by a sum over much more memory than the caches hold."""
    n = 1 << (30 if device == "cuda" else 26)
    x = torch.ones(n // 4, device=device)
    seconds = harness.interleaved({"read": lambda: x.sum()}, device, 0.2)["read"]
    return n / seconds


def own_rows(names, args) -> list:
    shape = ((16, 2048, 8192, 32, 8, 128256) if args.device == "cuda" else (2, 128, 256, 4, 2, 1000))
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    with torch.device(args.device):
        model = Decoder(*shape, args.length).to(dtype)
    for p in model.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=p.shape[1] ** -0.5)
    limit = copy_rate(args.device) / model.bytes_read
    print(f"weights read per token: {model.bytes_read / 1e9:.2f} GB; the memory's limit: {limit:.0f} tokens/s",
          flush=True)
    rows, reference = [], None
    for name in names:
        step = harness.wrap(name, decoding(model)) if name != "eager" else decoding(model)
        try:
            for _ in range(2):
                run(step, model, 8, 1)
            if reference is None:
                tokens = run(step, model, 8, 1)[1]
                reference = tokens, followed(step, model, tokens, 1)
            best, error = float("inf"), difference(followed(step, model, reference[0], 1), reference[1])[1]
            for _ in range(args.rounds):
                best = min(best, run(step, model, args.tokens, 1)[0] / args.tokens)
        except Exception as problem:
            rows.append({"compiler": name, "error": f"{type(problem).__name__}: {problem}".splitlines()[0][:90]})
            continue
        rows.append({"compiler": name, "tokens_per_s": round(1 / best, 1), "of_limit": round(1 / best / limit, 3),
                     "difference": error})
        print(rows[-1], flush=True)
    return rows


def generate_rows(names, args) -> list:
    """``generate`` of transformers with a static cache, which compiles its own forward for torch.compile."""
    try:
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    except ImportError:
        return []
    config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=128256, max_position_embeddings=4096)
    with torch.device(args.device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    prompt = torch.ones((1, 8), dtype=torch.int64, device=args.device)
    settings = GenerationConfig(max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False,
                                cache_implementation="static", disable_compile=True, pad_token_id=0)
    plain, rows = model.forward, []
    for name in names:
        model.forward = plain if name == "eager" else harness.wrap(name, plain)
        try:
            seconds = float("inf")
            for k in range(3):
                harness.sync(args.device)
                begin = time.perf_counter()
                model.generate(prompt, generation_config=settings, attention_mask=torch.ones_like(prompt))
                harness.sync(args.device)
                seconds = min(seconds, time.perf_counter() - begin) if k else seconds
        except Exception as problem:
            rows.append({"compiler": name, "error": f"{type(problem).__name__}: {problem}".splitlines()[0][:90]})
            continue
        rows.append({"compiler": name, "tokens_per_s": round(args.tokens / seconds, 1)})
        print("generate", rows[-1], flush=True)
    return rows


def main():
    p = harness.parser(__doc__, seconds=None)
    p.set_defaults(compilers="eager,torch.compile,torch.compile:reduce-overhead,jit,jit:reduce-overhead")
    p.add_argument("--tokens", type=int, default=128, help="tokens of a timed run (default 128)")
    p.add_argument("--length", type=int, default=256, help="places in the cache (default 256)")
    p.add_argument("--rounds", type=int, default=3, help="timed runs, of which the best counts (default 3)")
    p.add_argument("--generate", action="store_true", help="measure the generate of transformers too")
    args = p.parse_args()
    names = harness.start(args)
    with torch.no_grad():
        rows = own_rows(names, args)
        again = generate_rows(names, args) if args.generate else []
    columns = ["compiler", "tokens_per_s", "of_limit", "difference", "error"]
    for title, found in (("static cache", rows), ("transformers' generate, static cache", again)):
        if found:
            print(title)
            print(table(columns, [[str(r.get(c, "")) for c in columns] for r in found]))
    harness.save(args, rows + again)
    raise SystemExit(any("error" in r and r["compiler"].startswith("jit") for r in rows))


if __name__ == "__main__":
    main()
