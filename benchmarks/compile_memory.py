"""What compiling leaves in the memory of the host: bytes per entry by kind, and the resident memory of the process.

Each figure is from a process of its own. Before anything is measured, another program was compiled with gradients, so
that no module is loaded meanwhile. "kept" is the resident memory after compiling and a garbage collection less that
after an eager call; libraries that are loaded meanwhile, such as kernels, are part of it. "entry" is what a walk over
all that Python's garbage collector knows reaches from the entries and what was not there before, in KB, and its kinds;
"rest" what is there besides: caches of the compiler.
"""

from __future__ import annotations

import gc
import os
import sys
import types
from collections import defaultdict

import _harness as harness
import _zoo
from _compare import table

SMALL = ("layers4", "layers12", "mlp8")
# Which kind an object is of, by the module of its class; one of no such module is of the kind of what refers to it.
KINDS = {"jit.graph": "graphs", "jit.frame.source": "guards", "jit.runtime.facts": "guards", "jit.frame": "capture",
         "jit.runtime": "plans", "jit.codegen": "kernels", "jit.second": "graphs"}
NATIVE = {"GuardProgram": "guards", "Plan": "plans", "Entry": "entries"}


def build(name: str, device: str):
    """(module or function, positional arguments, keyword arguments)."""
    import torch

    torch.manual_seed(0)
    if name == "mlp8":
        parts = [m for _ in range(8) for m in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())]
        return torch.nn.Sequential(*parts).to(device), (torch.randn(16, 64, device=device),), {}
    if name.startswith("layers"):
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        return (torch.nn.TransformerEncoder(layer, int(name[6:])).to(device).train(),
                (torch.randn(2, 16, 64, device=device),), {})
    return _zoo.build(name, device, torch.float32, small=True)


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kind_of(obj: object, inherited: str) -> str:
    cls = type(obj)
    if isinstance(obj, (types.FunctionType, types.CodeType, types.CellType)):
        return "code" if isinstance(obj, types.CodeType) else inherited
    if cls.__name__ in NATIVE and not cls.__module__.startswith("jit"):
        return NATIVE[cls.__name__]
    module = cls.__module__
    if cls.__name__ in NATIVE and "native" in module:
        return NATIVE[cls.__name__]
    while module:
        if module in KINDS:
            return KINDS[module]
        module = module.rpartition(".")[0]
    return inherited


def of_the_program(obj: object) -> bool:
    """Modules, classes and tensors: nothing that the compiler has made for an entry."""
    import torch

    return isinstance(obj, (types.ModuleType, type, torch.Tensor, torch.UntypedStorage, torch.nn.Module))


def parts(obj: object) -> list:
    """What an object refers to. The collector does not look into code."""
    if isinstance(obj, types.CodeType):
        return [obj.co_code, obj.co_consts, obj.co_names, obj.co_varnames, obj.co_linetable, obj.co_exceptiontable]
    return gc.get_referents(obj)


def reached(roots: list, new: set[int], seen: set[int]) -> tuple[dict, dict]:
    """kind -> bytes, and class -> (number, bytes), of all that is reached from ``roots``. Objects that the garbage
    collector knows count where they are in ``new``; of the others all that is not in ``seen``, which grows."""
    bytes_of, classes = defaultdict(int), defaultdict(lambda: [0, 0])
    level = [(r, "entries") for r in roots]
    while level:
        following = []
        for obj, inherited in level:
            if id(obj) in seen or of_the_program(obj) or gc.is_tracked(obj) and id(obj) not in new:
                continue
            if not gc.is_tracked(obj) and sys.getrefcount(obj) > 1 << 20:  # immortal
                continue
            seen.add(id(obj))
            kind = kind_of(obj, inherited)
            size = sys.getsizeof(obj)
            bytes_of[kind] += size
            count = classes[f"{type(obj).__module__}.{type(obj).__qualname__} ({kind})"]
            count[0] += 1
            count[1] += size
            following += [(r, kind) for r in parts(obj)]
        level = following
    return dict(bytes_of), dict(classes)


def freeze() -> set[int]:
    """What is there now is not found by ``walk``, which is given the result: ids of code, which the collector does not
    know."""
    gc.unfreeze()
    gc.collect()
    there, todo = set(), [o.__code__ for o in gc.get_objects() if type(o) is types.FunctionType]
    while todo:
        code = todo.pop()
        if id(code) not in there:
            there.add(id(code))
            todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    gc.freeze()
    return there


def walk(dispatchers: list, there: set[int]) -> tuple[list, dict, dict, dict]:
    """Entries, kind -> bytes of them, class -> (number, bytes) of them, class -> (number, bytes) of all else that has
    come since ``freeze``."""
    gc.collect()
    everything = gc.get_objects()
    new = {id(o) for o in everything}
    entries = [e for d in dispatchers for e in d.entries]
    seen = there | {id(everything), id(entries), id(dispatchers)}
    bytes_of, classes = reached(entries, new, seen)
    rest = reached(everything, new, seen)[1]
    gc.unfreeze()
    return entries, bytes_of, classes, rest


def run(compiled, arguments, kwargs, training: bool) -> None:
    import torch

    with torch.set_grad_enabled(training):
        out = compiled(*arguments, **kwargs)
        if training:
            while not isinstance(out, torch.Tensor):
                out = next(iter(out.values() if hasattr(out, "values") else out))
            out.float().sum().backward()


def one(args) -> None:
    import torch

    model, arguments, kwargs = build(args.model, args.device)
    training = args.training
    warm = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).to(args.device)
    run(harness.wrap(args.compiler, warm), (torch.randn(4, 8, device=args.device),), {}, True)
    run(model, arguments, kwargs, training)
    there = freeze()
    before = resident()
    compiled = harness.wrap(args.compiler, model)
    run(compiled, arguments, kwargs, training)
    after = resident()
    gc.collect()
    figures = {"peak_kept": after - before, "kept": resident() - before}
    if args.compiler.startswith("jit"):
        from jit.frame import dispatch

        entries, bytes_of, classes, rest = walk(list(dispatch._dispatchers), there)
        guards = [e.guards for e in entries if e.guards is not None]
        figures.update(entries=len(entries), bytes=bytes_of, rest=sum(b for _, b in rest.values()),
                       accessors=sum(len(g.accessors) for g in guards), checks=sum(len(g.checks) for g in guards),
                       nodes=classes.get("jit.graph.ir.Node (graphs)", [0])[0])
        if args.classes:
            for what, found in ("entries", classes), ("rest", rest):
                print(what)
                for name, (n, size) in sorted(found.items(), key=lambda x: -x[1][1])[:args.classes]:
                    print(f"  {size / 1024:9.1f} KB {n:7d}  {name}")
    harness.result(**figures)


def main():
    parser = harness.parser(__doc__, seconds=None)
    parser.add_argument("--models", default=",".join(SMALL),
                        help=f"comma-separated, of {', '.join((*SMALL, *_zoo.NAMES))}")
    parser.add_argument("--inference", action="store_true", help="without gradients")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--model", help="measure this model here and now, under --compiler")
    parser.add_argument("--compiler", default="jit")
    parser.add_argument("--training", action="store_true", help="with --model: with gradients")
    parser.add_argument("--classes", type=int, default=0, help="with --model: list so many classes of objects")
    args = parser.parse_args()
    if args.model:
        args.device = args.device or "cpu"
        return one(args)
    names = [n for n in harness.start(args) if n != "eager"]
    rows, figures = [], {}
    for model in args.models.split(","):
        found = {}
        for name in names:
            arguments = ["--model", model, "--compiler", name, "--device", args.device]
            arguments += [] if args.inference else ["--training"]
            found[name] = harness.in_subprocess(__file__, arguments, args.timeout)
        figures[model] = found
        ours = found.get("jit") or {}
        kinds = ours.get("bytes", {})
        kept = [(found[n] or {}).get("kept") for n in names]
        ratio = f"{kept[0] / kept[1]:.2f}" if len(kept) == 2 and None not in kept and kept[1] else "-"
        rows.append([model, *("-" if k is None else f"{k / 2**20:.1f}" for k in kept), ratio, ours.get("entries", "-"),
                     f"{sum(kinds.values()) / 1024:.0f}",
                     ", ".join(f"{k} {b / 1024:.0f}" for k, b in sorted(kinds.items(), key=lambda x: -x[1])),
                     f"{ours.get('rest', 0) / 1024:.0f}", ours.get("accessors", "-"), ours.get("checks", "-"),
                     ours.get("nodes", "-")])
    columns = ["model", *(f"{n} kept MB" for n in names), "ratio", "entries", "entry KB", "of that", "rest KB",
               "accessors", "checks", "nodes"]
    print(table(columns, rows))
    harness.save(args, figures)


if __name__ == "__main__":
    main()
