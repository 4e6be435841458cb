"""A plan: the executable form of a graph, as plain data that the native executor interprets.

Slots hold tensors (or memory); slots ``0 .. n_inputs-1`` are the inputs and are never replaced. Registers hold int64
values; all of them are computed, in order, when a call begins::

    ("const", v)   ("size", input, dim)   ("stride", input, dim)   ("int", k)
    ("add"|"sub"|"mul"|"floordiv"|"mod"|"max"|"min", reg, reg)          # floor semantics; a zero divisor raises
    RuntimeError

Wherever a step below takes sizes, strides, an offset, a grid or ints it takes register indices. Sizes, strides and
offsets count elements, arenas bytes::

    ("alloc", slot, dtype, device, sizes, strides)
        a fresh tensor; CPU memory comes from the pool, CUDA memory from torch's caching allocator. Memory is not
        initialised.
    ("arena", slot, device, nbytes)
        one block of bytes.
    ("temp", slot, arena_slot, byte_offset, dtype, device, sizes, strides)
        a tensor inside an arena that is still held; the offset has to be a multiple of the item size (64 for kernels
        that assume alignment).
    ("call", address, slots, ints)
        calls ``void f(void** pointers, const int64_t* ints)`` with the data pointers of the slots.
    ("launch", GpuKernel, slots, ints, (grid_x, grid_y, grid_z))
        launches on torch's current stream of the plan's CUDA device.
    ("aten", "aten::addmm", overload, args, out_slots, expect[, manners])
        a boxed call below autograd and autocast. ``args`` follow the operator's schema, one for each argument,
        keyword-only ones included: ("slot", i) | ("reg", r) | ("regs", (r, ..)) | ("slots", (i | None, ..)) | ("const",
        object) | ("list", (args..)). ``out_slots`` takes the results in order (None: not wanted); for an operator that
        returns one list of tensors, the list's elements. ``expect`` is None or, per result, None, (sizes, strides) or
        (sizes, strides, dtype): other sizes or dtypes raise RuntimeError, other strides are copied into the expected
        ones. ``manners`` are words: "draws" of an operator that moves random generators on, "once" of one that may do
            more than its schema says.
    ("vjp", "aten::convolution", overload, args, wanted_slots, tangent_slots, out_slots, expect[, manners])
        the gradient of one operator, replayed under PyTorch's own autograd: one result for each of ``wanted_slots``,
        zeros where there is none. ``tangent_slots`` has, per tensor that the operator returns, the slot of its tangent
        or None. In ``args``, ("wanted", k) is the tensor in ``wanted_slots[k]``; a ("slot", i) that names a wanted slot
        is taken for the first such tensor too.
    ("view", dst, src, sizes, strides, offset)
        the offset counts from src's first element.
    ("copy", dst, src)
        dst.copy_(src); when dst is an input, or a view of one, its version counter is bumped.
    ("free", slot)
        drops the slot; a no-op for inputs.
    ("flag", slot)
        a CPU int32 that is 0, to which a kernel writes when it meets an index out of range. One at a time.
    ("check", slot, message)
        raises when the flag is not 0: RuntimeError for 2, else IndexError.

``commit`` is the number of the first step that writes what was there before the call (None: no step does, or the caller
does not mind): from it on there are only kernels, copies and frees, which do not raise. A call that raises has changed
nothing: generators are put back, and what cannot be put back, the calls of "once" operators, is told to the function
that runs the call again (``happened``). Results are made before the commit, and a signal that is pending is handled
there.

``outputs`` are slots. An input gives the very object that was passed; a view (made by "view") of an input is made by
torch's own operator, so that it is a view to autograd and shares the version counter. ``mutates`` lists the inputs that
kernels or in-place operators write, whose version counters are bumped after the run. ``aligned`` lists those whose
address GPU kernels take for a multiple of 16 (None: all): one that is not is copied to such a place while the plan
runs.

The executor gives up the GIL for plans with ATen or GPU steps and for large inputs. A plan may be called again while it
runs, from any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable

from jit import logs
from jit.runtime.extension import native

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


@dataclasses.dataclass(frozen=True)
class Plan:
    """See the module's documentation for each field."""

    n_inputs: int
    n_ints: int
    regs: tuple
    n_slots: int
    steps: tuple
    outputs: tuple
    mutates: tuple = ()
    commit: int | None = None
    aligned: tuple | None = None

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

        def many(regs: tuple[int, ...]) -> str:
            return "[" + ", ".join(names[r] for r in regs) + "]"

        def argument(a: tuple[str, Any]) -> str:
            kind, value = a
            if kind == "slot":
                return f"%{value}"
            if kind == "reg":
                return names[value]
            if kind == "regs":
                return many(value)
            if kind == "slots":
                return "[" + ", ".join("None" if i is None else f"%{i}" for i in value) + "]"
            if kind == "wanted":
                return f"wanted[{value}]"
            return repr(value) if kind == "const" else "[" + ", ".join(map(argument, value)) + "]"

        def slots(items: Sequence[int]) -> str:
            return ", ".join(f"%{i}" for i in items)

        lines = [f"inputs: {slots(range(self.n_inputs))}" + "".join(f", int{i}" for i in range(self.n_ints))]
        for k, step in enumerate(self.steps):
            if k == self.commit:
                lines.append("commit:")
            kind = step[0]
            if kind == "alloc":
                _, slot, dtype, device, sizes, strides = step
                lines.append(f"%{slot} = alloc {str(dtype)[6:]} {device} {many(sizes)} strides {many(strides)}")
            elif kind == "arena":
                lines.append(f"%{step[1]} = arena {step[2]} {names[step[3]]} bytes")
            elif kind == "temp":
                _, slot, arena, offset, dtype, device, sizes, strides = step
                lines.append(f"%{slot} = temp %{arena} + {names[offset]} {str(dtype)[6:]} {many(sizes)} strides "
                             f"{many(strides)}")
            elif kind == "call":
                lines.append(f"call {step[1]:#x}({slots(step[2])}; {many(step[3])})")
            elif kind == "launch":
                lines.append(f"launch {step[1].name}({slots(step[2])}; {many(step[3])}) grid {many(step[4])}")
            elif kind == "aten":
                _, name, overload, args, outs, *_ = step
                target = ", ".join("_" if o is None else f"%{o}" for o in outs)
                lines.append(f"{target} = {name}{'.' + overload if overload else ''}({', '.join(map(argument, args))})")
            elif kind == "vjp":
                _, name, overload, args, wanted, tangents, outs, *_ = step
                target = ", ".join("_" if o is None else f"%{o}" for o in outs)
                given = ", ".join("_" if t is None else f"%{t}" for t in tangents)
                call = f"{name}{'.' + overload if overload else ''}({', '.join(map(argument, args))})"
                lines.append(f"{target} = vjp {call} wrt [{slots(wanted)}] tangents [{given}]")
            elif kind == "view":
                _, dst, src, sizes, strides, offset = step
                lines.append(f"%{dst} = view %{src} {many(sizes)} strides {many(strides)} offset {names[offset]}")
            elif kind == "copy":
                lines.append(f"%{step[1]} <- copy %{step[2]}")
            else:
                lines.append(f"{kind} %{step[1]}")
        lines.append(f"outputs: {slots(self.outputs)}" + (f"  mutates: {slots(self.mutates)}" if self.mutates else ""))
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
            written since the forward, and whether there are tangents that kernels cannot read. It runs for
            ``create_graph=True``, with grad mode on, and, with grad mode off, for tangents such as those of
            ``is_grads_batched=True``. Without it both raise NotImplementedError. It must not refer to the callable.
        depends: per input of ``wrt``, positions in ``tangents`` that its gradient depends on: without any of them it is
            None, as in eager. None: all on all.
        narrow: ``narrow(present) -> loaded plan``: a backward for the case that only the tangents marked in the tuple
            of bools ``present`` are given, with the inputs and outputs of the other one; of the other tangents it may
            read the sizes alone. It is asked once for each case, perhaps on another thread; None says that the backward
            for all tangents serves, with zeros, which is what is done without ``narrow``.
        keeps: what a backward that does not retain the graph frees, as in eager: pairs (positions in ``tangents``,
            positions in ``wrt``), each for what lies on the way from any of the former to any of the latter, and which
            a second backward must not come to. None: all, if anything is saved.
        watched: (("input" | "output"), position, writes, positions in ``tangents``, positions in ``wrt``): tensors that
            eager keeps for the way from any of those tangents to any of those inputs. A backward that goes there raises
            where they have been written since the call, but for ``writes`` times by the caller himself.
        uses: per saved value the positions in ``tangents`` of those whose gradients read it: it is given up when none
            of these can be had any more. None: all.
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


def load_plan(plan: Plan) -> Callable[..., tuple]:
    """A native callable ``call(*tensors, *ints) -> tuple``. Raises ValueError or TypeError saying which record is
    wrong."""
    if _log:
        _log(plan.text())
    return native().load_plan(plan)


def load_differentiable(forward: Plan, backward: Plan, spec: GradSpec) -> Callable[..., tuple]:
    """A native callable as ``load_plan(forward)`` gives it, whose results have a history where autograd records. Raises
    as ``load_plan`` does."""
    return native().differentiable(load_plan(forward), load_plan(backward), spec)
