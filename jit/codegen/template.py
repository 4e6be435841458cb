"""Templates: ways of computing a library call and what follows it in one kernel.

A library call that kernels read is followed by a kernel of its own, which reads from memory what the library has just
written there. A template computes both at once. What it computes is stated in the language of loops, so that nothing
but its layout is its own: the kernel of the *group* that reads the call is lowered as always, but where it would load
an element of the call's result, it has the statements that ``value`` gives, such as a sum of products along a
reduction axis. What stands before that sum is the *prologue*, what stands after it the *epilogue*; both are the
statements that the pointwise prims have in any kernel, with the roundings that they have there, and are written by the
emitter of any kernel. So each such kernel can be run by ``reference``, which says what it means, and by every emitter,
though slowly; a template that has a better way to lay it out gives it a *layout*.

The library's call with a kernel behind it is always a candidate too; which is the fastest is found by timing (see
``timing``). A template is one class, in a file of ``templates/`` or anywhere else, under the decorator ``template``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Collection

from .. import devices

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Node
    from .epilogues import Call
    from .loops import Kernel
    from .lower import Emitter

TEMPLATES: dict[str, Template] = {}  # by name


def template(cls: type) -> type:
    """Decorator: make a template known."""
    TEMPLATES[cls.name] = cls()
    return cls


def templates_for(node: Node) -> list[Template]:
    """The templates that can compute a library call on the device of its result."""
    emitter = devices.backend(node.type.device).emitter
    return [t for t in TEMPLATES.values() if emitter is not None and t.emitter in (None, emitter) and t.matches(node)]


class Template:
    """What a template says."""

    name = ""  # in logs, and in the keys of what is remembered
    emitter: str | None = None  # that of the devices whose language it writes; None: it writes none, and serves all
    alone = False  # whether it may also compute a call that no kernel reads which could take it over

    def matches(self, node: Node) -> bool:
        """Whether it computes this library call: the operator, the dtypes, the ranks of the operands."""
        raise NotImplementedError

    def value(self, e: Emitter, node: Node, index: tuple[IntExpr, ...]) -> str:
        """Put the statements of the result's element ``index`` into a kernel, and give the name of their value, in the
        dtype in which values of the result's dtype are computed."""
        raise NotImplementedError

    def problem(self, kernel: Kernel) -> Any:
        """What there is to know of a kernel, with its prologue and epilogue, to choose how to lay it out; None if it is
        not one that this template lays out."""
        return kernel

    def configurations(self, problem: Any, architecture: devices.Architecture) -> list:
        """The ways of laying out a kernel which may be good on a device with these numbers. Each is a value whose
        ``repr`` says all of it."""
        return [None]

    def cost(self, problem: Any, configuration: Any, architecture: devices.Architecture) -> float:
        """About how many seconds a kernel takes: only candidates of the least cost are timed."""
        return 0.0

    def sure(self, problem: Any, architecture: devices.Architecture) -> Any:
        """The configuration that is faster than the library's call and a kernel behind it without doubt, if any."""
        return None

    def lay_out(self, kernel: Kernel, configuration: Any) -> Kernel:
        """The kernel with a ``Layout``; as it is, to leave that to the emitter."""
        return kernel

    def settled(self, call: Call, candidates: list[Candidate],
                architecture: devices.Architecture) -> Candidate | None:
        """Which of its candidates is used for a call where nothing is timed; None for the library."""
        return None


class Layout:
    """How a kernel is laid out, as the field ``layout`` of it. Its ``repr`` is part of the kernel's key."""

    def emit(self, kernel: Kernel, aligned: Collection[str] | None, interpret: bool) -> Any:
        """The source of the kernel, as the emitter of the template's devices gives it."""
        raise NotImplementedError

    def scratch(self, kernel: Kernel) -> int:
        """Bytes of memory that a launch needs beside its buffers; it is the last pointer of those that it is given."""
        return 0

    def aligned(self, kernel: Kernel, everything: bool) -> Layout:
        """The layout to use where the addresses of all buffers are aligned, or may not be."""
        return self


@dataclass(frozen=True)
class Candidate:
    """One way of computing a call: a configuration of a template."""

    template: Template
    configuration: Any
    cost: float = 0.0

    def lay_out(self, kernel: Kernel) -> Kernel:
        """The kernel as the candidate has it; as it is where what has become of it cannot be laid out so."""
        known = self.template.problem(kernel) is not None
        return self.template.lay_out(kernel, self.configuration) if known else kernel

    def __str__(self) -> str:
        return self.template.name if self.configuration is None else f"{self.template.name} {self.configuration}"


def settled(call: Call) -> Candidate | None:
    """The candidate for a call that is used where nothing is timed; None for the library."""
    architecture = devices.backend(call.node.type.device).architecture(call.node.type.device)
    for t in dict.fromkeys(c.template for c in call.candidates):
        found = t.settled(call, [c for c in call.candidates if c.template is t], architecture)
        if found is not None:
            return found
    return None
