"""Which configurations of a GPU kernel are fastest: what the choices of ``jit/codegen/triton/heuristics.py`` are fitted
to.

Each function of ``_memory_bound.py`` is captured, and each of its kernels is built in many configurations by the
emitter, run on random values, compared with the one that the heuristic chooses, and timed alone with a cold cache. A
line per kernel says what share of a plain copy's rate the choice and the best candidate reach. ``--json`` keeps all
times.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import ctypes
import dataclasses
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import time

import torch

from jit.codegen import loops, planner
from jit.codegen.triton import analysis, emit, heuristics, tiling, worker
from jit.graph import dims

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _memory_bound as programs  # noqa: E402

BEGIN = time.perf_counter()


def passed() -> float:
    return time.perf_counter() - BEGIN


# What a function is made into

def captured(function, arguments, backward: bool) -> list:
    """The loop kernels of a function, and of its gradient, on the device of its arguments."""
    import jit

    found = []

    def record(self) -> None:
        found.extend(self.launches)
        self.code, self.named, self.sources = dict.fromkeys(self.launch_keys, 0), {}, []
        for k, key in zip(self.launches, self.launch_keys):
            self.named[key] = k
        self.options = dataclasses.replace(self.options, target="reference")
        self.code = {key: i for i, key in enumerate(self.named)}
        self.sources = [(k.name, k.text()) for k in self.named.values()]
        self.begun = []

    old = planner.Planner.begin_kernels
    planner.Planner.begin_kernels = record
    try:
        if backward:
            arguments = [a.detach().requires_grad_(a.is_floating_point()) for a in arguments]
            jit.compile(function)(*arguments)
        else:
            with torch.no_grad():
                jit.compile(function)(*arguments)
    except Exception as error:
        if not found:
            print(f"  capture: {type(error).__name__}: {str(error)[:100]}", flush=True)
    finally:
        planner.Planner.begin_kernels = old
    return found


def lengths(kernel: loops.Kernel) -> dict:
    """Elements of each buffer: as far as its accesses reach."""
    found = {b.name: 1 for b in kernel.buffers}
    for s in kernel.body:
        if s.accessed:
            hi = s.index if type(s.index) is int else dims.bounds(s.index)[1]
            found[s.accessed] = max(found[s.accessed], hi + 1)
    return found


def traffic(kernel: loops.Kernel) -> int:
    """Bytes that have to be moved: each buffer once, as far as loops reach it."""
    total, seen = 0, {}
    extent = {a.name: a.extent for a in kernel.axes + kernel.raxes}
    reach = lengths(kernel)
    for s in kernel.body:
        if s.accessed:
            points = 1
            for name in s.symbols & set(extent):
                points *= extent[name]
            seen[s.accessed] = seen.get(s.accessed, 0) + points
    for b in kernel.buffers:
        if b.name in seen:
            total += min(seen[b.name], reach[b.name]) * b.dtype.itemsize * (2 if b.role == "inout" else 1)
    return total


def tensors(kernel: loops.Kernel, device: str) -> list:
    """Random contents for the buffers. Integers are small, so that they are positions of anything."""
    limits = [dims.bounds(s.extent)[0] for s in kernel.body if isinstance(s, loops.Bounded)]
    below = max(1, min([l for l in limits if l is not None] + [100]))
    made, reach = [], lengths(kernel)
    for b in kernel.buffers:
        n = reach[b.name]
        if b.role == "error":
            made.append(torch.zeros(n, dtype=b.dtype, device=device))
        elif b.dtype.is_floating_point and b.dtype.itemsize > 1:
            made.append(torch.empty(n, dtype=b.dtype, device=device).normal_())
        elif b.dtype.is_floating_point:
            made.append(torch.empty(n, dtype=torch.float32, device=device).normal_().to(b.dtype))
        elif b.dtype is torch.bool:
            made.append(torch.rand(n, device=device) < 0.5)
        else:
            made.append(torch.randint(0, below, (n,), dtype=b.dtype, device=device))
    return made


# Candidates

def powers(low: int, high: int) -> list:
    return [1 << k for k in range(low.bit_length() - 1, high.bit_length()) if low <= 1 << k <= high]


def candidates(t: tiling.Tiling, limit: int) -> list:
    """The heuristic's choice first, then others, in an order that is random but the same for the same kernel."""
    base = heuristics.choose(t)
    C = heuristics.Config
    extent = {n: (e if type(e) is int else 4096) for n, e in t.extents.items()}
    nx, ny, nr = (extent.get(n, 1) for n in "xyr")
    p2 = heuristics.next_power_of_two
    found, R = [], dataclasses.replace
    first = [base] + [R(base, evict=e, through=h) for e in (False, True) for h in (False, True)
                      if (e, h) != (base.evict, base.through)]
    policies = ((False, False), (True, False), (True, True))
    if t.kind == "flat":
        for x, w in itertools.product(powers(256, 16384), (1, 2, 4, 8, 16)):
            if 4 <= x // (32 * w) <= 32:
                found.append(C(x=x, warps=w))
    elif t.kind == "strip":
        for x, y, w in itertools.product(powers(128, 8192), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)):
            if x <= p2(nx) and y <= p2(ny) and 8 <= x * y // (32 * w) <= 32 and x * y <= 8192:
                found.append(C(x=x, y=y, warps=w))
    elif t.kind == "tile":
        for x, y, w in itertools.product((32, 64, 128, 256), (32, 64, 128, 256), (1, 2, 4, 8, 16)):
            if x <= p2(nx) and y <= p2(ny) and 8 <= x * y // (32 * w) <= 64:
                found.append(C(x=x, y=y, warps=w))
    elif t.kind == "totals":
        block = p2(max(nr, 2))
        for x, w, stages, (e, h) in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32), (1, 2, 3, 4), policies):
            if x <= nx and 4 <= block * x / (32 * w) <= 64 and block * x <= 16384:
                found.append(C(x=x, r=block, warps=w, stages=stages, evict=e, through=h))
    elif t.kind == "inner":
        block = p2(max(nr, 2))
        scan = analysis.has_scan(t.kernel)
        shift = analysis.odd_row_start(t.kernel) is not None and type(t.extents["r"]) is int
        for x, w, (e, h) in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32), policies):
            if (x == 1 or x * block <= 8192) and 4 <= block * x / (32 * w) <= 128 and block <= 131072:
                found.append(C(x=x, r=block, warps=w, evict=e, through=h))
                if block >= 4096 and not scan and analysis.held_bytes(t.kernel):
                    found.append(C(x=x, r=block, warps=w, recompute=True, evict=e, through=h))
                    if shift and x == 1 and nr + 7 <= block:
                        found.append(C(x=x, r=block, warps=w, recompute=True, shift=True, evict=e, through=h))
        if nr >= 1024:
            pieces = analysis.pieces_allowed(t.kernel)
            for x, r, w, stages, evict in itertools.product((1, 2, 4, 8), powers(256, 32768), (1, 2, 4, 8, 16, 32),
                                                            (1, 2, 3, 4), (False, True)):
                if r <= block and 8 <= x * r // (32 * w) <= 64 and (x == 1 or x * r <= 8192):
                    for parts in {1, max(1, r // (w * 256))} if pieces and x == 1 else {1}:
                        c = C(x=x, r=r, looped=True, parts=parts, warps=w, stages=stages, evict=evict)
                        found.append(c)
                        if shift and x == 1 and r >= 4096:
                            found.append(R(c, shift=True))
    elif t.kind == "outer":
        for x, r, w, stages, evict in ((128, 64, 2, 3, False), (512, 8, 2, 1, True), (128, 32, 4, 4, False),
                                       (64, 8, 1, 4, True), (32, 64, 1, 3, False), (64, 64, 1, 3, False)):
            if x <= p2(nx) and r <= p2(nr):  # that have been good for some
                first.append(C(x=x, r=r, looped=True, warps=w, stages=stages, evict=evict))
        for x, r, w, stages, evict in itertools.product((8, 16, 32, 64, 128, 256, 512, 1024),
                                                        (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16),
                                                        (1, 2, 3, 4), (False, True)):
            if x <= p2(nx) and r <= p2(nr) and 8 <= x * r // (32 * w) <= 64:
                found.append(C(x=x, r=r, looped=True, warps=w, stages=stages, evict=evict))
        for x, w, parts, more, evict in itertools.product((32, 64, 128, 256, 512, 1024), (1, 2, 4, 8, 16),
                                                          (2, 4, 8, 16), (1, 2), (False, True)):
            together = 32 * w * 8 * more // x
            if x <= p2(nx) and 1 <= together and together * parts <= p2(nr) and analysis.pieces_allowed(t.kernel):
                found.append(C(x=x, r=together * parts, parts=parts, looped=True, warps=w, evict=evict))
        for x, w, (e, h) in itertools.product((4, 8, 16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16), policies):
            if x <= p2(nx) and 4 <= x * p2(nr) // (32 * w) <= 128 and x * p2(nr) <= 65536:
                found += [C(x=x, r=p2(nr), warps=w, evict=e, through=h)] * 2
    first = list(dict.fromkeys(first))
    taken = set(first)
    found = [c for c in dict.fromkeys(found) if c not in taken]
    random.Random(t.kind + str(nr)).shuffle(found)
    near = sorted(found, key=lambda c: distance(c, base))[:limit // 3]
    first += near + [c for c in found if c not in near]
    return first[:limit]


def distance(a: heuristics.Config, b: heuristics.Config) -> float:
    """How far two configurations are from each other, in steps of their settings."""
    steps = sum(abs(getattr(a, n).bit_length() - getattr(b, n).bit_length()) for n in ("x", "y", "r", "parts", "warps"))
    return steps + 2 * (a.looped != b.looped) + (a.recompute != b.recompute) + 0.5 * abs(a.stages - b.stages)


# Running

def launcher(result: dict, arguments: list, grid: int):
    d = driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(d.cuModuleLoadData(ctypes.byref(module), result["cubin"]))
    check(d.cuModuleGetFunction(ctypes.byref(function), module, result["function"].encode()))
    if result["shared"] > 48 * 1024:
        check(d.cuFuncSetAttribute(function, 8, result["shared"]))
    values = [ctypes.c_void_p(a.data_ptr()) for a in arguments] + [ctypes.c_void_p(0)] * 2
    array = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    spills, registers = ctypes.c_int(), ctypes.c_int()
    d.cuFuncGetAttribute(ctypes.byref(spills), 3, function)
    d.cuFuncGetAttribute(ctypes.byref(registers), 4, function)

    def run() -> None:
        check(d.cuLaunchKernel(function, grid, 1, 1, 32 * result["warps"], 1, 1, result["shared"], stream, array, None))

    run.spills, run.registers, run.keep, run.module = spills.value, registers.value, values, module
    return run


_driver = None


def driver():
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
    return _driver


def check(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code}")


def timed(run, flush, reps: int) -> float:
    """Median microseconds of a run behind one that has filled the cache with other things."""
    events = []
    for _ in range(reps):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        events.append((a, b))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3


def copied(flush) -> float:
    """Bytes per microsecond of a plain copy."""
    x = torch.randn(16384, 4096, device=flush.device)
    y = torch.empty_like(x)
    took = timed(lambda: y.copy_(x), flush, 15)
    print(f"copy {2 * x.nbytes / took / 1e6:.2f} TB/s", flush=True)
    return 2 * x.nbytes / took


def close(got: list, want: list) -> float:
    """The largest relative difference of two lists of tensors."""
    worst = 0.0
    for g, w in zip(got, want):
        if g.dtype.is_floating_point:
            g, w = g.float(), w.float()
            ok = torch.isfinite(w)
            if not torch.equal(ok, torch.isfinite(g)):
                return float("inf")
            g, w = g.where(ok, 0), w.where(ok, 0)
            worst = max(worst, ((g - w).norm() / (w.norm() + 1e-9)).item())
        elif not torch.equal(g, w):
            worst = max(worst, (g != w).float().mean().item())
    return worst


def jobs_of(kernel: loops.Kernel, limit: int) -> list:
    t = tiling.tile(kernel)
    found = []
    for c in candidates(t, limit):
        try:
            s = emit.emit(kernel, c)
        except Exception as error:
            print(f"  emit {t.kind} {c}: {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        job = dict(text=s.text, function=s.function, arguments=s.arguments, divisible=s.divisible, capability=90,
                   warps=s.warps, stages=s.stages)
        found.append((c, job, s.grid))
    return found


def build_job(job: dict) -> dict:
    try:
        return worker.build(job)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {str(error)[:100]}"}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--only", default="")
    p.add_argument("--dtypes", default="bfloat16")
    p.add_argument("--elements", type=int, default=1 << 26)
    p.add_argument("--limit", type=int, default=30, help="candidates of a kernel")
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--least", type=int, default=8 << 20, help="bytes of traffic from which candidates are tried")
    p.add_argument("--plans", action="store_true", help="only print kernels and their traffic")
    p.add_argument("--json")
    a = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    worker.triton()
    pool = None
    if not a.plans:
        pool = concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork"))
        list(pool.map(int, range(64)))
    names = [n for n in a.only.split(",") if n] or list(programs.CASES)
    work, rows = [], []
    for dtype_name in a.dtypes.split(","):
        dtype = getattr(torch, dtype_name)
        for name in names:
            if passed() > 0.5 * a.seconds and not a.plans:
                print("  not captured:", name)
                continue
            torch.manual_seed(0)
            fn, arguments = programs.CASES[name](lambda *s: torch.randn(s, device=device, dtype=dtype), a.elements)
            kernels = captured(fn, arguments, name in programs.BACKWARD)
            ideal = sum(x.numel() * x.element_size() for x in arguments)
            del arguments
            moved = [traffic(k) for k in kernels]
            if a.plans:
                print(f"{name}: reads {ideal >> 20} MiB, moves {sum(moved) >> 20}: "
                      + ", ".join(f"{tiling.tile(k).kind} {m >> 20}" for k, m in zip(kernels, moved)), flush=True)
                continue
            for i, (k, m) in enumerate(zip(kernels, moved)):
                if any(type(x.extent) is not int for x in k.axes + k.raxes):
                    continue
                jobs = jobs_of(k, a.limit if m >= a.least else 1)
                work.append((name, dtype_name, i, k, m, jobs))
    if a.plans:
        return
    print(f"captured {len(work)} kernels at {passed():.0f} s", flush=True)
    # The choices of all kernels first, so that a stop in the middle leaves some of everything.
    queue = sorted(((j, i) for i, w in enumerate(work) for j in range(len(w[5]))))
    futures = collections.defaultdict(list)
    for j, i in queue:
        futures[i].append((j, pool.submit(build_job, work[i][5][j][1])))
    if device == "cpu":
        for i, w in enumerate(work):
            bad = [r for _, f in futures[i] for r in [f.result()] if "error" in r]
            print(w[0], tiling.tile(w[3]).kind, w[5][0][0], len(w[5]), bad[:2])
        return
    flush = torch.empty(64 << 20, dtype=torch.int32, device=device)
    rate = copied(flush)
    turn = sorted(range(len(work)), key=lambda i: 0)
    done = {i: [] for i in turn}
    state = {}
    # Two sweeps: some of everything, then the rest.
    for low, high in ((0, 14), (14, 10**9)):
        for i in turn:
            name, dtype_name, number, kernel, moved, jobs = work[i]
            mine = [(j, f) for j, f in futures[i] if low <= j < high]
            if not mine or passed() > a.seconds:
                continue
            given = tensors(kernel, device)
            outs = [k for k, b in enumerate(kernel.buffers) if b.role in ("out", "inout")]
            fresh = {k: given[k].clone() for k in outs if kernel.buffers[k].role == "inout"}
            want = state.get(i)
            for j, f in mine:
                if passed() > a.seconds:
                    break
                config, job, grid = jobs[j]
                result = f.result()
                entry = {k: v for k, v in dataclasses.asdict(config).items() if v != getattr(heuristics.Config(), k)}
                if "error" in result:
                    done[i].append((float("inf"), entry, result["error"]))
                    continue
                try:
                    run = launcher(result, given, dims.evaluate(grid, {}))
                    for k in outs:
                        given[k].copy_(fresh[k]) if k in fresh else given[k].view(torch.uint8).fill_(0x7b)
                    run()
                    torch.cuda.synchronize()
                    wrong = ""
                    if want is None or low:
                        got = [given[k].clone() for k in outs] if want is None or low and j == mine[0][0] else None
                        want = got or want
                    error = close([given[k] for k in outs], want)
                    if error > 2e-2:
                        wrong = f"differs {error:.1e}"
                    us = timed(run, flush, 5)
                    done[i].append((us, entry, wrong, run.spills, run.registers))
                    driver().cuModuleUnload(run.module)
                except RuntimeError as error:
                    done[i].append((float("inf"), entry, str(error)[:60]))
            state[i] = None
            del given, want
    torch.cuda.synchronize()
    for i in turn:
        name, dtype_name, number, kernel, moved, jobs = work[i]
        if not done[i]:
            continue
        t = tiling.tile(kernel)
        first, best = done[i][0], min(done[i], key=lambda d: d[0])
        wrong = [d[1:3] for d in done[i] if len(d) > 3 and d[2]]
        share = [moved / d[0] / rate for d in (first, best)]
        rows.append(dict(name=name, dtype=dtype_name, number=number, kind=t.kind, moved=moved, us=first[0],
                         best=best[0], extents={k: v for k, v in t.extents.items()}, share=share, times=done[i],
                         held=analysis.held_bytes(kernel) if kernel.raxes else 0, text=kernel.text()))
        if moved >= a.least:
            print(f"{name[:26]:26s}.{number} {t.kind:5s} {moved >> 20:5d} MiB {first[0]:7.1f} us {share[0]:.2f} -> "
                  f"{best[0]:7.1f} {share[1]:.2f} of {len(done[i])} {short(best[1]) if best is not first else ''}"
                  f"{' WRONG ' + str(wrong[:1]) if wrong else ''}", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(copy=rate, rows=rows), f)
    print(f"{passed():.0f} s")
    os._exit(0)


def short(entry: dict) -> str:
    return " ".join(f"{k}={int(v)}" for k, v in entry.items())


if __name__ == "__main__":
    main()
