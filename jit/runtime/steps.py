"""The steps of a plan, a class each: its fields, which slots it reads, writes and makes, whether it may raise, how it
prints, what it means, and its record, which the native executor interprets.

Slots hold tensors or memory, registers hold integers; see ``plan.py``. Wherever a step takes sizes, strides, an offset,
a grid or ints it takes numbers of registers. Sizes, strides and offsets count elements, arenas bytes.

``run`` is the meaning of a step in Python, on CPU tensors, for tests: its ``machine`` has ``slots``, ``regs``,
``values`` (of several registers) and ``kernel`` (see ``jit.codegen.reference``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch

from jit import torch_private
from jit.runtime.result_numbers import as_tensor


def numbers(names: Sequence[str], regs: Sequence[int]) -> str:
    """Registers in print, given what each of them is called."""
    return "[" + ", ".join(names[r] for r in regs) + "]"


def tensors(slots: Iterable[int | None], nothing: str = "_") -> str:
    """Slots in print."""
    return ", ".join(nothing if i is None else f"%{i}" for i in slots)


class _Recorded:
    """What a record is made of."""

    kind: ClassVar[str]

    def record(self) -> tuple:
        """What the native executor is given: the kind, then the fields in order."""
        return (self.kind, *[_record(getattr(self, name)) for name in fields_of(type(self))])  # type: ignore[arg-type]


@functools.cache
def fields_of(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields, in order."""
    return tuple(f.name for f in dataclasses.fields(kind))


def _record(value: Any) -> Any:
    if type(value) is tuple:  # most are of numbers
        return tuple([v if type(v) is int else _record(v) for v in value])
    return value.record() if isinstance(value, _Recorded) else value


def _slots(owner: Any, fields: Iterable[str]) -> tuple[int, ...]:
    found: list[int] = []
    for name in fields:
        value = getattr(owner, name)
        if type(value) is int:
            found.append(value)
        else:
            _find(value, found)
    return tuple(found)


def _find(value: Any, found: list[int]) -> None:
    """The slots in a field: a slot, None, an argument of an operator, or several of them."""
    if isinstance(value, int):
        found.append(value)
    elif value is not None:
        for part in value.slots if isinstance(value, Argument) else value:
            if type(part) is int:
                found.append(part)
            else:
                _find(part, found)


# arguments of operators


class Argument(_Recorded):
    """An argument of an operator. ``SLOTS``: the fields that name slots."""

    SLOTS: ClassVar[tuple[str, ...]] = ()

    @property
    def slots(self) -> tuple[int, ...]:
        return _slots(self, self.SLOTS)

    def text(self, names: Sequence[str]) -> str:
        raise NotImplementedError

    def run(self, machine: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Const(Argument):
    """Any object."""

    kind: ClassVar[str] = "const"
    value: object

    def text(self, names: Sequence[str]) -> str:
        return repr(self.value)

    def run(self, machine: Any) -> Any:
        return self.value


@dataclass(frozen=True)
class Slot(Argument):
    """A tensor."""

    kind: ClassVar[str] = "slot"
    SLOTS = ("slot",)
    slot: int

    def text(self, names: Sequence[str]) -> str:
        return f"%{self.slot}"

    def run(self, machine: Any) -> Any:
        return machine.slots[self.slot]


@dataclass(frozen=True)
class Slots(Argument):
    """A list of tensors, or of None."""

    kind: ClassVar[str] = "slots"
    SLOTS = ("items",)
    items: tuple[int | None, ...]

    def text(self, names: Sequence[str]) -> str:
        return f"[{tensors(self.items, 'None')}]"

    def run(self, machine: Any) -> Any:
        return [None if s is None else machine.slots[s] for s in self.items]


@dataclass(frozen=True)
class Reg(Argument):
    """An integer."""

    kind: ClassVar[str] = "reg"
    reg: int

    def text(self, names: Sequence[str]) -> str:
        return names[self.reg]

    def run(self, machine: Any) -> Any:
        return machine.regs[self.reg]


@dataclass(frozen=True)
class Regs(Argument):
    """A list of integers."""

    kind: ClassVar[str] = "regs"
    regs: tuple[int, ...]

    def text(self, names: Sequence[str]) -> str:
        return numbers(names, self.regs)

    def run(self, machine: Any) -> Any:
        return machine.values(self.regs)


@dataclass(frozen=True)
class Several(Argument):
    """A list of arguments."""

    kind: ClassVar[str] = "list"
    SLOTS = ("items",)
    items: tuple[Argument, ...]

    def text(self, names: Sequence[str]) -> str:
        return "[" + ", ".join(a.text(names) for a in self.items) + "]"

    def run(self, machine: Any) -> Any:
        return [a.run(machine) for a in self.items]


@dataclass(frozen=True)
class Wanted(Argument):
    """In a ``Vjp``: the tensor in its ``wanted[position]``."""

    kind: ClassVar[str] = "wanted"
    position: int

    def text(self, names: Sequence[str]) -> str:
        return f"wanted[{self.position}]"


# steps


class Step(_Recorded):
    """What a plan does at once.

    A class names its fields by what happens to the slots in them: ``READS`` the tensors of some, ``WRITES`` the memory
    of others, ``MAKES`` tensors for these and ``FREES`` those; what it makes lies in the memory of the slot in the
    field ``WITHIN``, if it has one. ``KERNEL``: the field that has the kernel that it runs. ``may_raise``: whether it
    can end a call; what cannot may belong to the commit.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()
    MAKES: ClassVar[tuple[str, ...]] = ()
    FREES: ClassVar[tuple[str, ...]] = ()
    WITHIN: ClassVar[str] = ""
    KERNEL: ClassVar[str] = ""
    may_raise: ClassVar[bool] = True

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        return _slots(self, self.READS)

    @functools.cached_property
    def writes(self) -> tuple[int, ...]:
        return _slots(self, self.WRITES)

    @functools.cached_property
    def makes(self) -> tuple[int, ...]:
        return _slots(self, self.MAKES)

    @functools.cached_property
    def frees(self) -> tuple[int, ...]:
        return _slots(self, self.FREES)

    @property
    def slots(self) -> tuple[int, ...]:
        """Every slot that it names but to empty it."""
        return (*self.makes, *self.reads, *self.writes)

    @property
    def part_of(self) -> int | None:
        """The slot in whose memory the tensor that it makes lies."""
        return getattr(self, self.WITHIN) if self.WITHIN else None

    def text(self, names: Sequence[str]) -> str:
        raise NotImplementedError

    def run(self, machine: Any) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Alloc(Step):
    """A fresh tensor; CPU memory comes from the pool, CUDA memory from torch's caching allocator. Memory is not
    initialised."""

    kind: ClassVar[str] = "alloc"
    MAKES = ("slot",)
    slot: int
    dtype: torch.dtype
    device: torch.device | str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def text(self, names: Sequence[str]) -> str:
        return (f"%{self.slot} = alloc {str(self.dtype)[6:]} {self.device} {numbers(names, self.sizes)} strides "
                f"{numbers(names, self.strides)}")

    def run(self, machine: Any) -> None:
        machine.slots[self.slot] = torch.empty_strided(machine.values(self.sizes), machine.values(self.strides),
                                                       dtype=self.dtype)


@dataclass(frozen=True)
class Arena(Step):
    """One block of bytes."""

    kind: ClassVar[str] = "arena"
    MAKES = ("slot",)
    slot: int
    device: torch.device | str
    nbytes: int

    def text(self, names: Sequence[str]) -> str:
        return f"%{self.slot} = arena {self.device} {names[self.nbytes]} bytes"

    def run(self, machine: Any) -> None:
        machine.slots[self.slot] = torch.full((machine.regs[self.nbytes],), 0x7B, dtype=torch.uint8)


@dataclass(frozen=True)
class Temp(Step):
    """A tensor inside an arena that is still held; the offset, in bytes, has to be a multiple of the item size (64 for
    kernels that assume alignment)."""

    kind: ClassVar[str] = "temp"
    MAKES, READS, WITHIN = ("slot",), ("arena",), "arena"
    slot: int
    arena: int
    offset: int
    dtype: torch.dtype
    device: torch.device | str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def text(self, names: Sequence[str]) -> str:
        return (f"%{self.slot} = temp %{self.arena} + {names[self.offset]} {str(self.dtype)[6:]} "
                f"{numbers(names, self.sizes)} strides {numbers(names, self.strides)}")

    def run(self, machine: Any) -> None:
        memory, size = machine.slots[self.arena][machine.regs[self.offset] :], self.dtype.itemsize
        memory = memory[: memory.numel() // size * size].view(self.dtype)
        machine.slots[self.slot] = memory.as_strided(machine.values(self.sizes), machine.values(self.strides))


class _Kernel(Step):
    """``written``: the slots whose memory the kernel writes, as far as whoever makes the step says. ``name``: what
    profilers call it (``jit.shown``)."""

    may_raise = False
    READS, WRITES = ("pointers",), ("written",)


@dataclass(frozen=True)
class Call(_Kernel):
    """Calls ``void f(void** pointers, const int64_t* ints)`` with the data pointers of slots."""

    kind: ClassVar[str] = "call"
    KERNEL: ClassVar[str] = "address"
    address: int
    pointers: tuple[int, ...]
    ints: tuple[int, ...]
    written: tuple[int, ...] = ()
    name: str = ""

    def text(self, names: Sequence[str]) -> str:
        return f"call {self.address:#x}({tensors(self.pointers)}; {numbers(names, self.ints)})"

    def run(self, machine: Any) -> None:
        machine.kernel(self.address, self.pointers, self.ints)


@dataclass(frozen=True)
class Launch(_Kernel):
    """Launches a ``GpuKernel`` on torch's current stream of the plan's CUDA device; ``grid`` is three registers."""

    kind: ClassVar[str] = "launch"
    KERNEL: ClassVar[str] = "kernel"
    kernel: Any
    pointers: tuple[int, ...]
    ints: tuple[int, ...]
    grid: tuple[int, ...]
    written: tuple[int, ...] = ()
    name: str = ""

    def text(self, names: Sequence[str]) -> str:
        return (f"launch {self.kernel.name}({tensors(self.pointers)}; {numbers(names, self.ints)}) grid "
                f"{numbers(names, self.grid)}")


@dataclass(frozen=True)
class LaunchTogether(Launch):
    """Several launches of a ``GpuKernel`` that is made for it (``joined``) as one. They need nothing of each other;
    each has the same number of pointers and of ints, and a register of ``grid`` with the number of its programs."""

    kind: ClassVar[str] = "launch_together"

    def text(self, names: Sequence[str]) -> str:
        return (f"launch {len(self.grid)} of {self.kernel.name}({tensors(self.pointers)}; {numbers(names, self.ints)}) "
                f"programs {numbers(names, self.grid)}")


class _Operator(Step):
    """A call of an operator by its arguments."""

    MAKES = ("outs",)
    name: str
    overload: str
    args: tuple[Argument, ...]

    def call(self, names: Sequence[str]) -> str:
        overload = "." + self.overload if self.overload else ""
        return f"{self.name}{overload}({', '.join(a.text(names) for a in self.args)})"


@dataclass(frozen=True)
class Aten(_Operator):
    """A boxed call of ``name`` ("aten::addmm") below autograd and autocast.

    ``args``: one for each argument of the operator's schema, keyword-only ones included. ``outs`` takes the results in
    order (None: not wanted); for an operator that returns one list of tensors, the list's elements. ``expect`` is None
    or, per result, None, (sizes, strides) or (sizes, strides, dtype): other sizes or dtypes raise RuntimeError, other
    strides are copied into the expected ones. ``manners`` are words: "draws" of an operator that moves random
    generators on, "once" of one that may do more than its schema says, "apart" of a collective, which goes on beside
    the plan, "waits" of the wait for one. ``written``: the arguments that it writes.
    """

    kind: ClassVar[str] = "aten"
    READS, WRITES = ("args",), ("written",)
    name: str
    overload: str
    args: tuple[Argument, ...]
    outs: tuple[int | None, ...]
    expect: Optional[tuple] = None
    manners: tuple[str, ...] = ()
    written: tuple[int, ...] = ()

    def text(self, names: Sequence[str]) -> str:
        return f"{tensors(self.outs)} = {self.call(names)}"

    def run(self, machine: Any) -> None:
        fn = getattr(getattr(torch.ops.aten, self.name.split("::")[1]), self.overload or "default")
        arguments = torch_private.schema(fn).arguments
        values, n = [a.run(machine) for a in self.args], sum(not a.kwarg_only for a in arguments)
        result = fn(*values[:n], **{a.name: v for a, v in zip(arguments[n:], values[n:])})
        results = result if isinstance(result, (tuple, list)) else (result,)
        for slot, value, expected in zip(self.outs, results, self.expect or (None,) * len(self.outs)):
            value = as_tensor(value)
            if expected is not None:
                sizes, strides = map(machine.values, expected[:2])
                assert list(value.shape) == sizes, (self.name, value.shape, sizes)
                if list(value.stride()) != strides:
                    value = torch.empty_strided(sizes, strides, dtype=value.dtype).copy_(value)
            machine.slots[slot] = value


@dataclass(frozen=True)
class Vjp(_Operator):
    """The gradient of one operator, replayed under PyTorch's own autograd: one result for each of the slots ``wanted``,
    zeros where there is none. ``tangents`` has, per tensor that the operator returns, the slot of its tangent or None.
    Among ``args``, ``Wanted(k)`` is the tensor in ``wanted[k]``; a ``Slot`` that names a wanted slot is taken for the
    first such tensor too. The other fields are those of ``Aten``."""

    kind: ClassVar[str] = "vjp"
    READS = ("args", "wanted", "tangents")
    name: str
    overload: str
    args: tuple[Argument, ...]
    wanted: tuple[int, ...]
    tangents: tuple[int | None, ...]
    outs: tuple[int | None, ...]
    expect: Optional[tuple] = None
    manners: tuple[str, ...] = ()

    def text(self, names: Sequence[str]) -> str:
        return (f"{tensors(self.outs)} = vjp {self.call(names)} wrt [{tensors(self.wanted)}] tangents "
                f"[{tensors(self.tangents)}]")


@dataclass(frozen=True)
class View(Step):
    """A view of ``source``; the offset counts from its first element."""

    kind: ClassVar[str] = "view"
    MAKES, READS, WITHIN = ("slot",), ("source",), "source"
    slot: int
    source: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def text(self, names: Sequence[str]) -> str:
        return (f"%{self.slot} = view %{self.source} {numbers(names, self.sizes)} strides "
                f"{numbers(names, self.strides)} offset {names[self.offset]}")

    def run(self, machine: Any) -> None:
        source = machine.slots[self.source]
        machine.slots[self.slot] = source.as_strided(machine.values(self.sizes), machine.values(self.strides),
                                                     source.storage_offset() + machine.regs[self.offset])


@dataclass(frozen=True)
class Copy(Step):
    """``slot.copy_(source)``; when ``slot`` is an input, or a view of one, its version counter is bumped."""

    kind: ClassVar[str] = "copy"
    may_raise = False
    READS, WRITES = ("source",), ("slot",)
    slot: int
    source: int

    def text(self, names: Sequence[str]) -> str:
        return f"%{self.slot} <- copy %{self.source}"

    def run(self, machine: Any) -> None:
        machine.slots[self.slot].copy_(machine.slots[self.source])


@dataclass(frozen=True)
class Free(Step):
    """Empties a slot; does nothing to inputs."""

    kind: ClassVar[str] = "free"
    may_raise = False
    FREES = ("slot",)
    slot: int

    def text(self, names: Sequence[str]) -> str:
        return f"free %{self.slot}"

    def run(self, machine: Any) -> None:
        machine.slots[self.slot] = None


@dataclass(frozen=True)
class Flag(Step):
    """A CPU int32 that is 0, to which a kernel writes when it meets an index out of range. One at a time."""

    kind: ClassVar[str] = "flag"
    MAKES = ("slot",)
    slot: int

    def text(self, names: Sequence[str]) -> str:
        return f"flag %{self.slot}"

    def run(self, machine: Any) -> None:
        machine.slots[self.slot] = torch.zeros(1, dtype=torch.int32)


@dataclass(frozen=True)
class Check(Step):
    """Raises when the flag is not 0: RuntimeError for 2, else IndexError."""

    kind: ClassVar[str] = "check"
    READS = ("slot",)
    slot: int
    message: str

    def text(self, names: Sequence[str]) -> str:
        return f"check %{self.slot}"

    def run(self, machine: Any) -> None:
        if machine.slots[self.slot].item():
            raise (RuntimeError if machine.slots[self.slot].item() == 2 else IndexError)(self.message)


RECORDS: tuple[type, ...] = tuple(c for c in list(globals().values())
                                  if isinstance(c, type) and issubclass(c, _Recorded) and dataclasses.is_dataclass(c))
