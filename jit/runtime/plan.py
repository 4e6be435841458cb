"""A plan: the executable form of a graph, as plain data that the native executor interprets.

Slots hold tensors (or memory); slots ``0 .. n_inputs-1`` are the inputs and are never replaced. Registers hold int64
values; all of them are computed, in order, when a call begins::

    ("const", v)   ("size", input, dim)   ("stride", input, dim)   ("int", k)
    ("add"|"sub"|"mul"|"floordiv"|"mod"|"max"|"min", reg, reg)          # floor semantics; a zero divisor raises
    RuntimeError

A plan has two parts, each a list of steps (``steps.py``). ``compute`` may raise, and writes nothing that was there
before the call; ``commit`` gives inputs their new values and cannot raise: it is made of kernels, copies and frees.
``Plan.check`` and ``load_plan`` hold this. So a call that raises has changed nothing: generators are put back, and what
cannot be put back, the calls of "once" operators, is told to the function that runs the call again (``happened``).
Results are made, and a signal that is pending is handled, between the two.

``outputs`` are slots. An input gives the very object that was passed; a view (made by ``View``) of an input is made by
torch's own operator, so that it is a view to autograd and shares the version counter. ``mutates`` lists the inputs that
kernels or in-place operators write, whose version counters are bumped after the run. ``aligned`` lists those whose
address GPU kernels take for a multiple of 16 (None: all): one that is not is copied to such a place while the plan
runs. ``graphs``: which calls are recorded into CUDA graphs (``native/plan_graphs.h``): "always" where that can be done,
"waiting" where the GPU is found to wait for the processor, or "never". ``name``: what profilers
call a run of it (``jit.shown``).

The executor gives up the GIL for plans with ATen or GPU steps and for large inputs. A plan may be called again while it
runs, from any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Callable

from jit import logs
from jit.runtime.extension import native
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Value, calling, rule
from jit.runtime.packed import Packed, by_value
from jit.runtime.steps import RECORDS, Step, tensors

_log = logs.channel("plan")


@dataclasses.dataclass(frozen=True)
class GpuKernel:
    """A compiled GPU kernel as the driver takes it.

    Args:
        name: the function's name in the cubin.
        cubin: the binary.
        num_warps: warps per program.
        shared: bytes of dynamic shared memory.
        ints: which of a step's ints are passed, in order, and how: ``((index, "i32" | "i64"), ...)``. (Triton leaves
            out those that are compile-time constants.)
        scratch: trailing null pointers (Triton 3.6: global and profile scratch).
        cluster: thread blocks per cluster; only 1 is launched.
        early: it waits itself for the kernels in front of it (``griddepcontrol.wait``), and is launched before they
            have ended.
        order: of its parameters, where they are not the pointers and then the ints: the number of each among those.
        joined: 0, or how many launches one launch takes: its only parameter is then, in a power of two of 32-bit words
            that is not less than this, the number of the first program of each launch (of those that are not there: the
            largest number), and then the arguments of one launch after the other, in 64 bits each.

    The launch passes the step's pointers, then the ints, then the scratch pointers. Kernels that need global scratch
    memory must not be made into a record.
    """

    name: str
    cubin: bytes
    num_warps: int
    shared: int = 0
    ints: tuple = ()
    scratch: int = 2
    cluster: int = 1
    early: bool = False
    joined: int = 0
    order: tuple = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """See the module's documentation for each field."""

    n_inputs: int
    n_ints: int
    regs: tuple
    n_slots: int
    compute: tuple[Step, ...]
    outputs: tuple
    commit: tuple[Step, ...] = ()
    mutates: tuple = ()
    aligned: tuple | None = None
    graphs: str = "never"
    name: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.compute, *self.commit)

    @property
    def records(self) -> tuple[tuple, ...]:
        """The two parts as the native executor reads them."""
        return tuple(tuple(step.record() for step in part) for part in (self.compute, self.commit))

    def check(self) -> None:
        """Raise ValueError where a step needs a slot that is empty, where one before the commit writes what was there
        before the call, as far as views show it, and where one of the commit may raise."""
        filled, outside = set(range(self.n_inputs)), set(range(self.n_inputs))
        for part in (self.compute, self.commit):
            for step in part:
                if not filled.issuperset((*step.reads, *step.writes)):
                    raise ValueError(f"a slot is empty for {step}")
                if part is self.commit and step.may_raise:
                    raise ValueError(f"comes after the commit and may raise: {step}")
                if part is self.compute and not outside.isdisjoint(step.writes):
                    raise ValueError(f"writes before the commit what was there before the call: {step}")
                filled.update(step.makes)
                filled.difference_update(step.frees)
                (outside.update if step.part_of in outside else outside.difference_update)(step.makes)
        if not filled.issuperset(self.outputs):
            raise ValueError("a result is not there")

    def text(self) -> str:
        """One line per step, registers written as expressions."""
        names: list[str] = []
        signs = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
        for kind, *rest in self.regs:
            if kind == "const":
                names.append(str(rest[0]))
            elif kind in ("size", "stride"):
                names.append(f"%{rest[0]}.{kind}({rest[1]})")
            elif kind == "int":
                names.append(f"int{rest[0]}")
            elif kind in signs:
                names.append(f"({names[rest[0]]} {signs[kind]} {names[rest[1]]})")
            else:
                names.append(f"{kind}({names[rest[0]]}, {names[rest[1]]})")
        lines = [f"inputs: {tensors(range(self.n_inputs))}" + "".join(f", int{i}" for i in range(self.n_ints)),
                 *[step.text(names) for step in self.compute], *["commit:"] * bool(self.commit),
                 *[step.text(names) for step in self.commit]]
        lines.append(f"outputs: {tensors(self.outputs)}"
                     + (f"  mutates: {tensors(self.mutates)}" if self.mutates else ""))
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class GradSpec:
    """How two plans make a differentiable function.

    The forward's results are the function's, then extra ones that only the backward reads. The backward takes the saved
    values, then one tangent per differentiable result, laid out as ``torch.empty_like`` of it is; its ints are
    ``symbols``. It may keep or return the memory of what it is given.

    Args:
        n_outputs: results of the function.
        wrt: positions of the inputs that have a gradient.
        tangents: positions of the results that have one. None of them is an input or a view of one.
        saved: per tensor that the backward takes before the tangents: ("input", i) | ("output", j) | ("extra", k).
            Values as they are when the forward has run.
        grads: per input of ``wrt``: the position of its gradient among the backward's outputs, or None where it is zero
            everywhere.
        symbols: per int of the backward: ("size", input, dim) | ("stride", input, dim) | ("int", k), of the forward.
        views: results that are views: (output, "input" | "output", base, (sizes, strides, offset)), in registers of the
            forward; the offset counts from the base's first element. Torch's own operator makes them, so that autograd
            takes their gradient to the base.
        several: the outputs among ``views`` that are, for autograd, one of several results of a view operator: it
            refuses to record a change in place of them.
        name: of the node, as ``grad_fn.name()`` gives it.
        second: ``second(inputs, saved, ints, tangents, wanted, changed, foreign) -> gradients``: a Python function that
            computes, by operators that are differentiable themselves, a tuple with one gradient or None for each of
            ``wrt``. It is given the forward's inputs, the values of ``saved``, the forward's ints, the tangents (None:
            none given), which of the gradients are wanted (bools), the positions of inputs outside ``saved`` that were
            written since the forward, with len(inputs) + k for a saved value k that is given without its memory since
            no gradient of these tangents reads it, and whether there are tangents that kernels cannot read. It runs for
            ``create_graph=True``, with grad mode on, and, with grad mode off, for tangents such as those of
            ``is_grads_batched=True``. Without it both raise NotImplementedError. It must not refer to the callable.
        depends: per input of ``wrt``, positions in ``tangents`` that its gradient depends on: without any of them it is
            None, as in eager. None: all on all.
        narrow: ``narrow(present) -> loaded plan``: a backward for the case that only the tangents marked in the tuple
            of bools ``present`` are given, with the inputs and outputs of the other one; of the other tangents it may
            read the sizes alone. It is asked once for each case, perhaps on another thread; None says that the backward
            for all tangents serves, with zeros, which is what is done without ``narrow``.
        keeps: what a backward that does not retain the graph frees, as in eager: pairs (which of ``tangents``, which of
            ``wrt``), each for what lies on the way from any of the former to any of the latter, and which a second
            backward must not come to. Here and below, which ones are said by an int with bit k for position k. None:
            all, if anything is saved.
        watched: (("input" | "output"), position, writes, which of ``tangents``, which of ``wrt``): tensors that eager
            keeps for the way from any of those tangents to any of those inputs. A backward that goes there raises
            where they have been written since the call, but for ``writes`` times by the caller himself.
        uses: per saved value which of ``tangents`` have gradients that read it: it is given up when none of these can
            be had any more, and may be written to where none of them is given. None: all.
    """

    n_outputs: int
    wrt: tuple
    tangents: tuple
    saved: tuple
    grads: tuple
    symbols: tuple = ()
    views: tuple = ()
    several: tuple = ()
    name: str = "CompiledBackward"
    second: Callable | None = None
    depends: tuple | None = None
    narrow: Callable | None = None
    keeps: tuple | None = None
    uses: tuple | None = None
    watched: tuple = ()


class Loaded:
    """A ``Plan`` or ``GradSpec`` as its loaded form keeps it: the native executor reads it once, and then names alone
    do."""

    __slots__ = ("_record", "_packed")

    def __init__(self, record: Plan | GradSpec | Packed) -> None:
        self._packed: Packed | None = record if isinstance(record, Packed) else None
        self._record: Plan | GradSpec | None = record() if isinstance(record, Packed) else record

    def __getattr__(self, name: str) -> Any:
        return getattr(self.record(), name)

    def record(self) -> Any:
        return self._packed() if self._record is None and self._packed is not None else self._record

    def packed(self) -> Packed:
        if self._packed is None:
            self._packed = Packed(self._record)
        return self._packed

    def pack(self) -> None:
        self.packed()
        self._record = None


by_value(Plan, GradSpec, *RECORDS)


def load_plan(plan: Plan | Packed) -> Callable[..., tuple]:
    """A native callable ``call(*tensors, *ints) -> tuple``. Raises ValueError or TypeError saying which record is
    wrong."""
    data = Loaded(plan)
    if _log:
        _log(data.text())
    loaded = native().load_plan(data)
    data.pack()
    return loaded


def load_differentiable(forward: Plan | Packed, backward: Plan | Packed,
                        spec: GradSpec | Packed) -> Callable[..., tuple]:
    """A native callable as ``load_plan(forward)`` gives it, whose results have a history where autograd records. Raises
    as ``load_plan`` does."""
    data = Loaded(spec)
    loaded = native().differentiable(load_plan(forward), load_plan(backward), data)
    data.pack()
    return loaded


def load_bound(plan: Any, inputs: tuple[int, ...], *tensors: Any) -> Callable[..., tuple]:
    """A loaded plan with some inputs given for good, which it does not keep alive."""
    return native().bind(plan, dict(zip(inputs, tensors)), True)


def _name_of_loaded(naming: Naming, data: Any) -> Name:
    return naming.data(data if type(data) is not Loaded else data.packed())


@rule("jit.runtime.native.Plan")
def _name_of_plan(naming: Naming, plan: Any) -> Name:
    data = _name_of_loaded(naming, plan.data)
    name = (calling(load_plan, data) if plan.derivative is None else
            calling(load_differentiable, data, *[_name_of_loaded(naming, part) for part in plan.derivative]))
    bound = plan.bound
    return calling(load_bound, name, Value(tuple(bound)), *map(naming.name, bound.values())) if bound else name


def held_by_plan(plan: Any, naming: Naming) -> Iterator[tuple[str, Name]]:
    """The kernels of a loaded plan, those of its backward, and the tensors that it is bound to."""
    plans = [("", plan.data)] if plan.derivative is None else [("", plan.data), ("backward ", plan.derivative[0])]
    for which, data in plans:
        for k, step in enumerate(data.record().steps if data is not None else ()):
            if step.KERNEL:
                yield f"kernel of {which}step {k}", naming.name(getattr(step, step.KERNEL))
    for k, tensor in plan.bound.items():
        yield f"input {k}", naming.name(tensor)
