"""Programs that use names of ``torch.compiler`` and ``torch._dynamo`` in code that jit compiles: a script of its own,
since loading these loads PyTorch's compiler. Prints a line of JSON for each program: its name, graphs, breaks, and
whether the results are those of eager.

Run by tests/test_surface.py.
"""

import _statistics
import collections
import functools
import json
import sys
import warnings

import numpy as np
import torch
import torch._dynamo as dynamo
from torch._dynamo import decorators

import jit

warnings.simplefilter("ignore")
PROGRAMS = {}
x = torch.linspace(-1, 1, 12).reshape(4, 3)


def program(name):
    """Register ``make()``, which gives a function of a tensor."""
    def register(make):
        PROGRAMS[name] = make
        return make

    return register


def inner(t):
    return t.sin() + 1


def around(fn):
    """A function that calls ``fn`` in the middle."""
    return lambda t: fn(t * 2) - 1


program("torch.compile")(lambda: around(torch.compile(inner, backend="eager")))
program("torch.compile, inside")(lambda: lambda t: torch.compile(inner, backend="eager")(t * 2) - 1)
program("torch.compile of a method")(lambda: around(torch.compile(Net().scaled, backend="eager")))
program("torch.compile of jit.compile")(lambda: torch.compile(jit.compile(inner), backend="eager"))
program("torch.compile of jit.compile of a module")(lambda: torch.compile(jit.compile(NET), backend="eager"))
program("torch.compile, given to jit")(lambda: torch.compile(inner, backend="eager"))
program("torch.compiler.compile")(lambda: around(torch.compiler.compile(inner, backend="eager")))
program("torch.compiler.disable")(lambda: around(torch.compiler.disable(inner, reason="of old age")))
program("torch.compiler.disable, given to jit")(lambda: torch.compiler.disable(inner))
program("torch.compiler.disable, recursive=False")(lambda: around(torch.compiler.disable(inner, recursive=False)))
program("torch._dynamo.disable")(lambda: around(dynamo.disable(inner)))
program("torch._dynamo.decorators.skip")(lambda: around(decorators.skip(lambda t: t.cos())))
program("torch.compiler.allow_in_graph")(lambda: around(torch.compiler.allow_in_graph(inner)))
program("torch._dynamo.allow_in_graph")(lambda: around(dynamo.allow_in_graph(inner)))
program("torch._dynamo.nonstrict_trace")(lambda: around(dynamo.nonstrict_trace(inner)))
program("torch.compiler.nested_compile_region")(
    lambda: (lambda region: lambda t: region(region(t)))(torch.compiler.nested_compile_region(inner)))
program("torch.compiler.assume_constant_result")(
    lambda: (lambda k: lambda t: t * k())(torch.compiler.assume_constant_result(lambda: 3.0)))
program("torch.compiler.is_compiling")(
    lambda: lambda t: t * (1 if torch.compiler.is_compiling() or not jit.is_compiling() else 2))
program("torch.compiler.is_dynamo_compiling")(
    lambda: lambda t: t * (1 if torch.compiler.is_dynamo_compiling() or not jit.is_compiling() else 2))
program("torch.compiler.is_exporting")(lambda: lambda t: t * (2 if torch.compiler.is_exporting() else 1))
program("torch._dynamo.is_compiling")(
    lambda: lambda t: t * (1 if dynamo.is_compiling() or not jit.is_compiling() else 2))
program("torch.compiler.reset")(lambda: lambda t: (t * 2, torch.compiler.reset())[0] + 1)
program("torch._dynamo.reset")(lambda: lambda t: (t * 2, dynamo.reset())[0] + 1)
program("torch.compiler.list_backends")(lambda: lambda t: t * (2 if torch.compiler.list_backends() else 3))
program("torch._dynamo.list_backends")(lambda: lambda t: t * (2 if dynamo.list_backends() else 3))
program("torch._dynamo.lookup_backend")(lambda: lambda t: t * (2 if dynamo.lookup_backend("eager") else 3))
program("torch._dynamo.register_backend")(
    lambda: lambda t: (t * 2, dynamo.register_backend(lambda gm, given: gm, name=f"b{len(counter)}",
                                                      tags=counter.append(1) or ()))[0])
program("torch._dynamo.graph_break")(lambda: lambda t: (t * 2, dynamo.graph_break("here"))[0] + 1)
program("torch._dynamo.skip_frame")(lambda: lambda t: (t * 2, dynamo.skip_frame())[0] + 1)
program("torch._dynamo.step_unsupported")(lambda: lambda t: (t * 2, dynamo.step_unsupported())[0] + 1)
program("torch._dynamo.forbid_in_graph")(lambda: around(dynamo.forbid_in_graph(lambda t: t.cos())))
program("torch._dynamo.run")(lambda: around(dynamo.run(inner)))
program("torch._dynamo.run, inside")(lambda: lambda t: dynamo.run(inner)(t * 2) - 1)
program("torch._dynamo.optimize")(lambda: around(dynamo.optimize("eager")(inner)))
program("torch._dynamo.explain")(lambda: lambda t: (t * 2, dynamo.explain(inner)(x))[0] + 1)
program("torch._dynamo.is_dynamo_disable_recursive")(
    lambda: lambda t: t * (2 if dynamo.is_dynamo_disable_recursive(inner) is None else 3))
program("torch._dynamo.reset_recompile_user_contexts")(
    lambda: lambda t: (t * 2, dynamo.reset_recompile_user_contexts())[0] + 1)
program("torch._dynamo.override_optimization_hint")(
    lambda: lambda t: (t * 2, dynamo.override_optimization_hint(3, 4))[0] + 1)
program("torch._dynamo.allow_c_slot")(lambda: lambda t: (t * 2, dynamo.allow_c_slot(collections.deque))[0] + 1)
program("torch._dynamo.set_recursion_limit")(lambda: lambda t: (t * 2, dynamo.set_recursion_limit(-1))[0] + 1)
program("torch.compiler.cudagraph_mark_step_begin")(
    lambda: lambda t: (t * 2, torch.compiler.cudagraph_mark_step_begin())[0] + 1)
counter: list = []
backend = [None]


def default_backend(t):
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend("eager")
    now = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend(before)
    return t * len(now)


program("torch.compiler.set_default_backend")(lambda: default_backend)
program("torch.compiler.set_enable_guard_collectives")(
    lambda: lambda t: t * (3 if torch.compiler.set_enable_guard_collectives(False) else 2))


def marking(mark):
    def fn(t):
        t = t.clone()
        mark(t, 0)
        return t * 2

    return fn


program("torch._dynamo.mark_dynamic")(lambda: marking(dynamo.mark_dynamic))
program("torch._dynamo.maybe_mark_dynamic")(lambda: marking(dynamo.maybe_mark_dynamic))
program("torch._dynamo.decorators.mark_unbacked")(lambda: marking(decorators.mark_unbacked))
program("torch._dynamo.mark_static_address")(lambda: marking(dynamo.mark_static_address))


@program("torch._dynamo.mark_static")
def _():
    def fn(t):
        dynamo.mark_static(t, 0)
        return t * 2

    return fn


def under(context):
    """A function that does half of its work under a context, and a function that is decorated with one."""
    def fn(t):
        with context():
            y = t * 2
        return y + 1

    return fn


CONTEXTS = {
    "torch.compiler.set_stance": lambda: torch.compiler.set_stance("force_eager"),
    "torch._dynamo.set_stance": lambda: dynamo.set_stance("default"),
    "torch._dynamo.config.patch": lambda: dynamo.config.patch(recompile_limit=3),
    "torch._dynamo.patch_dynamo_config": lambda: dynamo.patch_dynamo_config(dont_skip_tracing=True),
    "torch._dynamo.error_on_graph_break": lambda: dynamo.error_on_graph_break(True),
    "torch._dynamo.dont_skip_tracing": lambda: dynamo.dont_skip_tracing(),
    "torch._dynamo.disable_nested_graph_breaks": lambda: dynamo.disable_nested_graph_breaks(),
    "torch._dynamo.override_cudagraphs": lambda: dynamo.override_cudagraphs(fwd=False),
}
for _name, _context in CONTEXTS.items():
    program(_name)(functools.partial(under, _context))
    program(_name + ", decorator")(lambda context=_context: around(context()(lambda t: t.cos())))


@program("torch._dynamo.disallow_in_graph")
def _():
    dynamo.disallow_in_graph(torch.cos)
    return lambda t: torch.cos(t * 2) + 1


@program("torch.compiler.substitute_in_graph")
def _():
    fn = _statistics._normal_dist_inv_cdf  # in C, and neither ours nor PyTorch's to know

    @torch.compiler.substitute_in_graph(fn, skip_signature_check=True)
    def of_a_half(p, mu, sigma):
        return mu

    return lambda t: t * fn(0.5, 3.0, 1.0)


@program("torch._dynamo.decorators.leaf_function")
def _():
    @decorators.leaf_function
    def leaf(t):
        return (t.sin(),)

    leaf.register_fake(lambda t: (torch.empty_like(t),))
    return lambda t: leaf(t * 2)[0] - 1


program("torch.compiler.wrap_numpy")(lambda: torch.compiler.wrap_numpy(lambda a: np.maximum(a * a, 0)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(3))

    def forward(self, t):
        return self.linear(t).relu() + self.linear.bias

    def scaled(self, t):
        return t * self.linear.bias.detach()


NET = Net()
OPTIMIZED = torch.compile(NET, backend="eager")
IN_PLACE = Net()
IN_PLACE.compile(backend="eager")
program("OptimizedModule")(lambda: around(OPTIMIZED))
program("OptimizedModule, given to jit")(lambda: OPTIMIZED)
program("Module.compile")(lambda: around(IN_PLACE))
program("Module.compile, given to jit")(lambda: IN_PLACE)


@program("an optimizer's step, which asks for breaks")
def _():
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.0)

    def fn(t):
        (w * t).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return t * w.detach()

    return fn


@program("modules made inside")
def _():
    torch.compile(lambda t: torch.nn.Identity()(t) + 1, backend="eager")(x)  # from now on it notes each module

    class Scale(torch.nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def forward(self, t):
            return t * self.by

    def fn(t):
        both = torch.nn.Sequential(Scale(2.0), torch.nn.ReLU(), Scale(3.0))
        return both(t)

    return fn


@program("jit inside of torch.compile")
def _():
    fast = jit.compile(lambda t: torch.relu(t) * 2)
    return torch.compile(lambda t: fast(t + 1) - 1, backend="eager")


def outcome(name):
    fn = PROGRAMS[name]()
    expected = fn(x.clone())
    report = jit.explain(fn)(x.clone())
    fast = jit.compile(fn)
    results = [fast(x.clone()), fast(x.clone()), fast(torch.cat([x, x]))]
    expected = [expected, expected, fn(torch.cat([x, x]))]
    return dict(name=name, graphs=report.graph_count, breaks=[b.kind for b in report.break_reasons],
                texts=[f"{b.why}; {b.hint}" for b in report.break_reasons],
                right=all(map(torch.allclose, expected, results)))


if __name__ == "__main__":
    for _name in sys.argv[1:] or PROGRAMS:
        try:
            print(json.dumps(outcome(_name)), flush=True)
        except Exception as error:  # the test tells
            import traceback
            traceback.print_exc()
            print(json.dumps(dict(name=_name, error=f"{type(error).__name__}: {error}")), flush=True)
