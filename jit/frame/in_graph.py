"""Functions that the program says belong into the graph, by ``allow_in_graph``: what cannot be followed by its bytecode
is run once, while capturing, on stand-ins for tensors that record what is done with them.

What else such a function does, it does while capturing and not at each call; that is what the program has agreed to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from .. import torch_private
from ..errors import JitError, Unsupported
from ..graph.dims import Dim, specialize
from ..graph.handles import SymSize, TensorHandle
from ..graph.nested import holds, replaced
from .values.base import Raised
from .values.containers import ListValue, TupleValue
from .values.lifting import lift
from .values.mappings import DictValue

if TYPE_CHECKING:
    from .session import Session
    from .values.base import Value


def call(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value],
         follow: Callable[[], Value] | None = None) -> Value:
    """A call of such a function; ``follow()`` follows its bytecode, where it has any."""
    refusal = None
    if follow is not None:
        with s.speculate() as attempt:
            return follow()
        refusal = attempt.refusal
    with s.speculate() as attempt:
        return run(s, fn, args, kwargs)
    assert attempt.refusal is not None
    if refusal is None:
        raise attempt.refusal
    refusal.why += f"; and run on stand-ins for tensors: {attempt.refusal.why}"
    raise refusal


def run(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The value of ``fn`` run on stand-ins."""
    mode = Recorded(s)
    low, low_kw = mode.stand_ins(([a.lower(s) for a in args], {k: v.lower(s) for k, v in kwargs.items()}))
    first, before = len(s.tracer.builder.nodes), s.tracer.grad_enabled
    try:
        with torch.set_grad_enabled(before), mode:
            result = fn(*low, **low_kw)
    except (JitError, Raised):
        raise
    except Exception as error:  # of code that takes no stand-ins, or of the program's own; eager code tells which
        raise Unsupported(f"{getattr(fn, '__qualname__', fn)} raises {type(error).__name__}: {error}",
                          kind="call") from None
    finally:
        s.tracer.set_grad_enabled(before)
    if s.states.now:
        s.states.check(s.tracer.builder.nodes[first:])
    return value_of(s, result)


def value_of(s: Session, result: Any) -> Value:
    """The value of a result: of tensors, sizes and plain data, also nested."""
    if isinstance(result, StandIn):
        return lift(s, handle_of(result))
    if isinstance(result, torch.Tensor):
        raise Unsupported("a result is a tensor that was made of no stand-in", kind="call")
    if type(result) is dict:
        keys = [(s.from_python(k), value_of(s, v)) for k, v in result.items()]
        return DictValue({k.hash_key(s): (k, v) for k, v in keys})
    if type(result) is list:
        return ListValue([value_of(s, v) for v in result])
    if type(result) is tuple:
        return TupleValue([value_of(s, v) for v in result])
    return lift(s, replaced(StandIn, handle_of, result))


class StandIn(torch.Tensor):
    """Stands for a tensor of the graph in running Python code. It is a tensor without memory, so that it passes for
    one, and all that PyTorch is asked to do with it goes to the mode ``Recorded``."""

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Unsupported(f"{getattr(func, '__qualname__', func)} of a stand-in, outside of its function", kind="call")

    def __setattr__(self, name: str, value: object) -> None:
        raise Unsupported(f"attribute {name!r} of a tensor is set", kind="tensor-attribute")


def handle_of(stand_in: StandIn) -> TensorHandle:
    return vars(stand_in)["_jit_handle"]


class Recorded(TorchFunctionMode):
    """Records what is done with stand-ins, and what makes tensors of none, such as ``torch.rand``; the tracer follows
    ``torch.no_grad``. What the tracer does itself is not recorded."""

    def __init__(self, s: Session) -> None:
        super().__init__()
        self.s, self.inside = s, False
        self.known: dict[int, StandIn] = {}  # by the id of a handle, which its stand-in holds

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.inside:
            if func is torch_private.set_grad_enabled:
                self.s.tracer.set_grad_enabled(args[0])
            elif holds(StandIn, (args, kwargs)) or self.s.tracer.supports(func):
                self.inside = True
                try:
                    return self.stand_ins(self.recorded(func, *replaced(StandIn, handle_of, (args, kwargs))))
                finally:
                    self.inside = False
        return func(*args, **kwargs)

    def recorded(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """What the tracer gives for a call of a function, or for an attribute, which is asked for by its descriptor."""
        owner, what = getattr(func, "__self__", None), getattr(func, "__name__", "")
        if what in ("__set__", "__delete__"):
            raise Unsupported(f"attribute {owner.__name__!r} of a tensor is set", kind="tensor-attribute")
        if what == "__get__":
            return self.s.tracer.attribute(args[0], owner.__name__)
        result = self.s.tracer.call(func, args, kwargs, self.s.tracer.builder.loc)
        if type(result) is Dim and what in ("__len__", "__index__", "__int__"):
            return specialize(result)  # Python takes nothing but an integer
        return result

    def stand_ins(self, v: Any) -> Any:
        """Handles, also nested ones, as stand-ins; sizes that are known as ``torch.Size``."""
        if isinstance(v, SymSize):
            return v if holds(Dim, v) else torch.Size(v)
        return replaced(TensorHandle, self.stand_in, v)

    def stand_in(self, handle: TensorHandle) -> StandIn:
        found = self.known.get(id(handle))
        if found is None:
            self.inside, before = True, self.inside
            found = self.known[id(handle)] = torch.empty(0, device="meta").as_subclass(StandIn)
            self.inside = before
            value = self.s.recording.tensors.get(id(handle))
            vars(found)["_jit_handle"] = handle
            if value is not None and issubclass(value.cls, torch.nn.Parameter):
                vars(found)["_is_param"] = True  # by which isinstance(t, torch.nn.Parameter) tells
        return found
