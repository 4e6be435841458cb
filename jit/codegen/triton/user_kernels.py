"""Triton kernels of the program's own as the driver launches them: compiled by Triton for what is known of their
arguments, as its own launcher would compile them."""

from __future__ import annotations

import functools
import importlib
import math
import struct
from dataclasses import dataclass
from typing import Any

import torch

from ... import devices, logs
from ...errors import CompileError
from ...runtime.plan import GpuKernel
from ...runtime.user_kernels import Launch, Number, Plain, Pointer, kernel_of

log = logs.channel("kernels")
_WIDTHS = {"i1": "i32", "u1": "i32", "i8": "i32", "u8": "i32", "i16": "i32", "u16": "i32", "i32": "i32", "u32": "i32",
           "i64": "i64", "u64": "i64", "fp32": "i32", "f32": "i32", "fp64": "i64", "f64": "i64"}


@dataclass(frozen=True)
class Code:
    """``parameters``: the names of the arguments that the compiled kernel takes, in its order; ``kinds``: the types of
    those that are no pointers."""

    kernel: GpuKernel
    parameters: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str


class NotNative(Exception):
    """A kernel needs what a plan does not provide; it is launched by Triton."""


class _Address:
    """Stands for a tensor in Triton's questions."""

    def __init__(self, dtype: torch.dtype, address: int) -> None:
        self.dtype, self.address = dtype, address

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return 1 << 40


def code_of(spec: Launch, unaligned: frozenset[int] = frozenset(), capability: int = 90) -> Code | None:
    """What is launched for a spec, whose memories ``unaligned`` may begin anywhere; None where Triton's own launcher is
    needed. Raises CompileError where the kernel does not compile."""
    found = _code(spec, unaligned, capability)
    if isinstance(found, CompileError):
        raise found
    return found


@functools.lru_cache(1024)
def _code(spec: Launch, unaligned: frozenset[int], capability: int) -> Code | CompileError | None:
    if spec.examples is None:
        return None
    try:
        return _compiled(spec, unaligned, capability)
    except NotNative as why:
        log(f"{spec.kernel} is launched by Triton: {why}")
        return None
    except (ImportError, AttributeError, TypeError) as error:  # Triton's parts are not those that are known
        log(f"{spec.kernel} is launched by Triton: {type(error).__name__}: {error}")
        return None
    except Exception as error:  # whatever its compiler says of the program's kernel
        return CompileError(f"Triton could not compile {spec.kernel}: {type(error).__name__}: {error}")


def _compiled(spec: Launch, unaligned: frozenset[int], capability: int) -> Code:
    compiler, jit = importlib.import_module("triton.compiler"), importlib.import_module("triton.runtime.jit")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    backend = compiler.make_backend(target)
    kernel = kernel_of(spec.kernel)
    if not isinstance(kernel, jit.JITFunction) or kernel.is_gluon():
        raise NotNative("it is none of triton.jit")
    examples, given = dict(spec.examples or ()), {}
    for name, argument in spec.arguments:
        if isinstance(argument, Pointer):
            given[name] = _Address(argument.dtype, examples[name] + (argument.memory in unaligned))
        elif isinstance(argument, Number):
            given[name] = examples[name]
        else:
            given[name] = argument.of((), ())
    options = {name: value.of((), ()) for name, value in spec.options}
    options["debug"] = options.get("debug", kernel.debug) or False
    binder = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, rest = binder(**given, **options)
    parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialization, rest)
    made = compiler.compile(compiler.ASTSource(kernel, signature, constants, attributes), target=target,
                            options=parsed.__dict__)
    return _launched(spec, made, signature, dict(spec.arguments))


def _launched(spec: Launch, made: Any, signature: dict[str, Any], arguments: dict[str, Any]) -> Code:
    m = made.metadata
    for wanted, what in ((getattr(m, "global_scratch_size", 0), "scratch memory"),
                         (getattr(m, "profile_scratch_size", 0), "memory for a profile"),
                         (getattr(m, "num_ctas", 1) != 1, "clusters"),
                         (getattr(m, "launch_cooperative_grid", False), "a cooperative launch"),
                         (getattr(m, "tensordesc_meta", None), "descriptors of tensors")):
        if wanted:
            raise NotNative(f"it needs {what}")
    if math.prod(getattr(m, "cluster_dims", (1,))) != 1:
        raise NotNative("it needs clusters")
    names = tuple(name for name, kind in signature.items() if kind != "constexpr")
    pointers = [name for name in names if isinstance(arguments[name], Pointer)]
    others = [name for name in names if name not in pointers]
    ints = []
    for k, name in enumerate(others):
        width = _WIDTHS.get(signature[name]) if isinstance(signature[name], str) else None
        if width is None or isinstance(arguments[name], Plain) and bits(signature[name], arguments[name]) is None:
            raise NotNative(f"its argument {name} is a {signature[name]}")
        ints.append((k, width))
    order = tuple((pointers + others).index(name) for name in names)
    record = GpuKernel(m.name, made.asm["cubin"], m.num_warps, m.shared, tuple(ints), order=order)
    text = "\n".join(f"{name}: {kind}" for name, kind in signature.items())
    return Code(record, names, tuple(signature[name] for name in others), text)


def bits(kind: str, value: Plain) -> int | None:
    """A constant argument as an integer of the same bits; None for one that is no number of this kind."""
    v = value.of((), ())
    if not isinstance(v, (bool, int, float)):
        return None
    if kind in ("fp32", "f32"):
        try:
            return int(struct.unpack("<i", struct.pack("<f", v))[0])
        except OverflowError:
            return int(struct.unpack("<i", struct.pack("<f", math.copysign(math.inf, v)))[0])
    if kind in ("fp64", "f64"):
        return int(struct.unpack("<q", struct.pack("<d", v))[0])
    if isinstance(v, float):
        return None
    return v


def capability_of(device: torch.device) -> int:
    """The compute capability of a device."""
    return devices.backend(device).architecture(device).capability
