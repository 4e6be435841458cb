"""Sizes that are symbols on trial.

A size is a number at first and becomes a symbol once it has changed. But each kind of call of a function, such as a
prompt and then one word at a time, brings inputs that no other kind has, and would be compiled twice: for its first
sizes, and for any. Once a function was called with different sizes, whatever inputs it has not had before have symbols
for their sizes at once, and in a function that the program is in the middle of, as what goes on after a break, all its
inputs have: it has many callers, which pass this and that. So has an integer that no earlier capture had read, if it is
the same as a size that is a symbol: it says how much data there is; and so has each in the lists, tuples and dicts that
a function in the middle of the program is given. Integers are also tried beside others that have changed: in one list,
tuple or dict, as the height of an image is beside its width, and among the attributes of an object and the arguments of
a function, once two of them have. In front of a layer that goes over sequences the first call has symbols: it takes a
sequence of any length as it is, and most calls bring another one. Where the program itself holds such a symbol to a
number, as a weight does with the width of what is multiplied by it, nothing is gained: it is taken for that number, and
the capture begins anew. So nothing is a symbol that is not free to change. The sizes of what a module has learnt are
its own, and stay numbers until one has changed: with symbols for these, each size that follows from them, as through a
stack of convolutions, would be an expression in hundreds of symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..graph.dims import Symbol, free_symbols, hint
from ..graph.op_info import op_info
from .assumptions import Reconsider
from .source import DictAttr, GetAttr, Item, Local, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..graph.dims import Dim
    from ..graph.ir import Node
    from ..graph.shape_env import ShapeEnv

_WEIGHTS = ("_parameters", "_buffers")  # attributes of a module
ATTEMPTS = 4  # at one capture; what is left then is numbers


class Tried:
    """Of one function, for all its captures.

    Attributes:
        vary: whether a size of an input was another at a later capture.
        numbers: (source, dimension) that were tried, and that the program holds to a number; (source, "int") of an
            integer.
        here: those that are tried in the present attempt.
        new: inputs and integers that no earlier capture had.
        passed: whether inputs have numbers for sizes in this attempt, which would be tried if ``vary``.
        varied: what integers are in (``_holder``) -> those that have changed.
        beside: (what they are in, how many would have to change) of integers that are numbers in this attempt.
    """

    def __init__(self) -> None:
        self.vary, self.passed, self.attempts = False, False, 0
        self.numbers: set[tuple[Source, int | str]] = set()
        self.here: set[tuple[Source, int | str]] = set()
        self.new: set[Source] = set()
        self.varied: dict[Source | None, set[Source]] = {}
        self.beside: set[tuple[Source | None, int]] = set()

    def begin(self, again: bool) -> None:
        """An attempt at a capture begins; ``again``: not the first one."""
        self.attempts = self.attempts + 1 if again else 0
        self.here, self.passed, self.beside = set(), False, set()
        if not again:
            self.new = set()

    def sizes(self, source: Source, tensor: torch.Tensor) -> set[int]:
        """The dims of an input to try."""
        if source.watched or self.attempts >= ATTEMPTS or is_weight(source, tensor):
            return set()
        wanted = {d for d, n in enumerate(tensor.shape) if n > 1 and (source, d) not in self.numbers}
        if not self.vary:
            self.passed |= bool(wanted)
            return set()
        self.here.update((source, d) for d in wanted)
        return wanted

    def integer(self, source: Source | None, value: int, env: ShapeEnv, inner: bool | str = False) -> bool:
        """Whether to try an integer; ``inner``: in a function that the program is in the middle of."""
        place = (source, "int")
        if source is None or self.attempts >= ATTEMPTS or place in self.numbers:
            return False
        given = bool(inner) and type(source) is Item and isinstance(_holder(source), Local)
        self.passed |= given and not self.vary
        is_size = (self.vary and source in self.new and not source.watched
                   and any(hint(size) == value for size in env.symbols.values()))
        if not is_size and not (given and self.vary) and not self.is_beside(source):
            return False
        self.here.add(place)
        return True

    def is_beside(self, source: Source) -> bool:
        """Whether an integer is beside others that have changed."""
        if not isinstance(source, _TOGETHER):
            return False
        holder, least = _holder(source), _least(source)
        if len(self.varied.get(holder, ())) >= least:
            return True
        self.beside.add((holder, least))
        return False

    def varies(self, source: Source) -> None:
        """An integer has changed. Raises Reconsider if others beside it came before it in this attempt."""
        if isinstance(source, _TOGETHER):
            holder = _holder(source)
            varied = self.varied.setdefault(holder, set())
            varied.add(source)
            if (holder, len(varied)) in self.beside and self.attempts < ATTEMPTS:
                raise Reconsider("")

    def changed(self) -> None:
        """The size of an input has changed. Raises Reconsider if others came before it in this attempt."""
        if not self.vary:
            self.vary = True
            if self.passed:
                raise Reconsider("")

    def refuse(self) -> bool:
        """Whether there is anything to try without, where an attempt has failed; the next one does."""
        self.attempts = ATTEMPTS
        return bool(self.here)

    def settle(self, nodes: Iterable[Node], env: ShapeEnv, stands_for: dict) -> None:
        """Raises Reconsider where sizes that were tried turn out to be numbers, or some were not that should be.
        ``stands_for``: symbol -> what it is."""
        if not self.vary and any(n.op == "aten_call" and op_info(n.attrs["target"]).over_sequences for n in nodes):
            self.changed()
        held = set()
        for guard in env.guards if self.here else ():
            names = free_symbols(guard.expr)
            if guard.kind != "==0" or not names:
                continue
            origins = [stands_for[name] for name in names]
            places = {(origin[0], origin[-1]) for origin in origins if origin[1] in ("size", "int")}
            if len(places) == len(names) and places <= self.here and _is_number(guard.expr):
                held |= places
        if held:
            self.numbers |= held
            raise Reconsider("")


_TOGETHER = (Item, DictAttr, GetAttr, Local)


def _holder(source: Source) -> Source | None:
    """What an integer is in with others: a container, with all that is in it; an object; None of an argument."""
    node = source.base
    while type(node) is Item:
        node = node.base
    return node


def _least(source: Source) -> int:
    """How many integers beside an integer have to change until it is tried. Among attributes and arguments there are
    those that say how a function works."""
    return 1 if type(source) is Item and not source.watched else 2


def is_weight(source: Source, tensor: torch.Tensor) -> bool:
    """Whether an input is a parameter, or is what a module holds as a parameter or a buffer."""
    return isinstance(tensor, torch.nn.Parameter) or any(
        isinstance(node, DictAttr) and node.name in _WEIGHTS for node in source.chain())


def _is_number(expr: Dim) -> bool:
    """Whether that this is 0 says what a size is, or what the product of several is."""
    (mono,) = expr.terms if len(expr.terms) == 1 else ((),)
    return bool(mono) and bool(expr.const) and all(type(atom) is Symbol for atom in mono)
