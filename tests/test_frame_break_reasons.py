"""Every kind of graph break: a program in which it happens, its record, and that results stay those of eager.

The record of a break must name the line marked ``# here``. That no kind is without a program is held by
test_project_layering.py.
"""

import array
import ctypes
import dataclasses
import datetime
import functools
import inspect
import logging
import math
import re
import sys
import time
import types
import warnings
import zlib

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401  (what is known of it is registered with it)
from frame_harness import observe, same
from torch.overrides import TorchFunctionMode
from triton.runtime.interpreter import InterpretedFunction

import jit
from jit.backends import BACKENDS
from jit.codegen import lower
from jit.failures import InternalFailure
from jit.frame import decode, dispatch
from jit.graph import registry
from jit.reasons import KINDS
from jit.torch_private import fsdp_states

PROGRAMS = {}


class Program:
    """A function, how its arguments are made, and how it is called: ``call(fn, *args)``."""

    def __init__(self, fn, arguments, call, whole, others):
        self.fn, self.arguments, self.call, self.whole, self.others = fn, arguments, call, whole, others
        self.file = inspect.getsourcefile(fn)
        lines, first = inspect.getsourcelines(fn)
        marked = [first + k for k, line in enumerate(lines) if line.rstrip().endswith("# here")]
        assert len(marked) == 1, f"{fn.__name__} marks {len(marked)} lines"
        self.line = marked[0]


def breaks(kind, *arguments, call=None, whole=False, others=()):
    """Register the program below as one that breaks with this kind.

    Args:
        arguments: functions that make its arguments; the default is one tensor of 4 floats.
        whole: the function as a whole runs in eager.
        others: kinds that are recorded besides.
    """

    def register(fn):
        made = arguments or (lambda: torch.arange(4.0),)
        PROGRAMS[kind] = Program(fn, lambda: tuple(make() for make in made), call or (lambda fn, *args: fn(*args)),
                                 whole, others)
        return fn

    return register


def ones():
    return torch.ones(4)


# -- asked for


@breaks("graph-break")
def _(x):
    y = x + 1
    jit.graph_break("here it goes")  # here
    return y * 2


def with_another_debugger(fn, *args):
    before, sys.breakpointhook = sys.breakpointhook, lambda *args, **kwargs: None
    try:
        return fn(*args)
    finally:
        sys.breakpointhook = before


@breaks("debugger", call=with_another_debugger, whole=True)
def _(x):
    y = x + 1
    breakpoint()  # here
    return y * 2


@jit.disable
def left_alone(x):
    return x + 1


@breaks("disabled")
def _(x):
    return left_alone(x * 2) - 1  # here


# -- the values of tensors


@breaks("data-dependent-branch")
def _(x):
    if x.sum() > 3:  # here
        return [x + 1]
    return x - 1


@breaks("data-dependent-value")
def _(x):
    return x * round(x.sum().item())  # here


@breaks("data-dependent-shape")
def _(x):
    return x[x > 1] * 2  # here


# -- tensors


class Marked(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


@breaks("tensor-subclass")
def _(x):
    return x.as_subclass(Marked).as_subclass(torch.Tensor)  # here


@breaks("tensor-layout", lambda: [torch.eye(3).to_sparse()])
def _(p):
    return p.pop().to_dense() + 1  # here


@breaks("lazy-conjugate", lambda: [torch.ones(3, dtype=torch.complex64).conj()])
def _(p):
    return p.pop().resolve_conj().abs() + 1  # here


@breaks("device")
def _(x):
    y = torch.zeros(4, device="meta")
    y[:] = x  # here
    return x + y.size(0)


@breaks("functorch", call=lambda fn, x: torch.vmap(fn)(x), whole=True)  # here
def _(x):
    return x + 1


class Counting(TorchFunctionMode):
    def __torch_function__(self, fn, kinds, args=(), kwargs=None):
        return fn(*args, **(kwargs or {}))


def under_a_mode(fn, x):
    with Counting():
        return fn(x)


@breaks("torch-mode", call=under_a_mode, whole=True)  # here
def _(x):
    return x + 1


@breaks("large-constant")
def _(x):
    return torch.tensor([float(i) for i in range(100)]).sum() + x  # here


@breaks("tensor-attribute")
def _(x):
    return x, x.untyped_storage()  # here


@breaks("autograd")
def _(x):
    return x.requires_grad_().requires_grad  # here


@breaks("gradient", ones, lambda: torch.ones(4, requires_grad=True),
        call=lambda fn, *args: torch.enable_grad()(fn)(*args), whole=True)
def _(x, w):
    y = (x * w).detach()
    y.mul_(w)  # here
    return y


@breaks("lazy-module", lambda: [torch.nn.UninitializedParameter()], whole=True)
def _(p):
    return p.pop() + 1  # here


# -- operations of PyTorch


@breaks("unknown-function")
def _(x):
    return x.is_set_to(x), x + 1  # here


@breaks("torch-argument")
def _(x):
    return x.apply_(lambda v: v + 1) * 2  # here


LENGTHS = torch.tensor([2])


@breaks("no-shape-rule")
def _(x):
    return torch._pack_padded_sequence(x.reshape(1, -1, 1), LENGTHS, True)[0] + 1  # here


FOREIGN = torch.library.Library("jit_break_reasons", "FRAGMENT")
FOREIGN.define("twice(Tensor x) -> Tensor")
FOREIGN.impl("twice", lambda x: x * 2, "CPU")


@breaks("foreign-operator")
def _(x):
    return torch.ops.jit_break_reasons.twice(x + 1) + 1  # here


KERNEL = InterpretedFunction(lambda x: None)


@breaks("triton-kernel")
def _(x):
    KERNEL.run(x, grid=(1,), warmup=True)  # here
    return x + 1


@breaks("mutating-op")
def _(x):
    x.unsqueeze_(0)  # here
    return x + 1


@breaks("out-argument", ones, lambda: torch.ones(2, 3)[0])
def _(x, y):
    return torch.exp(torch.ones(7), out=y) + x.sum()  # here


def pair():
    a = torch.ones(4)
    return [a, a.view(torch.int32)]


@breaks("aliased-mutation", pair)
def _(p):
    a, b = p
    a.add_(1)  # here
    return a + 1, b * 2


@breaks("overlapping-memory")
def _(x):
    x.add_(1)
    return x.as_strided((2, 2), (1, 1)) + 1  # here


@breaks("tensor-select", ones, lambda: torch.tensor(2))
def _(x, i):
    part = x[i]
    x.add_(1)  # here
    return part * 2


@breaks("autocast", call=lambda fn, x: torch.autocast("cpu")(fn)(x))
def _(x):
    return torch.cat([x.half(), x.half()])  # here


@breaks("global-state")
def _(x):
    torch.manual_seed(2.0)  # here
    return torch.randperm(4) + x


@breaks("numpy")
def _(x):
    return numpy.sin(x) + 1  # here


def with_rule(table, name, value, fn, x):
    """``fn(x)`` while an entry of one of the compiler's tables is another, or is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table, name, value) if value is not None else patch.delitem(table, name)
        return fn(x)


@breaks("kernel", call=lambda fn, x: with_rule(lower.LOWER, "erf", None, fn, x), whole=True)
def _(x):
    return torch.erf(x)  # here


def faulty(*args, **kwargs):
    raise AttributeError("a fault in a rule")


def with_faulty_rule(fn, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InternalFailure)
        return with_rule(registry.OPS, "frac", dataclasses.replace(registry.OPS["frac"], fn=faulty), fn, x)


@breaks("internal", call=with_faulty_rule)
def _(x):
    return torch.frac(x) + 1  # here


# -- calls


@breaks("c-call")
def _(x):
    return x * zlib.crc32(b"text")  # here


@breaks("call")
def _(x):
    try:
        return x()  # here
    except TypeError as error:
        return str(error)


@breaks("forbidden-call")
def _(x):
    time.sleep(0)  # here
    return x + 1


@breaks("argument-error")
def _(x):
    try:
        return max(*5)  # here
    except TypeError as error:
        return str(error)


@breaks("instantiate", others=("c-call",))
def _(x):
    return x + array.array("d", [1.0])[0]  # here


LOGGER = logging.getLogger("program")
LOGGER.isEnabledFor(logging.WARNING)


@breaks("logging")
def _(x):
    LOGGER.warning("text", stack_info=True)  # here
    return x + 1


@breaks("warning", call=lambda fn, x: warned(fn, x))
def _(x):
    warnings.warn(UserWarning("text"))  # here
    return x + 1


def warned(fn, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fn(x)


def unloaded(fn, x):
    sys.modules.pop("colorsys", None)
    return fn(x)


@breaks("import", call=unloaded)
def _(x):
    import colorsys  # here

    return x + colorsys.rgb_to_hsv(1.0, 0.0, 0.0)[1]


@functools.lru_cache
def doubled(x):
    return x * 2


@breaks("cached-function")
def _(x):
    y = x + 1
    return doubled(y) + 1  # here


@breaks("frame-inspection")
def _(x):
    return x + (len(inspect.stack()) > 0)  # here


class Shapes:
    @functools.singledispatchmethod
    def area(self, x):
        return x


@breaks("singledispatch", ones, Shapes)
def _(x, shapes):
    return shapes.area(x) + 1  # here


@breaks("too-deep")
def _(x):
    def down(n):
        return down(n - 1) if n else x  # here

    return down(300) + 1


@breaks("long-loop")
def _(x):
    return x + max(iter(range(100_001)))  # here


# -- Python objects


class Plain:
    pass


@breaks("attribute", ones, Plain)
def _(x, p):
    return x + len(dir(p))  # here


class Pair(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_int)]


@breaks("descriptor", ones, lambda: Pair(1, 2))
def _(x, p):
    return x + p.a  # here


class Counter:
    total = 0


MODULE = torch.nn.Linear(1, 1)


@breaks("class-attribute")
def _(x):
    Counter.total = MODULE  # here
    return x * 2


@breaks("class-statement")
def _(x):
    class Local(metaclass=type):  # here
        n = 3

    return x + Local.n


class Base:
    def go(self, x):
        return x + 1


class Derived(Base):
    def go(self, x):
        return x - 1


@breaks("super")
def _(x):
    return x + (super(Derived) is not None)  # here


@breaks("special-method")
def _(x):
    try:
        return slice(0, 1)[0]  # here
    except TypeError as error:
        return str(error)


SHORT, LONG = datetime.timedelta(1), datetime.timedelta(2)


@breaks("operator")
def _(x):
    return x + (1 if SHORT < LONG else 2)  # here


PLAIN = Plain()


@breaks("format")
def _(x):
    return str(PLAIN), x + 1  # here


class Half:
    def __float__(self):
        return 0.5


@breaks("not-constant", ones, Half)
def _(x, half):
    return x + math.sqrt(half)  # here


@breaks("identity")
def _(x):
    return ((x + 1).__hash__() == 1) * x  # here


class Key(tuple):
    def __hash__(self):
        return 3


@breaks("unhashable")
def _(x):
    return {Key((1,)): x}  # here


def unset_cell():
    def program(x):
        try:
            return x + later  # here
        except NameError as error:
            return str(error)

    if not unset_cell:
        later = 1
    return program


breaks("cell", others=("not-resumable",))(unset_cell())


@breaks("iterate")
def _(x):
    return [v + 1 for v in reversed(x)]  # here


@breaks("opaque-container", ones, lambda: types.MappingProxyType({"a": 1}), whole=True)  # here
def _(x, m):
    return x + m["a"]


@breaks("container-length", ones, lambda: [],
        call=lambda fn, x, seen: [(seen.append(x), fn(x, seen)) for _ in range(9)])
def _(x, seen):
    return x + torch.stack(seen).sum(0)  # here


@breaks("iterator-position", ones, lambda: iter(range(9)), call=lambda fn, x, it: [fn(x, it) for _ in range(6)])
def _(x, it):
    return x + next(it)  # here


@breaks("iterator-escapes", whole=True)
def _(x):
    return iter(x.split, None)  # here


class Finalized:
    def __del__(self):
        pass


@breaks("finalizer", ones, Finalized, others=("not-resumable",))
def _(x, held):
    held = None  # noqa: F841  # here
    return x + 1


@breaks("rebuild", ones, Derived, whole=True)
def _(x, d):
    return super(Derived, d)  # here


# -- statements and whole functions


@breaks("opcode")
def _(x):
    try:
        raise ExceptionGroup("several", [ValueError("v")])
    except* ValueError:  # here
        x = x + 1
    return x


@breaks("raises", whole=True)
def _(x):
    raise ValueError("v")  # here


async def later(x):
    yield x + 1


@breaks("generator-target", call=lambda fn, x: type(fn(x)).__name__, whole=True)  # here
async def _(x):
    yield x + 1


@breaks("async")
def _(x):
    made = later(x)  # here
    return x + 1, type(made).__name__


@breaks("not-resumable", others=("forbidden-call",), whole=True)
def _(x):
    return eval("x + 1")  # here


@breaks("python-version", call=lambda fn, x: with_no_table(fn, x), whole=True)  # here
def _(x):
    return x + 1


def with_no_table(fn, x):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_TABLE", None)
        return fn(x)


# -- the tests


def in_a_group(fn, *args):
    """The call in a process that is a group of its own."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        return fn(*args)
    finally:
        dist.destroy_process_group()


@breaks("collective", call=in_a_group)
def a_collective_of_a_tensor_with_gaps(x):
    y = x * 2
    dist.all_reduce(y[::2])  # here
    return y + 1


class Gathers(fsdp_states() or object):
    """In the place of FSDP's own hooks."""

    def hook(self, module, args):
        return None


def sharded():
    module = torch.nn.Linear(4, 4)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.ones_(module.bias)
    module.hooks = Gathers()
    module._forward_pre_hooks[0] = module.hooks.hook
    return module


@breaks("sharded-module", lambda: torch.arange(4.0), sharded)
def a_module_that_is_sharded(x, module):
    y = module(x * 2)  # here
    return y + 1


@pytest.mark.parametrize("kind", PROGRAMS)
def test_reason(kind):
    program = PROGRAMS[kind]
    jit.reset()
    with torch.no_grad():
        captures = []
        watched = dispatch.make_dispatcher(program.fn, dispatch.Settings(BACKENDS["jit"], on_capture=captures.append))
        observe(lambda *args: program.call(watched, *args), program.arguments())
        records = [record for captured in captures for record in captured.breaks]
        assert sorted({r.kind for r in records}) == sorted({kind, *program.others}), "\n".join(map(str, records))
        record = next(r for r in records if r.kind == kind)
        assert (record.file, record.line) == (program.file, program.line), str(record)
        assert (record.why and record.hint and record.whole_frame == program.whole
                and re.fullmatch("[0-9a-f]{8}", record.id))
        assert f"[{kind}]" in str(record) and record.hint in str(record)
        compiled = jit.compile(program.fn)
        for _ in range(2):
            want = observe(lambda *args: program.call(program.fn, *args), program.arguments())
            got = observe(lambda *args: program.call(compiled, *args), program.arguments())
            assert want[1:3] == got[1:3]
            same((want[0], want[3]), (got[0], got[3]))


def test_the_id_is_stable():
    def f(x):
        jit.graph_break()
        return x

    first, second = (jit.explain(f)(torch.ones(2)).break_reasons[0] for _ in range(2))
    assert first == second and first.id == second.id


def test_hints_end_as_they_should():
    for kind, reason in KINDS.items():
        assert re.fullmatch("[a-z]+(-[a-z]+)*", kind)
        assert reason.meaning.endswith(".") and reason.hint and not reason.hint.endswith("."), kind
