"""What the C++ compiler gets wrong: small loops that kernels are made of, compiled with the kernels' flags, run, and
compared with PyTorch.

Compilers have bugs where vectorised code meets comparisons, conversions and gathers: g++ 12 takes ``table[(int64_t)(a
!= b)]`` for ``table[-1]``. A probe is one such loop. What fails and has another form that works becomes a *quirk*, a
name that the emitter asks for (``quirks``); any other failure means that the compiler cannot be used, a CompileError
that says so. The probes are run once for a compiler, its flags and the processor, before the first kernel is built; the
result lies beside the native runtime.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Optional

import torch

from jit import logs
from jit.codegen import reference, toolchain
from jit.codegen.cpp import ops, support
from jit.errors import CompileError
from jit.runtime import build, cache, native

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
BOOL, U8, I8, I16, I32, I64 = torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64

QUIRKS = {"bool_offset": "an integer made from a comparison is wrong as the offset of a vectorised load"}

_log = logs.channel("kernels")


@dataclass(frozen=True)
class Probe:
    """One loop over ``j`` in 0 .. n-1.

    Attributes:
        what: what is tried, in words.
        text: the loop's body; ``x`` and ``y`` are the elements of the inputs, ``r`` takes the result.
        inputs: one or two tensors of the same length.
        expected: the results, of that length.
        quirk: what the emitter has to know when the loop fails; None where it has no other form.
        head: declarations before the loop.
    """

    what: str
    text: str
    inputs: tuple
    expected: torch.Tensor
    quirk: Optional[str] = None
    head: str = ""


# values where formats end, rounding ties and comparisons differ


_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7,
           float("nan"), float("inf"), -float("inf"), 1e-45, -1e-45, 1.2e-38, 1e-39, 3.4e38, -3.4e38,
           8388607.5, 16777217.0, 65504.0, 65520.0, 6e-8, 3e-8, 127.5, -128.0, 255.0]  # fmt: skip


def _values(dtype: torch.dtype) -> torch.Tensor:
    if dtype is BOOL:
        return torch.tensor([False, True, True])
    if dtype.is_floating_point:
        return torch.tensor(_FLOATS, dtype=F64).to(dtype)
    info = torch.iinfo(dtype)
    numbers = [0, 1, 2, 3, 5, 7, 8, 63, 100, 127, -1, -2, -7, -8, -128,
               255, 4096, -30000, 2**24 + 1, -(2**31), 2**31 - 1, 2**40 + 3, info.min, info.min + 1, info.max]
    return torch.tensor(sorted({v for v in numbers if info.min <= v <= info.max}), dtype=dtype)


def _pairs(dtype: torch.dtype, other: torch.dtype | None = None) -> tuple:
    a, b = _values(dtype), _values(other or dtype)
    return a.repeat_interleave(len(b)).contiguous(), b.repeat(len(a)).contiguous()


def _op(op: str, dtype: torch.dtype, result: torch.dtype | None = None, inputs: tuple[torch.Tensor, ...] | None = None,
        constant: int | None = None, arity: int = 2) -> Probe:
    """A pointwise prim as the emitter writes it. ``constant``: the second operand, as a literal."""
    given = inputs or (_pairs(dtype) if arity == 2 and constant is None else (_values(dtype),))
    arguments = (*given, torch.tensor(constant, dtype=dtype)) if constant is not None else given
    names = ["x", "y"] if constant is None else ["x", ops.constant(constant, dtype)]
    result = result or dtype
    text = ops.expression(op, names[: len(arguments)], [dtype] * len(arguments), result, [None, constant])
    suffix = "" if constant is None else f" {constant}"
    return Probe(f"{op}{suffix} of {_name(dtype)}" + ("" if result is dtype else f" to {_name(result)}"),
                 f"r = {text};", given, reference.pointwise(op, list(arguments), result))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cast(source: torch.dtype, target: torch.dtype) -> Probe:
    given = _values(source)
    # What does not fit is anybody's guess.
    if source.is_floating_point and not target.is_floating_point and target is not BOOL:
        info = torch.iinfo(target)
        wide = given.double()
        given = torch.where((wide > max(info.min, -(2**62)) - 1) & (wide < min(info.max, 2**62) + 1),
                            given, torch.ones((), dtype=source))
    return _op("cast", source, target, (given.repeat(3),))


def _division(op: str, dtype: torch.dtype) -> Probe:
    a, b = _pairs(dtype)
    undefined = (b == 0) | (a == torch.iinfo(dtype).min) & (b == -1)
    return _op(op, dtype, inputs=(a, torch.where(undefined, torch.full_like(b, 3), b)))


def _gathers() -> list:
    """Loads at an index that is made from a comparison, as they stand and as the emitter writes them for
    ``bool_offset``."""
    table, found = torch.arange(33, dtype=F32) * 10, []
    numbers = ", ".join(f"{v}f" for v in table.tolist())
    head = f"static float memory[33] = {{{numbers}}}; float* table = memory + 16; asm(\"\" : \"+r\"(table));"
    bounds = head + " const int64_t limit = hidden(8), nowhere = hidden(0);"
    # the index as text -> its factor and what is added
    forms = {"(int64_t)TRUTH": (1, 0), "(TRUTH ? INT64_C(1) : INT64_C(0))": (1, 0),
             "(int64_t)(int32_t)TRUTH": (1, 0), "(int64_t)(float)TRUTH": (1, 0),
             "(int64_t)((uint64_t)(int64_t)TRUTH * (uint64_t)INT64_C(2))": (2, 0),
             "(int64_t)((uint64_t)(int64_t)TRUTH + (uint64_t)INT64_C(3))": (1, 3),
             "(TRUTH ? INT64_C(5) : INT64_C(4))": (1, 4)}  # fmt: skip
    for dtype in (F32, F64, I64, U8):
        a, b = _pairs(dtype)
        for form, (times, plus) in forms.items():
            index = form.replace("TRUTH", "(x > y)")
            expected = table[16 + (a > b).long() * times + plus]
            what = f"a load at {form.replace('TRUTH', '(a > b)')} of {_name(dtype)}"
            found.append(Probe(what, f"const int64_t i = {index}; r = table[i];",
                               (a, b), expected, "bool_offset", head))
            bounded = f"const int64_t v = {index}, i = (uint64_t)v < (uint64_t)limit ? v : nowhere; r = table[i];"
            found.append(Probe(what + ", bounded", bounded, (a, b), expected, None, bounds))
    return found


def _masks() -> list:
    """Loads and stores under a condition, at addresses that are good only where it holds."""
    a, b = _pairs(I64)
    inside = (a >= 0) & (a < 16)
    head = (
        "static float memory[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; float* table = memory; "
        "asm(\"\" : \"+r\"(table));")
    load = Probe("a masked load", "r = (x >= 0) & (x < 16) ? table[x] : -1.0f;",
                 (a,), torch.where(inside, a, -1).float(), None, head)
    c, d = _pairs(F32)
    store = Probe("a masked store", "r = 7.0f; if (x > y) r = x;", (c, d), torch.where(c > d, c, 7.0))
    return [load, store]


def probes() -> list:
    """All of them, in the order in which they are run."""
    found = []
    for dtype in (F32, F64):
        found += [_op(op, dtype, BOOL) for op in ("ne", "lt", "ge")]
        found += [_op(op, dtype, BOOL, arity=1) for op in ("isnan", "isfinite", "signbit")]
        found += [_op(op, dtype) for op in ("maximum", "minimum", "add", "mul", "div")]
        found += [_op(op, dtype, arity=1) for op in ("neg", "sign", "floor", "round")]
    for dtype in (U8, I16, I32, I64):
        found += [_op(op, dtype) for op in ("sub", "mul", "maximum")] + [_op("lt", dtype, BOOL),
                                                                         _op("sign", dtype, arity=1)]
        shifts = _pairs(dtype, I8)
        found += [_op(op, dtype, inputs=(shifts[0], (shifts[1].long() % torch.iinfo(dtype).bits).to(dtype)))
                  for op in ("shl", "shr")]
        found += [_op(op, dtype, constant=c) for op in ("floor_div", "remainder") for c in (7, 8)]
    found += [_division(op, dtype) for op in ("floor_div", "remainder") for dtype in (I32, I64)]
    casts = [(F32, t) for t in (F64, F16, BF16, BOOL, U8, I32, I64)] + [(F64, F32), (F64, I64), (F16, F32), (BF16, F32)]
    casts += [(BOOL, t) for t in (F32, U8, I32, I64)] + [(I64, t) for t in (F32, F64, BOOL, I32)] + [(I32, F32),
        (I32, I64), (U8, F32), (I16, F32)]
    return found + [_cast(s, t) for s, t in casts] + _gathers() + _masks()


# the program


def _array(tensor: torch.Tensor) -> str:
    size = tensor.element_size()
    words = tensor.contiguous().view({1: U8, 2: I16, 4: I32, 8: I64}[size]).tolist()
    return ",".join(hex(w % (1 << 8 * size)) for w in words)


def source(all_probes: list) -> str:
    """A program that runs the probes from the one whose number is its argument on and writes their results, one behind
    the other, to its standard output."""
    arrays, functions, calls = {}, [], []

    def array(tensor: torch.Tensor) -> str:
        kind = f"uint{8 * tensor.element_size()}_t"
        return arrays.setdefault((kind, _array(tensor)), f"values{len(arrays)}")

    for k, p in enumerate(all_probes):
        out, n = ops.memory_type(p.expected.dtype), len(p.expected)
        loads = ""
        for name, t in zip("xy", p.inputs):
            text = f"{name}s[j] != 0" if t.dtype is BOOL else f"{name}s[j]"
            loads += f" const {ops.c_type(t.dtype)} {name} = {text};"
        kinds = [ops.memory_type(t.dtype) for t in p.inputs]
        parameters = ", ".join(f"const {kind}* {name}s" for kind, name in zip(kinds, "xy"))
        functions.append(
            f"static __attribute__((noinline)) void probe{k}({parameters}, {out}* rs) {{ {p.head}\n#pragma omp simd\n"
            f"for (int64_t j = 0; j < {n}; j++) "
            f"{{{loads} {ops.c_type(p.expected.dtype)} r; {p.text} rs[j] = r; }} }}\n")
        given = ", ".join(f"(const {kind}*){array(t)}" for kind, t in zip(kinds, p.inputs))
        calls.append(f"case {k}: probe{k}({given}, ({out}*)results); put({n * p.expected.element_size()}); "
                     "[[fallthrough]];")
    body = "".join(functions)
    data = "".join(f"static {kind} {name}[] __attribute__((aligned(64))) = {{{text}}};\n" for (kind, text),
                   name in arrays.items())
    largest = max(len(p.expected) * p.expected.element_size() for p in all_probes)
    main = (f"static char results[{largest}] __attribute__((aligned(64)));\nextern \"C\" long write(int, const void*, "
            "unsigned long);\nextern \"C\" int atoi(const char*);\n"
            "static void put(long n) { for (long done = 0; done < n;) { const long k = write(1, results + done, n - "
            "done); if (k <= 0) __builtin_trap(); done += k; } }\n"
            f"int main(int, char** arguments) "
            f"{{ switch (atoi(arguments[1])) {{\n{chr(10).join(calls)}\ndefault: ; }} return 0; }}\n")  # fmt: skip
    return support.RUNTIME + ops.prelude(body) + data + body + main


def _same(got: bytes, expected: torch.Tensor) -> bool:
    dtype = U8 if expected.dtype is BOOL else expected.dtype
    value, want = torch.frombuffer(bytearray(got), dtype=dtype), expected.to(dtype)
    if not dtype.is_floating_point:
        return torch.equal(value, want)
    bits = {2: I16, 4: I32, 8: I64}[dtype.itemsize]
    return bool(((value.view(bits) == want.view(bits)) | value.isnan() & want.isnan()).all())


def failures(compiler: str, flags: tuple[str, ...]) -> list:
    """The numbers of the probes that give a wrong result, or kill their process, with this compiler. Raises
    CompileError where they cannot be compiled, OSError where they cannot be run."""
    tried, wrong = probes(), []
    with tempfile.TemporaryDirectory(prefix="jit-check-") as folder:
        path = os.path.join(folder, "probes")
        with open(path + ".cpp", "w") as f:
            f.write(source(tried))
        made = subprocess.run([compiler, *flags, path + ".cpp", "-o", path, *toolchain.LIBRARIES],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if made.returncode:
            raise CompileError(f"{compiler} cannot compile the loops by which it is "
                               f"checked:\n{made.stderr.strip()[-2000:]}\nSet CXX to another g++ (11 or later).")
        first = 0
        while first < len(tried):
            done = subprocess.run([path, str(first)], capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
            at = 0
            for k in range(first, len(tried)):
                size = len(tried[k].expected) * tried[k].expected.element_size()
                got = done.stdout[at : at + size]
                at += size
                first = k + 1
                if len(got) < size or not _same(got, tried[k].expected):
                    wrong.append(k)
                if len(got) < size:
                    break  # it died there; the next run begins behind it
    return wrong


def _folder() -> str:
    """Where the native runtime lies, which serves every kernel cache, or the cache folder."""
    return build.findings_folder(native().__file__)


@functools.lru_cache(maxsize=None)
def _findings() -> tuple:
    """(what failed and has another form, by quirk; what failed otherwise), of the compiler in use: from its file, or
    from a run now."""
    h = hashlib.sha256()
    for file in (__file__, ops.__file__, support.__file__):
        with open(file, "rb") as f:
            h.update(f.read())
    path = os.path.join(_folder(), f"check-{cache.key(h.hexdigest(), toolchain.fingerprint())[:32]}.json")
    try:
        with open(path) as f:
            return tuple(json.load(f))
    except (OSError, ValueError):
        with logs.timed("check of the C++ compiler"):
            try:
                wrong = [probes()[k] for k in failures(toolchain.compiler(), toolchain.flags())]
            except (OSError, subprocess.SubprocessError) as error:
                _log(f"the C++ compiler could not be checked ({error}); every form that is known to help is used")
                return ({name: [] for name in QUIRKS}, [])
        quirks_found = {q: [p.what for p in wrong if p.quirk == q] for q in {p.quirk for p in wrong} - {None}}
        found = (quirks_found, [p.what for p in wrong if p.quirk is None])
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=_folder(), prefix="check-") as made:
            with open(os.path.join(made, "result"), "w") as f:
                json.dump(found, f)
            os.replace(os.path.join(made, "result"), path)
        return found


def quirks() -> frozenset:
    """The quirks of the C++ compiler, of ``QUIRKS``. Raises CompileError when it gets wrong what has no other form."""
    found, broken = _findings()
    if broken:
        shown = ", ".join(broken[:5]) + (f" and {len(broken) - 5} more" if len(broken) > 5 else "")
        raise CompileError(f"{toolchain.compiler()} makes wrong code for loops that CPU kernels need: {shown}. Set CXX "
                           "to another g++ (11 or later).")
    return frozenset(found)


def report() -> str:
    """What was found, for ``python -m jit doctor``. Raises CompileError as :func:`quirks` does."""
    found = sorted(quirks())
    if not found:
        return "every loop gives PyTorch's numbers"
    return f"right, with a way round what this g++ gets wrong: {'; '.join(QUIRKS[q] for q in found)}"
