"""Values that are read off tensors after the graph has run: ``item()``, ``nonzero()``, ``x[mask]`` and other results
that depend on the data.

Such a call is no step of the graph, and while the program only keeps, stores or returns what it gives, none of the
capture depends on it either. It is made by the rewritten function, on results of the graph. Whatever else the program
does with the value needs to know it: that is the graph break.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Callable

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph.binding import resolve
from ...graph.dims import Dim, hint
from ...graph.op_info import op_info
from ...graph.probe import StandIns, ask
from ...graph.refusals import keep_sizes
from ..assumptions import Reconsider
from . import first_reads, read_numbers
from .base import Value
from ..states.grad_mode import GRAD_MODE
from .constant import Constant
from .numbers import DimValue
from .containers import ListValue, TupleValue
from .slices import SliceValue
from .numbers import FloatValue
from .tensor import TensorValue

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ...graph.handles import TensorHandle
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session

KINDS = frozenset(("data-dependent-shape", "data-dependent-value", "no-shape-rule"))
_PYTHON = {f: f.__name__ for f in (torch.unique, torch.unique_consecutive,
                                   torch.Tensor.unique, torch.Tensor.unique_consecutive)}
_PYTHON[bool] = "item"
_READERS = frozenset([torch.Tensor.item, torch.Tensor.tolist, int, bool])
_NESTED = (ListValue, TupleValue, SliceValue)  # but no classes derived from them
_CONFIRM_NUMEL = 1 << 16  # larger arguments are not tried out
KEEPERS = frozenset([isinstance, type, len, id, print, setattr, list.append, list.insert,
                     list.__setitem__, dict.__setitem__, dict.setdefault, dict, collections.deque.append,
                     collections.deque.appendleft])


class Deferred(Value):
    """``fn(*args, **kwargs)``, called when the value is loaded. ``example`` is what it gives for other tensors: only
    its type and, for a tuple, its length tell something. ``error`` is what needing the value now raises; ``may_raise``:
    whether the call may for other values than those that it was tried with."""

    as_tensor: TensorValue | None = None  # see ``read_numbers``
    as_list: bool | None = None  # of ``tolist()``: the program has a list of its parts

    def __init__(self, s: Session, fn: object, args: list[Value], kwargs: dict[str, Value], example: object,
                 error: Unsupported, view: bool, may_raise: bool = False) -> None:
        self.fn, self.args, self.kwargs, self.example, self.error, self.view, self.may_raise = (fn,
            args, kwargs, example, error, view, may_raise)
        self.cls = type(example)
        if error.origin is None and s.frames:
            error.origin = s.frames[-1].where()
        # Whether it is known before the graph runs: see ``first_reads``.
        self.first = any(type(v) is Deferred and v.first for v in args)
        self.state = {id(t): (h.node, h.base.version, h.requires_grad)
                      for t in tensors_in(s, (*args, *kwargs.values())) if (h := t.handle(s))}

    def needed(self, *args: object, **kwargs: object) -> None:
        if self.first:
            raise Reconsider("lazy_reads")
        error = self.error.with_traceback(None)
        error.where, error.user, error.frames = None, None, []  # it happens here
        raise error

    truth = hash_key = setattr = delattr = call = setitem = delitem = next = contains = call_special = needed
    concat = repeat = index = const = needed

    @property
    def is_read(self) -> bool:
        return self.cls in (int, float, bool) and not self.kwargs

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        """Deferred as well, where it cannot raise: of Python's integers and floats. Beside a tensor it is one."""
        if self.is_read and (b if self is a else a).is_tensor:
            return read_numbers.with_tensor(s, op, a, b)
        kinds = {self._number_type(v) for v in (a, b)}
        if not kinds <= {int, float}:
            self.needed()
        if op.symbol not in ("+", "-", "*", "/"):
            self.needed()
        if op.symbol == "/" and float not in kinds:
            self.needed()  # integers may be too large for it
        if op.symbol == "/" and not (type(b) is Constant and b.const(s)):
            return self.unless_raising(s, op.fn, [a, b])
        return Deferred(s, op.fn, [a, b], {}, 1.0 if float in kinds else 1, self.error, False)

    def unless_raising(self, s: Session, fn: Callable, args: list[Value]) -> Value:
        """``fn(*args)``, a float, of numbers for which it is assumed not to raise."""
        if not s.uncertain or type(args[-1]) is Constant:
            self.needed()
        made = Deferred(s, fn, args, {}, 1.0, self.error, False, True)
        read_numbers.tensor_of(s, made)
        return made

    def unary(self, s: Session, op: Unary) -> Value | None:
        if self.cls not in (int, float) or op.symbol == "~":
            self.needed()
        return Deferred(s, op.fn, [self], {}, self.example, self.error, False)

    def absolute(self, s: Session) -> Value:
        if self.cls not in (int, float):
            self.needed()
        return Deferred(s, abs, [self], {}, self.example, self.error, False)

    def to_float(self, s: Session) -> Value:
        if self.cls is float:
            return self
        return self.needed() if self.cls is not int else Deferred(s, float, [self], {}, 1.0, self.error, False)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if not self.is_read:
            self.needed()
        if other.is_tensor:
            return read_numbers.with_tensor(s, op, self, other)
        if not {self.cls, self._number_type(other)} <= {int, float}:
            self.needed()
        return Deferred(s, op.fn, [self, other], {}, True, self.error, False)

    def extreme(self, s: Session, fn: Callable, a: Value, b: Value) -> Value | None:
        """Of two numbers of the same type."""
        if not self.is_read:
            return None
        kinds = {self._number_type(v) for v in (a, b)}
        if kinds not in ({int}, {float}):
            self.needed()
        return Deferred(s, fn, [a, b], {}, kinds.pop()(1), self.error, False)

    def of_floats(self, s: Session, fn: Callable, args: list[Value]) -> Value:
        """``fn`` of ``math``, which is called after the graph has run."""
        known = read_numbers.FUNCTIONS.get(fn)
        if known is None or len(args) != 1 or self.cls not in (int, float):
            self.needed()
        if known.holds is not None:
            return self.unless_raising(s, fn, args)
        return Deferred(s, fn, args, {}, 1.0, self.error, False)

    @staticmethod
    def _number_type(value) -> type | None:
        if type(value) is Deferred:
            return value.cls
        return type(value.value) if type(value) is Constant else {FloatValue: float, DimValue: int}.get(type(value))

    def has_index(self, s: Session) -> bool:
        return issubclass(self.cls, (int, torch.Tensor)) and self.needed()

    def told_apart(self, s: Session, other: Value) -> None:
        """Only that it is not None is known."""
        if not (type(other) is Constant and other.value is None):
            self.needed()

    def pytype(self, s: Session) -> type:
        return self.cls

    def part(self, s: Session, fn: Callable, key: int) -> Value:
        """One of several results."""
        return Deferred(s, fn, [self, Constant(key)], {}, fn(self.example, key), self.error, self.view)

    def is_tuple(self) -> bool:
        return isinstance(self.example, tuple) and not self.view

    def length(self, s: Session) -> IntExpr:
        return len(self.example) if self.is_tuple() else self.needed()

    def getitem(self, s: Session, key: Value) -> Value:
        if self.is_tuple() and key.is_slice and key.is_const():
            return TupleValue([self.part(s, operator.getitem, k) for k in range(len(self.example))[key.const(s)]])
        if (not self.is_tuple() or not key.is_leaf or type(key.value) is not int
            or not -len(self.example) <= key.value < len(self.example)):
            self.needed()
        return self.part(s, operator.getitem, key.const(s))

    def getattr(self, s: Session, name: str) -> Value:
        return (self.part(s, getattr, name) if self.is_tuple() and name in getattr(self.cls, "__match_args__", ())
                else self.needed())

    def iter(self, s: Session) -> Value:
        return s.iterate([self.part(s, operator.getitem, k) for k in range(self.length(s))])

    def emit(self, e: Emitter) -> None:
        e.load_after_graph(self, self.fn, [self.then(e.session, a) for a in self.args],
                           {k: self.then(e.session, a) for k, a in self.kwargs.items()}, self.may_raise)

    def then(self, s: Session, v: Value) -> Value:
        """An argument as it was at the time of the call: tensors may have been written since."""
        if v.is_tensor:
            node, version, grad = self.state[id(v)]
            handle = v.handle(s)
            if handle.base.version == version:
                return v
            if self.view:
                self.needed()
            return s.recording.tensor_of(s.tracer.fresh(s.tracer.builder.clone(node, node.type.strides), grad))
        parts = v.nested(s)
        return v if parts is None else v.with_nested([self.then(s, p) for p in parts])

    def truth_of(self, s: Session) -> Value | None:
        """The tensor whose truth this is: ``bool(tensor)``; None for all else."""
        if self.fn is bool and self.args[0].is_tensor:
            return self.then(s, self.args[0])
        if self.cls is not bool or not all(a.is_read or a.is_leaf for a in self.args):
            return None
        with s.speculate():
            return read_numbers.tensor_of(s, self)
        return None

    def lower(self, s: Session) -> object:
        if self.first:
            raise Reconsider("lazy_reads")
        return super().lower(s)

    def describe(self) -> str:
        return "a value that is read off a tensor"


def only_keeps(fn: Callable) -> bool:
    """Whether a C function looks at no more than the types of its arguments, or puts them somewhere."""
    try:
        return fn in KEEPERS
    except TypeError:
        return False


def tensors_in(s: Session, values: Iterable[Value]) -> Iterator[TensorValue]:
    """The tensors in nested arguments."""
    for v in values:
        if v.is_tensor:
            yield v
        else:
            yield from tensors_in(s, v.nested(s) or ())


def _plain(s: Session, v: Value) -> bool:
    """Whether an argument can be kept: tensors, constants, and tuples, lists and slices of them."""
    parts = v.nested(s)
    return v.can_wait if parts is None else type(v) in _NESTED and all(_plain(s, p) for p in parts)


def _go_together(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value],
                 handles: list[TensorHandle]) -> bool:
    """Whether a call takes tensors of other sizes too, as long as those symbolic ones that are equal now stay so, which
    becomes a fact."""
    sizes = [n for h in handles for n in h.type.shape]
    symbolic = [n for n in sizes if type(n) is Dim]
    now = list(dict.fromkeys(map(hint, symbolic)))
    if any(n in now for n in sizes if type(n) is not Dim):
        return False
    for step in (1, 2, 5):
        others = {n: n + step * (k + 1) for k, n in enumerate(now)}
        if _probed(s, fn, args, kwargs, 0, others) is None:
            return False
    first = {hint(n): n for n in reversed(symbolic)}
    return all(n == first[hint(n)] for n in symbolic)


def _probed(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value], fill: int,
            sizes: dict[int, int] | None = None) -> tuple[object, bool] | None:
    """(what ``fn`` gives for tensors of the same shapes, or with some sizes replaced, that hold zeros or ones, whether
    that is a view of one of them); None where it raises."""
    answer = ask(fn, [a.probed(s) for a in args], {k: v.probed(s) for k, v in kwargs.items()},
                 StandIns(fill, sizes=sizes))
    if answer.error is not None:
        return None
    made, example = set(map(torch_private.storage_id, answer.given.tensors)), answer.result
    parts = example if isinstance(example, tuple) else (example,)
    return example, any(isinstance(v, torch.Tensor) and v.layout is torch.strided
                        and torch_private.storage_id(v) in made for v in parts)


def name_of(fn: object) -> str:
    """The name of what a callable that may be deferred does, or None."""
    if fn in _PYTHON:
        return _PYTHON[fn]
    binding = resolve(fn)
    may = binding is not None and binding.python is None and op_info(binding.name).deferrable
    return binding.name if may else None


def may_raise(fn: object, name: str, handles: list[TensorHandle]) -> bool:
    """Whether a call that may be deferred refuses some values of its tensors."""
    if name == "__getitem__":
        return any(h.dtype not in (torch.bool, torch.uint8) for h in handles[1:])
    return op_info(name).raises_late or fn is int and handles[0].dtype.is_floating_point


def defer(s: Session, fn: object, args: list[Value], kwargs: dict[str, Value], error: Unsupported) -> Deferred:
    """The result of ``fn`` as a deferred value. Raises ``error`` where the call cannot be made later, or may raise."""
    name = name_of(fn) if error.kind in KINDS else None
    if name is None or "out" in kwargs or not all(_plain(s, v) for v in (*args, *kwargs.values())):
        raise error
    if s.in_a_map or s.tracer.autocast:
        raise error
    handles = [t.handle(s) for t in tensors_in(s, (*args, *kwargs.values()))]
    if not handles or any(h.type.is_symbolic for h in handles) and name == "item":
        raise error
    if sum(hint(h.type.numel) for h in handles) > _CONFIRM_NUMEL:
        raise error
    if s.states.differs(GRAD_MODE) and any(h.requires_grad for h in handles):
        raise error
    tried = _probed(s, fn, args, kwargs, 0)
    if tried is None and name == "tensor_split":
        tried = _probed(s, fn, args, kwargs, 1)  # into no parts at all is an error
    if tried is None:
        raise error
    example, view = tried
    refuses = may_raise(fn, name, handles)
    if refuses and not s.uncertain:
        raise error
    if len(handles) > 1 and not _go_together(s, fn, args, kwargs, handles):
        keep_sizes(handles)  # that they go together has been tried for these
    made = Deferred(s, fn, list(args), dict(kwargs), example, error, view, refuses)
    made.first = s.lazy_reads and fn in _READERS and first_reads.possible(s, handles[0])
    return read_numbers.elements(s, made) if name == "tolist" else made


def number_read(s: Session, tensor: TensorValue) -> Value:
    """The number that an operator has given beside its tensors: read off a tensor of the graph (``number_results``)."""
    error = Unsupported("a number that an operator returns is read before the graph has run",
                        kind="data-dependent-value")
    example = torch.zeros((), dtype=tensor.handle(s).dtype).item()
    apart = s.recording.tensor_of(s.tracer.fresh(s.tracer.builder.detach(tensor.handle(s).node)))
    return Deferred(s, torch.Tensor.item, [apart], {}, example, error, False)
