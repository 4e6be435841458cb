"""Values of integer tensors that Python reads, taken to stay what they are in this call: counts, flags, the sizes of
pictures in a batch.

As with sizes, the first capture is for the values at hand. They are computed again from the call's arguments before
anything else is done; where one is another, that call runs in eager, the entry goes, and from then on the places that
read them are graph breaks. Only what is computed from integer and boolean inputs is guessed: what depends on floating
point numbers is another at every call. The exception are small tensors that the program itself keeps, and does not
learn: times at which an equation is solved, coefficients of a method, thresholds.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Callable

import torch

from .. import torch_private, turns
from ..graph import constants
from ..graph.interpret import compile_python
from ..graph.ir import Graph, Output
from ..runtime import native
from ..runtime.naming import Naming
from ..runtime.names import Given, Name, calling, rule
from .decode import decode
from .watching import Watching

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .dispatch import Settings
    from .emit import Emitter
    from .session import Session
    from .source import Source

_ELEMENTS, _MOST = 64, 32
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element
# What eager's operators raise; all else is a failure of the compiler, and told.
REFUSALS = (RuntimeError, IndexError, ValueError)


def guess(s: Session, node: Node) -> None:
    """The present value of ``node``, on which the entry relies from here on; None where it is not to be guessed."""
    if (s.unsteady is None or not s.frames or node.type.is_symbolic or node.dtype.is_floating_point
        or node.dtype.is_complex or node.type.numel > _ELEMENTS):
        return None
    for earlier, value, _ in s.guesses:
        if earlier is node:
            return value
    site = s.frames[-1].fn.code, s.frames[-1].pc
    cone = constants.cone(node)
    if site in s.unsteady or len(s.guesses) >= _MOST or not cone:
        return None
    inputs = [n for n in cone if n.op == "input"]
    tensors = [s.recording.inputs[n.attrs["index"]] for n in inputs]
    if not all(t.obj is not None and t.source is not None and not t.source.drawn and _stays(t.obj, t.source)
               for t in tensors):
        return None
    compute = compile_python(Graph(inputs, cone, [Output(node)], s.tracer.env))
    turns.only_in_call("the values of a tensor are read")  # which the program may be writing to
    try:
        with torch.no_grad():
            value = compute(*[t.obj for t in tensors])[0].clone()
    except REFUSALS:  # of these values: the program's call will raise it where it stands
        return None
    s.set_field(s, "guesses", (*s.guesses, (node, value, site)))
    return value


def _stays(tensor: torch.Tensor, source: Source) -> bool:
    """Whether an input may be taken to hold at later calls what it holds now."""
    if tensor.is_meta or tensor.dtype.is_complex:
        return False
    return not tensor.dtype.is_floating_point or (source.watched and not tensor.requires_grad and _is_small(tensor))


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= _ELEMENTS


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(_BITS[tensor.element_size()])


class Check(Watching):
    """Called with the inputs that the guesses depend on: whether all hold. Else the entry is given up and its guesses
    are not made again."""

    def __init__(self, compute: Callable, values: tuple[torch.Tensor, ...], sites: tuple, unsteady: set) -> None:
        self.compute, self.values, self.sites, self.unsteady = compute, values, sites, unsteady
        self.sources: list[Source] = []
        self.missed, self.dispatcher = None, None
        # What small inputs held when all was right: as long as they do, nothing has to be computed.
        self.held: list[torch.Tensor] | None = None

    @staticmethod
    def of(s: Session) -> Check:
        """The check of all guesses of a capture."""
        nodes, values, sites = zip(*s.guesses)
        cone = sorted({n for node in nodes for n in constants.cone(node)}, key=lambda n: n.id)
        inputs = [n for n in cone if n.op == "input"]
        compute = compile_python(Graph(inputs, cone, [Output(n) for n in nodes], s.tracer.env))
        check = Check(compute, values, sites, s.unsteady)
        check.sources = [s.recording.inputs[n.attrs["index"]].source for n in inputs]
        return check

    def __call__(self, *tensors) -> bool:
        with torch_private.WithoutTorchFunction():  # nothing of the program's sees that
            return self.holds(*tensors)

    def holds(self, *tensors: torch.Tensor) -> bool:
        if self.held is not None and all(torch.equal(_bits(t), bits) for t, bits in zip(tensors, self.held)):
            return True
        found: tuple[torch.Tensor, ...] = ()
        try:
            with torch.no_grad():
                found = self.compute(*tensors)
                if all(map(torch.equal, found, self.values)):
                    if all(map(_is_small, tensors)):
                        self.held = [_bits(t).clone() for t in tensors]
                    return True
        except REFUSALS:  # other values may be refused, or have other shapes
            pass
        self.unsteady.update(self.sites)
        missed, dispatcher = self.missed and self.missed(), self.dispatcher and self.dispatcher()
        if missed is not None and dispatcher is not None:
            missed.takes_back(self.differed(found), "compute with the tensor in its place, as torch.where, torch.clamp "
                              "and torch.minimum do, or keep the value as a number of Python")
            dispatcher.clear()
        return False

    def differed(self, found: tuple[torch.Tensor, ...]) -> str:
        """Which guess did not hold, and where it was made. ``found``: what is computed now; () if that raises."""
        k = next((k for k, (a, b) in enumerate(zip(found, self.values)) if not torch.equal(a, b)), 0)
        code, index = self.sites[k]
        line = decode(code).instructions[index].line
        text = f"Python reads a tensor's value at {code.co_filename}:{line}, which was taken to stay the same"
        return f"{text}: expected {self.values[k].tolist()}, found {found[k].tolist()}" if found else text

    def watch(self, missed, dispatcher, entry) -> None:
        self.missed, self.dispatcher = weakref.ref(missed), weakref.ref(dispatcher)


def check_of(compute: Callable, values: tuple, sites: tuple, settings: Settings) -> Check:
    """A Check of what it is written as: values as numbers and dtypes."""
    known = tuple([torch.tensor(numbers, dtype=dtype) for numbers, dtype in values])
    return Check(compute, known, sites, settings.unsteady)


@rule(Check)
def _name_of_check(naming: Naming, check: Check) -> Name:
    values = tuple((v.tolist(), v.dtype) for v in check.values)
    return calling(check_of, naming.data(check.compute), naming.data(values), naming.data(check.sites),
                   Given("settings"))


def require(e: Emitter, s: Session) -> None:
    """Have the rewritten function check the guesses of a capture first. Returns the Check, or None."""
    if not s.guesses:
        return None
    check = Check.of(s)
    e.check_first(native().Unhooked(check), check.sources)
    return check
