"""Differential harness: trace a function with proxies, run the graph on eager tensors, compare with eager in every
respect."""

from __future__ import annotations

import contextlib
import copy
import os

import torch

from jit import config
from jit.graph.shape_env import ShapeEnv
from jit.graph.interpret import evaluate
from jit.graph.passes import optimize
from jit.graph.proxy import Proxy, call, unwrap, wrap
from jit.graph.tracer import Tracer
from jit.graph.handles import TensorHandle
from jit.graph.verify import verify


# JIT_TEST_DEVICE=cuda runs the whole table there.
if os.environ.get("JIT_TEST_DEVICE"):
    torch.set_default_device(os.environ["JIT_TEST_DEVICE"])


class CountingTracer(Tracer):
    """Knows whether it is inside a call, so that the tensor work of tracing itself is not traced."""

    depth = 0

    def call(self, *args, **kwargs):
        self.depth += 1
        try:
            return super().call(*args, **kwargs)
        finally:
            self.depth -= 1


class ElsewhereTracer(CountingTracer):
    """Announces its inputs on another device than their own, so that what is done there can be looked at without
    one."""

    def __init__(self, env, device):
        super().__init__(env)
        self.elsewhere = device

    def input(self, example, *args, **kwargs):
        handle = super().input(example, *args, **kwargs)
        node = handle.base.node
        node.type = handle.base.type = handle.type = node.type.replace(device=self.elsewhere)
        return handle


class TraceMode(torch.overrides.TorchFunctionMode):
    """Traces calls without a proxy too: factories, and operations on tensors that the function captured, which become
    inputs."""

    def __init__(self, tracer):
        super().__init__()
        self.tracer, self.captured = tracer, {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.tracer.depth:
            return func(*args, **(kwargs or {}))
        self.tracer.depth += 1
        try:
            args, kwargs = self.capture(args), {k: self.capture(v) for k, v in (kwargs or {}).items()}
        finally:
            self.tracer.depth -= 1
        return call(self.tracer, func, args, kwargs)

    def capture(self, v):
        if isinstance(v, torch.Tensor):
            if id(v) not in self.captured:
                self.captured[id(v)] = v, Proxy(self.tracer, self.tracer.input(v, "captured"))
            return self.captured[id(v)][1]
        if type(v) in (list, tuple):
            return type(v)(self.capture(e) for e in v)
        return v


def trace(fn, *inputs, dynamic=False, tracer=None, differentiated=False):
    """(graph, result structure with handles, tracer). ``dynamic`` makes every size larger than 1 a symbol."""
    t = tracer or CountingTracer(ShapeEnv())
    handles, seen = [], {}
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            if id(x) not in seen:
                seen[id(x)] = Proxy(t, t.input(x, f"arg{i}", set(range(x.dim())) if dynamic else ()))
            handles.append(seen[id(x)])
        else:
            handles.append(x)
    mode = TraceMode(t)
    with mode:
        result = unwrap(fn(*handles))
    t.captured = [v for v, _ in mode.captured.values()]
    flat = [h for h in flatten(result) if isinstance(h, TensorHandle)]
    return t.finish(flat, differentiated=differentiated), result, t


def flatten(v):
    if isinstance(v, (list, tuple)):
        for e in v:
            yield from flatten(e)
    elif isinstance(v, dict):
        for e in v.values():
            yield from flatten(e)
    else:
        yield v


def clone_inputs(inputs):
    """Deep copies that keep strides, offsets and identity."""
    memo: dict = {}
    out = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            if id(x) not in memo:
                storage = x.detach().untyped_storage().clone()
                y = torch.empty(0, dtype=x.dtype,
                                device=x.device).set_(storage, x.storage_offset(), x.shape, x.stride())
                memo[id(x)] = y.requires_grad_(x.requires_grad) if x.is_floating_point() else y
            out.append(memo[id(x)])
        else:
            out.append(copy.deepcopy(x))
    return out


def check(fn, *inputs, dynamic=False, exact=False, rtol=None, atol=None, strides=True, seed=0, tracer=None):
    """Assert that the traced graph does what ``fn`` does: values, dtypes, shapes, strides, mutations, aliases. Returns
    the graph."""
    with config.patch(fallback_random=True):
        graph, structure, tracer = trace(fn, *clone_inputs(inputs), dynamic=dynamic, tracer=tracer)
    verify(graph)
    captured = tracer.captured
    _compare(fn, inputs, captured, graph, structure, exact, rtol, atol, strides, seed)
    graph = verify(optimize(graph))
    _compare(fn, inputs, captured, graph, structure, exact, rtol, atol, strides, seed)
    return graph


def _compare(fn, inputs, captured, graph, structure, exact, rtol, atol, strides, seed):
    eager_in, graph_in = clone_inputs(inputs), clone_inputs(inputs)
    torch.manual_seed(seed)
    with torch.no_grad():
        expected = fn(*eager_in)
    torch.manual_seed(seed)
    unique = {id(x): x for x in graph_in if isinstance(x, torch.Tensor)}
    values = iter(evaluate(graph, [*unique.values(), *captured]))
    got = _fill(structure, values)
    want_flat, got_flat = list(flatten(expected)), list(flatten(got))
    assert len(want_flat) == len(got_flat), f"{len(want_flat)} results expected, {len(got_flat)} found"
    for w, g in zip(want_flat, got_flat, strict=True):
        if isinstance(w, torch.Tensor):
            compare_tensors(w, g, exact, rtol, atol, strides)
        else:
            assert _plain(w) == _plain(g), f"{w!r} expected, {g!r} found"
    for w, g in zip(eager_in, graph_in, strict=True):
        if isinstance(w, torch.Tensor):
            compare_tensors(w, g, exact, rtol, atol, strides)
    # Aliases: the same pairs of tensors share memory.
    all_want = [x for x in [*eager_in, *want_flat] if isinstance(x, torch.Tensor)]
    all_got = [x for x in [*graph_in, *got_flat] if isinstance(x, torch.Tensor)]
    for i in range(len(all_want)):
        for j in range(i):
            assert _shares(all_want[i], all_want[j]) == _shares(all_got[i], all_got[j]), (
                f"tensors {j} and {i} alias differently")


def _plain(v):
    from jit.graph.dims import Dim, hint

    return hint(v) if type(v) is Dim else v


def _shares(a, b):
    return a.numel() > 0 and b.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _fill(structure, values):
    if isinstance(structure, TensorHandle):
        return next(values)
    if isinstance(structure, (list, tuple)):
        return [_fill(e, values) for e in structure]
    if isinstance(structure, dict):
        return {k: _fill(v, values) for k, v in structure.items()}
    return structure


def compare_tensors(w, g, exact=False, rtol=None, atol=None, strides=True):
    w, g = w.detach(), g.detach()
    assert g.dtype == w.dtype, f"dtype {w.dtype} expected, {g.dtype} found"
    assert g.shape == w.shape, f"shape {tuple(w.shape)} expected, {tuple(g.shape)} found"
    if strides:
        assert g.stride() == w.stride(), f"strides {w.stride()} expected, {g.stride()} found for shape {tuple(w.shape)}"
    if exact:
        assert torch.equal(w, g) or torch.equal(torch.nan_to_num(w), torch.nan_to_num(g))
    else:
        torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)


@contextlib.contextmanager
def raises_as_eager(fn, *inputs):
    """Assert that eager raises and that tracing says so (EagerRaises) or gives up (Unsupported)."""
    from jit.errors import EagerRaises, Unsupported

    try:
        fn(*clone_inputs(inputs))
    except Exception:
        pass
    else:
        raise AssertionError("eager does not raise")
    try:
        trace(fn, *inputs)
    except (EagerRaises, Unsupported, TypeError):  # TypeError: torch's own argument parser
        yield
    else:
        raise AssertionError("tracing does not raise")


__all__ = ["check", "trace", "wrap", "flatten", "compare_tensors", "raises_as_eager", "clone_inputs"]
