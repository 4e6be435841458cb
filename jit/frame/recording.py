"""How the program's calls of torch get into the graph: real tensors become inputs, values operands, what the tracer
gives values, and what eager would raise exceptions of the program."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING

import torch

from .. import progress, turns
from ..errors import EagerRaises, Unsupported
from ..graph.backward import make_leaf
from ..graph.dims import Sym
from ..graph.ir import Loc
from ..graph.sym_float import SymFloat, to_words
from ..runtime import facts
from . import resized
from . import source as src
from . import tables
from .tensor_guards import check_supported, guard_place, guard_tensor
from .values import batched, first_reads, read_numbers, unmapped, widened
from .values.base import Raised, Value
from .values.containers import ListValue, TupleValue
from .values.deferred import defer
from .values.new_parameters import refuse_error, refuse_tracked
from .values.numbers import FloatValue
from .values.lifting import lift
from .values.tensor import OWN_MEMBERS, SLOTS, TensorValue

if TYPE_CHECKING:
    from ..graph.handles import Base, TensorHandle
    from .session import Session
    from .values.base import Value

_TORCH = os.path.dirname(torch.__file__) + os.sep
# What PyTorch takes them for.
PYTHON_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
# Of operations that take symbolic floats.
FLOAT_OPERANDS = frozenset(("min", "max", "other", "value", "scalars", "scalar", "alpha", "weight"))


class Recording:
    """The tensors of one capture, and what is done with them.

    Attributes:
        inputs: the graph inputs, in order.
        tensors: id of a handle -> its value.
        copied: (id of the memo of a deep copy, memory) -> the copy of that memory.
        new_leaves, leaves_used: how many parameters were made, and how often one was an operand where gradients are
            recorded; see ``values.new_parameters``.
        region: the number of the checkpointed call that is being executed, 0 for none.
    """

    def __init__(self, s: Session) -> None:
        self.s = s
        self.inputs: list[TensorValue] = []
        self.tensors: dict[int, TensorValue] = {}
        self.copied: dict[tuple[int, Base], TensorHandle] = {}
        self.region = self._regions = self.leaves_used = self.new_leaves = 0
        s.journal.grows(self.inputs)

    def close(self) -> None:
        self.inputs.clear()
        self.tensors.clear()
        self.copied.clear()

    def new_region(self):
        """A context in which a checkpointed call is executed."""
        self._regions += 1
        return self.s.journal.temporarily(self, "region", self._regions)

    def tensor_input(self, value: TensorValue):
        """Make a real tensor a graph input, guarded by its metadata."""
        check_supported(value.obj)
        turns.relies_on(value.obj)
        region = self.s.tracer.region_of(value.obj)
        if region is not None:
            return self.shared_input(value, region)
        history = self.s.varying.history
        dims = set() if history is None else history.tensor_dims(value.source, value.obj)
        strides = set() if history is None else history.tensor_strides(value.source, value.obj)
        handle = self.s.tracer.input(value.obj, value.source, dims, strides)
        with self.s.guards.unheard():  # each input is guarded when it becomes one
            guard_tensor(self.s, value, handle.node.type)
        self.inputs.append(value)
        self.tensors[id(handle)] = value
        self.s.heap.keep(handle)
        return handle

    def shared_input(self, value: TensorValue, region):
        """Make a real tensor a view of the memory that it shares with others; the first one brings that memory as the
        graph input."""
        if value.source is None:
            raise Unsupported("a tensor that the code refers to directly shares memory with one that is changed",
                              "clone one of them", kind="aliased-mutation")
        tensor, (begin, size) = value.obj, region.place(value.obj)
        if region.base is None:
            region.check(self.s.tracer)
            back = region.start - begin
            source = src.FlatMemory(value.source, back, region.count)
            self.s.guards.add(value.source, facts.Room((-back * size, (back + region.count) * size)))
            flat = self.s.tracer.input(region.flat(tensor), source)
            flat.base.region = region
            self.s.tracer.set(region, "base", flat.base)
            self.s.tracer.set(region, "anchor", value)
            self.inputs.append(TensorValue(flat, flat.base.example, source))
            self.s.heap.keep(flat)
        else:
            anchor = region.anchor
            self.s.guards.add(anchor.source, facts.Shares(value.source,
                                                        (begin - region.place(anchor.obj)[0]) * size))
        handle = self.s.tracer.shared_input(region, tensor, value.source)
        guard_tensor(self.s, value, handle.node.type)
        self.tensors[id(handle)] = value
        self.s.heap.keep(handle)
        return handle

    def tensor_of(self, handle) -> TensorValue:
        value = self.tensors.get(id(handle))
        if value is None:
            value = self.tensors[id(handle)] = TensorValue(handle)
            self.s.heap.keep(handle)
        return value

    def traced(self, fn) -> Value:
        """Run a tracer operation; what eager would raise becomes an exception of the program."""
        try:
            return lift(self.s, fn())
        except EagerRaises as raised:
            for value in list(self.tensors.values()) if raised.bases else ():
                if value.obj is not None and value.handle(self.s).base in raised.bases:
                    guard_place(self.s, value)
            raise Raised(self.s.exception(raised.error)) from None

    def torch_call(self, fn, args, kwargs: dict[str, Value]) -> Value:
        """A torch callable, as the program calls it."""
        if tables.spread_call is not None and holds_spread(self.s, (*args, *kwargs.values())):
            return tables.spread_call(self.s, fn, args, kwargs)
        if self.s.asker.concerns(args, kwargs):
            return self.s.asker.call(fn, args, kwargs)
        for value, name in zip(args, SLOTS.get(fn, ())):
            if value.is_tensor and name is not None:
                self.tensor_slot(value.cls, name)
                break
        if batched.active(self.s):
            return batched.call(self.s, fn, args, kwargs)
        drawn = tables.mapped_draw(self.s, fn, args, kwargs) if self.s.levels else None
        if drawn is not None:
            return drawn
        return (resized.record(self.s, fn, args, kwargs) if "out" in kwargs and not kwargs["out"].is_nothing(self.s)
                else self.record(fn, args, kwargs))

    def read_later(self, fn, tensor: TensorValue, hint: str) -> Value:
        """``fn(tensor)``, of a tensor whose value is not known: ``bool``, ``int`` or ``float``."""
        found = None if self.s.lazy_reads else first_reads.read(self.s, tensor, f"__{fn.__name__}__")
        if found is not None:
            return found
        error = Unsupported(f"{fn.__name__}() of a tensor reads its value", kind="data-dependent-value", hint=hint)
        dtype = tensor.handle(self.s).dtype
        if fn is int and dtype.is_floating_point or fn is not bool and dtype.is_complex:
            raise error  # NaN is no integer, and a complex number no real one
        return defer(self.s, fn, [tensor], {}, error)

    def tensor_slot(self, cls, name: str) -> None:
        """Guard that a special method of tensors is PyTorch's own. Raises Unsupported where it is not."""
        raw = self.s.class_lookup(cls, name)[1]
        if raw is not OWN_MEMBERS.get(name):
            raise Unsupported(f"torch.Tensor.{name}, which the program has replaced by its own", kind="operator")

    def record(self, fn, args, kwargs: dict[str, Value]) -> Value:
        """Record a torch callable."""
        progress.tick()
        if "requires_grad" in kwargs and self.makes_leaf(fn, kwargs["requires_grad"]):
            made = self.record(fn, args, {k: v for k, v in kwargs.items() if k != "requires_grad"})
            if not self.s.levels or not made.handle(self.s).dtype.is_floating_point:
                return made.call_method(self.s, "requires_grad_")
            make_leaf(self.s.tracer, made.handle(self.s))
            return made
        if any(v.is_read for v in kwargs.values()):
            args, kwargs = read_numbers.scaled(self.s, fn, args, kwargs)
        if any(v.is_read for v in args):
            args = read_numbers.operands(self.s, fn, args)
        takes, leaves = self.s.tracer.takes_sym_floats(fn), self.leaves_used
        low = [self.operand(a) if takes else a.lower(self.s) for a in args]
        low_kw = {k: self.operand(v) if takes and k in FLOAT_OPERANDS else v.lower(self.s) for k, v in kwargs.items()}
        if isinstance(low_kw.get("dtype"), type):
            low_kw["dtype"] = PYTHON_DTYPES.get(low_kw["dtype"], low_kw["dtype"])
        if fn is not torch.Tensor.type:  # which takes no classes of Python's
            low = [PYTHON_DTYPES.get(a, a) if isinstance(a, type) else a for a in low]
        own = []

        def call():
            result = self.s.tracer.call(fn, low, low_kw, loc=self.location())
            own.extend(a for a, given in zip(args, low) if given is result and type(result) is list)
            return result

        nodes = self.s.tracer.builder.nodes
        first, start = len(nodes), self.s.tracer.builder.next_id
        elsewhere = [(a, a.handle(self.s).base.version) for a in args if a.is_tensor and a.elsewhere]
        try:
            value = self.traced(call)
        except Unsupported as error:
            return defer(self.s, fn, args, kwargs, error)
        except Raised as raised:
            if self.leaves_used != leaves:
                refuse_error()
            if self.s.is_exception(raised.value, TypeError) and any(map(has_own_class, (*args, *kwargs.values()))):
                raise Unsupported("an error of PyTorch whose text may name the class of an argument",
                                  kind="argument-error") from None
            if self.s.levels and (self.s.in_a_map or self.s.tracer.forward_mode):
                raise Unsupported("an error of PyTorch inside torch.vmap or torch.func.jvp, which may be another there",
                                  kind="functorch") from None
            raise
        if self.leaves_used != leaves:
            refuse_tracked(fn, value)
        if self.s.levels:
            unmapped.note(self.s, (*args, *kwargs.values()), value)
            unmapped.lay_out(self.s, fn, low, low_kw, value, start)
            if self.s.tracer.forward_mode == len(self.s.levels):
                widened.note(self.s, fn, args, kwargs, value)
        if self.s.states.now:
            self.s.states.check(nodes[first:])
        for a, version in elsewhere:
            if a.handle(self.s).base.version != version:  # the memory's own version counter is the other object's
                self.s.effect(torch.autograd.graph.increment_version, [a])
        return own[0] if own else value  # a list that is given back is the very list

    def makes_leaf(self, fn, asked: Value) -> bool:
        """Whether a new tensor that requires grad is one that PyTorch's own code makes for itself, to differentiate
        with respect to it: one of the program's is left to eager, which hands it out."""
        own = bool(self.s.frames) and self.s.frames[-1].where()[0].startswith(_TORCH)
        return own and fn is not torch.Tensor.requires_grad_ and asked.is_const() and asked.const(self.s) is True

    def location(self) -> Loc | None:
        """The Loc of the instruction being executed, or None."""
        if not self.s.frames:
            return None
        where = self.s.frames[-1].where()
        if not where[0].startswith(_TORCH):
            return Loc(*where, None, self.region)
        user = next((f for f in reversed(self.s.frames) if not f.fn.code.co_filename.startswith(_TORCH)), None)
        return Loc(*where, None if user is None else user.where(), self.region)

    def operand(self, value):
        """An argument for the tracer, in which symbolic floats, also those in a list, stay so."""
        if value.symbolic is float:
            return self.float_operand(value)
        elements = value.load(self.s) if type(value) is ListValue else ()
        if any(v.symbolic is float for v in elements):
            return [self.operand(v) for v in elements]
        return value.lower(self.s)

    def float_operand(self, value: FloatValue) -> SymFloat:
        """A symbolic float as an operand for the tracer: its halves are integers that the plan is given."""
        if to_words(value.value) is None:
            return value.const(self.s)
        if value.operand is None:
            env = self.s.tracer.env
            words = []
            for kind, word in zip(("float_low", "float_high"), to_words(value.value)):
                name = f"f{len(env.origins)}"
                env.origins[name] = (value, kind)
                words.append(Sym(name, word, lo=-(1 << 31), hi=(1 << 31) - 1, env=env))
            self.s.set_field(value, "operand", SymFloat(*words, value.value, lambda: value.const(self.s)))
        return value.operand


def holds_spread(s: Session, values) -> bool:
    """Whether there is a DTensor among the arguments of a call."""
    return any(v.is_spread or not v.is_tensor and holds_spread(s, v.nested(s) or ()) for v in values)


def has_own_class(value) -> bool:
    """Whether a container is of a class derived from the builtin one, or a number of an enumeration."""
    if type(value) in (ListValue, TupleValue) and value.cls is value.builtin and value._elements is not None:
        return any(map(has_own_class, value._elements))
    return (value.is_leaf and isinstance(value.value, enum.Enum)
            or value.builtin in (tuple, list, dict) and value.cls is not value.builtin)
