"""The programs that are made of one sample of an operator, and what of them is compared with eager."""

from __future__ import annotations

import itertools
import sys
import warnings

import torch

import jit
from inplace_harness import observe, same_record, tensors

DTYPES = (torch.float32, torch.int64, torch.bool, torch.float64, torch.complex64)


def database() -> list:
    """The operators, with the wrapper that seeds them reduced to the operator alone: every call here is seeded
    anyway."""
    from torch.testing._internal.common_methods_invocations import op_db

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal.") and "wrapper_set_seed" in vars(module):
            module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return op_db


def label(info) -> str:
    return info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")


def samples(info, count: int, dtype=None) -> list:
    """The first samples as (arguments, keyword arguments), of the given dtype or the first of DTYPES that the operator
    has."""
    have = info.supported_dtypes("cpu")
    dtype = dtype or next((d for d in DTYPES if d in have), None)
    if dtype not in have:
        return []
    torch.manual_seed(1)
    found = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), count)
    return [((s.input, *s.args), s.kwargs) for s in found]


def fresh(v):
    """Arguments with copies of the tensors, of the same strides where these do not overlap."""
    if isinstance(v, torch.Tensor):
        if v.layout is not torch.strided or any(s == 0 for s in v.stride()):
            return v.detach().clone()
        return torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).copy_(v.detach())
    if isinstance(v, (list, tuple)):
        return type(v)(map(fresh, v)) if type(v) in (list, tuple) else v
    if isinstance(v, torch.Generator):
        return v.clone_state()
    return {k: fresh(e) for k, e in v.items()} if isinstance(v, dict) else v


def made(v):
    """The same inside a program: the values that it makes of its arguments."""
    if isinstance(v, torch.Tensor):
        return v.clone()
    if type(v) in (list, tuple):
        return type(v)([made(e) for e in v])
    return {k: made(e) for k, e in v.items()} if type(v) is dict else v


def change(v):
    """Change the first tensor among results, or arguments, in place."""
    if isinstance(v, torch.Tensor):
        v.logical_not_() if v.dtype is torch.bool else v.add_(1)
        return True
    if isinstance(v, (list, tuple)):
        for e in v:
            if change(e):
                return True
    return False


def programs(op) -> dict:
    """Name -> a function of (args, kwargs): the results, and writes to the results and to the arguments, which are
    inputs or values that the program made."""

    def result(args, kwargs):
        return op(*args, **kwargs)

    def write_result(args, kwargs):
        out = op(*args, **kwargs)
        change(out)
        return out

    def write_argument(args, kwargs):
        out = op(*args, **kwargs)
        change(args)
        return out

    def write_result_of_made(args, kwargs):
        args, kwargs = made(args), made(kwargs)
        out = op(*args, **kwargs)
        change(out)
        return args, kwargs, out

    def write_made(args, kwargs):
        args, kwargs = made(args), made(kwargs)
        out = op(*args, **kwargs)
        change(args)
        return args, kwargs, out

    return {f.__name__: f for f in (result, write_result, write_argument, write_result_of_made, write_made)}


def shares(record) -> bool:
    """Whether a result is an argument or shares memory with one."""
    first = [k if m is None else m for k, m in enumerate(record["memory"])]
    return any(m != k for k, m in enumerate(first)) or record["identity"] != list(range(len(first)))


def compare(op, args, kwargs, native: bool) -> list:
    """What differs from eager: texts. The programs run on the real backend where eager's result shares memory with the
    arguments, or ``native`` says so."""
    found, random = [], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, program in programs(op).items():
            def make():
                return (fresh(args), fresh(kwargs)), ()

            try:
                eager = observe(program, make, 0)
                if name == "result":
                    again = observe(program, make, 1)
                    native = native or shares(eager)
                    random = not _same(eager, again)
            except Exception:  # of a sample that this way of looking does not suit, such as a sparse one
                return found
            if random:
                eager.pop("values")
            jit.reset()
            try:
                compiled = observe(jit.compile(program, **({} if native else {"backend": "eager"})), make, 0)
                if random:
                    compiled.pop("values")
                same_record(eager, compiled, 1e-4)
            except Exception as error:
                found.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    return found


def _same(a, b) -> bool:
    try:
        same_record(a, b)
        return True
    except AssertionError:
        return False


def compare_history(op, args, kwargs) -> list:
    """What differs in ``requires_grad`` and the like of the results, as the program and its caller see it, where one
    tensor argument after the other requires grad."""
    found = []
    count = len([t for t in tensors([args, kwargs]) if t.is_floating_point() or t.is_complex()])

    def program(args, kwargs):
        out = op(*args, **kwargs)
        parts = [out] if isinstance(out, torch.Tensor) else list(out) if isinstance(out, (list, tuple)) else []
        return out, [(p.requires_grad, p.is_leaf) for p in parts if isinstance(p, torch.Tensor)]

    def record(fn, chosen):
        given = fresh(args), fresh(kwargs)
        leaves = [t for t in tensors(list(given)) if t.is_floating_point() or t.is_complex()]
        leaves[chosen].requires_grad_()
        torch.manual_seed(0)
        try:
            out, said = fn(*given)
        except Exception as error:
            return type(error).__name__
        return said, [(t.requires_grad, t.is_leaf, t.grad_fn is None) for t in tensors([out])]

    for chosen in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                eager = record(program, chosen)
            except Exception:
                continue
            jit.reset()
            compiled = record(jit.compile(program, backend="eager"), chosen)
        if eager != compiled:
            found.append(f"requires_grad of tensor {chosen}: {eager} in eager, {compiled} compiled"[:300])
    return found
