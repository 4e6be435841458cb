"""Triton kernels of the program's own, and operators that change their arguments, as steps of a plan.

A graph has no side effects, so a launch is a function there: it takes the memory that the kernel reads or writes and
gives new memory for what it writes. ``jit::run_kernel`` is that function as an operator of PyTorch, for kernels that
cannot be launched natively: on the CPU, where Triton interprets them, and while an autotuner has no choice yet. What is
called and how, a ``Spec``, does not change between calls and stands in a table by its name; all integers are arguments.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Union

import torch

from jit import torch_private
from jit.runtime.direct import direct_call
from jit.runtime.holding import behind
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Unnameable, rule
from jit.runtime.result_numbers import as_tensor

OPERATOR = "jit::run_kernel"


# ---- arguments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pointer:
    """A tensor in the memory number ``memory``: ``numbers[at:]`` are its sizes, its strides and its offset there, in
    elements of its own dtype. ``whole``: it is the tensor that has that memory."""

    memory: int
    dtype: torch.dtype
    rank: int
    at: int
    whole: bool = False

    @property
    def offset(self) -> int:
        """Which of the numbers is the offset."""
        return self.at + 2 * self.rank

    def of(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> torch.Tensor:
        held = memory[self.memory]
        assert held is not None
        if self.whole:
            return held
        n, start = self.rank, self.at
        sizes, strides, offset = numbers[start: start + n], numbers[start + n: start + 2 * n], numbers[self.offset]
        if held.dtype is self.dtype:
            return held.as_strided(tuple(sizes), tuple(strides), held.storage_offset() + offset)
        begin = held.storage_offset() * held.element_size() // self.dtype.itemsize
        made = torch.empty(0, dtype=self.dtype, device=held.device)
        return made.set_(held.untyped_storage(), begin + offset, tuple(sizes), tuple(strides))


@dataclass(frozen=True)
class Number:
    """The integer ``numbers[at]``."""

    at: int

    def of(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> int:
        return numbers[self.at]


@dataclass(frozen=True)
class Plain:
    """A constant of any type, held as ``holding.lightly`` holds it. ``kind`` tells 1, 1.0 and True apart."""

    value: Any
    kind: type

    def of(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> Any:
        return behind(self.value)


@dataclass(frozen=True)
class Several:
    """A tuple, or a list."""

    kind: type
    items: tuple[Argument, ...]

    def of(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> Any:
        return self.kind([item.of(memory, numbers) for item in self.items])


Argument = Union[Pointer, Number, Plain, Several]


@dataclass(frozen=True)
class Made:
    """Memory that nobody has written before the call: ``numbers[at:]`` are its sizes and strides."""

    dtype: torch.dtype
    device: torch.device
    rank: int
    at: int

    def new(self, numbers: Sequence[int]) -> torch.Tensor:
        n, start = self.rank, self.at
        return torch.empty_strided(tuple(numbers[start: start + n]), tuple(numbers[start + n: start + 2 * n]),
                                   dtype=self.dtype, device=self.device)


# ---- what is called -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A call. ``written``: the numbers of the memories that it writes, which are its results; ``made``: for each of
    them a ``Made`` where its content before the call is not read, else None."""

    written: tuple[int, ...]
    made: tuple[Made | None, ...]

    def call(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> list:
        """Do it on this memory. -> results besides the written memory."""
        raise NotImplementedError

    def run(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> list:
        """The same as a function: nothing that is given is changed."""
        memory = list(memory)
        for k, new in zip(self.written, self.made):
            memory[k] = _copy_of(memory[k]) if new is None else new.new(numbers)
        more = self.call(memory, numbers)
        return [memory[k] for k in self.written] + more


def _copy_of(tensor: torch.Tensor | None) -> torch.Tensor:
    """A tensor laid out alike in other memory."""
    assert tensor is not None
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


@dataclass(frozen=True)
class Launch(Spec):
    """A launch of a kernel. ``kernel``: its name in the table of kernels; ``arguments``: (name, argument) of its
    parameters; ``options``: keyword arguments that are none of its parameters, such as ``num_warps``;
    ``grids``: pairs of (name, value) of parameters, and where the three dimensions of its grid stand among the numbers
    where they have these values: one for each configuration of an autotuner; ``examples``: for each parameter that is a
    tensor or an integer, a number for which Triton compiles the same kernel: an address beside that of the memory, or a
    value; None: the kernel is not to be launched by the driver alone."""

    kernel: str
    arguments: tuple[tuple[str, Argument], ...]
    options: tuple[tuple[str, Plain], ...]
    grids: tuple[tuple[tuple[tuple[str, Plain], ...], int], ...]
    examples: tuple[tuple[str, int], ...] | None = None

    def call(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> list:
        given = {name: argument.of(memory, numbers) for name, argument in self.arguments}
        given.update((name, value.of(memory, numbers)) for name, value in self.options)

        def grid(meta: dict) -> tuple:
            at = next(at for chosen, at in self.grids
                      if all(meta.get(name) == v.of((), ()) for name, v in chosen))
            return tuple(numbers[at: at + 3])

        kernel_of(self.kernel)[grid](**given)
        return []


@dataclass(frozen=True)
class Operation(Spec):
    """A call of an operator, by its name, on a type of device. ``results``: how many tensors it returns that are none
    of its arguments."""

    name: str
    device: str
    arguments: tuple[Argument, ...]
    results: int

    @functools.cached_property
    def function(self) -> Callable:
        return direct_call(self.name, self.device) or torch_private.operator_of(self.name)

    @functools.cached_property
    def takes(self) -> tuple[Callable, ...]:
        return tuple([a.of for a in self.arguments])

    def run(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> list:
        return super().run(memory, numbers) if self.written else self.call(memory, numbers)

    def call(self, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> list:
        result = self.function(*[of(memory, numbers) for of in self.takes])
        if type(result) is torch.Tensor and self.results == 1:
            return [result]
        made = list(result) if isinstance(result, (list, tuple)) else [result]
        return [as_tensor(r) for r in made] if self.results else []


# ---- tables ---------------------------------------------------------------------------------------------------------

_specs: dict[str, Spec] = {}
_names: dict[Spec, SpecName] = {}
_kernels: dict[str, weakref.ref] = {}
_numbers = count(1)


def name_of_kernel(kernel: Any) -> str:
    """What a kernel is called in specs: it is not kept alive by that."""
    plain = innermost(kernel)
    start = f"{plain.__module__}.{plain.__qualname__}"
    name = start
    while True:
        found = _kernels.get(name)
        if found is None:
            _kernels[name] = weakref.ref(kernel, lambda _: _kernels.pop(name, None))
            return name
        if found() is kernel:
            return name
        name = f"{start}#{next(_numbers)}"


def kernel_of(name: str) -> Any:
    """The kernel of a name."""
    found = _kernels.get(name)
    kernel = None if found is None else found()
    if kernel is None:
        raise RuntimeError(f"the Triton kernel {name} is gone")
    return kernel


def innermost(kernel: Any) -> Any:
    """The Python function under ``triton.jit``, ``triton.autotune`` and the like."""
    while not hasattr(kernel, "__code__"):
        kernel = kernel.fn
    return kernel


class SpecName(str):
    """A name in the table of specs, which other processes do not have."""


@rule(SpecName)
def _name_of_name(naming: Naming, name: SpecName) -> Name:
    return Unnameable(f"a call of the program's own: {name}")


def name_of_spec(spec: Spec, label: str) -> SpecName:
    """The name by which ``jit::run_kernel`` is given a spec: a label for readers, and a number."""
    name = _names.get(spec)
    if name is None:
        name = _names[spec] = SpecName(f"{label} {next(_numbers)}")
        _specs[name] = spec
    return name


def spec_of(name: str) -> Spec:
    """The spec of a name."""
    return _specs[name]


@functools.cache
def define() -> torch.library.Library:
    """``jit::run_kernel``, registered with PyTorch's dispatcher once it is needed."""
    library = torch.library.Library("jit", "FRAGMENT")
    library.define("run_kernel(str spec, Tensor?[] memory, SymInt[] numbers) -> Tensor[]")
    library.impl("run_kernel", _run, "CompositeImplicitAutograd")
    return library


def _run(spec: str, memory: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> list:
    if not torch.is_grad_enabled():
        return _specs[spec].run(memory, numbers)
    with torch.no_grad():
        return _specs[spec].run(memory, numbers)
