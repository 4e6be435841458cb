"""What is another at each call: numbers, lengths and slots from outside. Each is a fact at first; it becomes a symbol
or is read anew once it has changed between captures, and a break where neither will do (see ``jit.frame.dynamic``)."""

from __future__ import annotations

import types
import weakref
from collections import Counter
from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..graph.dims import free_symbols
from ..runtime import facts
from ..runtime.guards import in_users_terms
from . import source as src
from .assumptions import Reconsider
from .computed_sizes import ComputedSizes
from .guards import Guards
from .values.numbers import DimValue, FloatValue

if TYPE_CHECKING:
    from ..graph.dims import Dim

KEYED = (dict, set, frozenset)  # what they hold says what they are for, not how many
FEW = 2  # elements, which may be read as a whole whatever other lengths there are


def _differs(seen, value) -> bool:
    """Whether an integer that was seen is another one than ``value``, or than what the program computes (None)."""
    return seen is not None and repr(seen) != repr(value)


class Varying:
    """``history``: what was seen at earlier captures (``jit.frame.dynamic.Dynamic``), or None: everything stays."""

    def __init__(self, history, env, guards: Guards) -> None:
        self.history, self.env, self.guards = history, env, guards
        self.computed = ComputedSizes(guards)
        scaled = weakref.WeakMethod(self.computed.scaled)  # sizes outlive the capture

        def symbol(size: Dim, factor: float) -> Dim | None:
            found = scaled()
            return None if found is None else found(size, factor)

        env.scaled = symbol
        self.asked: Counter[tuple] = Counter()  # by place, how often a branch was told ahead there

    def length_at(self, source, n: int):
        """The length of a container from outside: an int that is guarded, or a Dim once it has changed between
        captures."""
        if self.guards.heard is not None:
            self.guards.heard.lengths.append((source, n))
        dim = None if self.history is None else self._integer(src.Length(source), n)
        if dim is None:
            self.guards.add(source, facts.Length(n))
            return n
        self.guards.add(src.Length(source), facts.TypeIs(int))
        return dim

    def _integer(self, source, n: int):
        return self.history.integer(self.env, self.guards.sizes.integers, source, n)

    def number(self, obj, source, value):
        """The value of an int or float from outside: ``value``, a constant, or a symbolic one if it has changed between
        captures."""
        if type(obj) is int:
            dim = self._integer(source, obj)
            if dim is None:
                return value
            value = DimValue(dim)
        elif self.history.is_symbolic_float(source, obj):
            value = FloatValue(obj, source)
        else:
            return value
        if source is not None and source.slot:
            self.guards.fresh.add(source)
        self.guards.add(source, facts.TypeIs(type(obj)))
        return value

    def integer_of(self, value: FloatValue, fn):
        """``fn`` of a float that is computed from sizes, as a symbolic integer; None where there is none."""
        dim = self.computed.integer(value, fn)
        return None if dim is None else DimValue(dim)

    def expect(self, source, n: int, cls) -> None:
        """A container from outside is to be read as a whole: one that keeps growing is left to the interpreter."""
        if self.history is None:
            return
        data = cls not in KEYED
        if data:
            self.history.holds(source, n)
        given = self.history.stepwise and isinstance(source, src.Local) and data and cls is not tuple and n > FEW
        if given or not self.history.takes(source, n, lengths=2 if data else 0):
            raise Unsupported(f"the length of this {cls.__name__} is different at every call", kind="container-length")

    def specialize(self, key, value) -> None:
        """A number or text from outside is needed as a constant: one that changes on every call is left to the
        interpreter."""
        # What is a symbol was another number before.
        symbol = isinstance(key, tuple)
        if symbol and key[1] == "int" and self.history is not None and (key[0], "int") in self.history.tried.here:
            return  # none that has changed
        length = symbol and (key[1] == "size" or isinstance(key[0], src.Length))
        lengths = int(length or symbol and key[1] == "int" and self.history is not None and self.history.inner)
        if self.history is not None and not self.history.takes(key, value, lengths, loops=length):
            about = key[0] if symbol else key
            what = in_users_terms(str(about)) if isinstance(about, src.Source) else "a value"
            raise Unsupported(f"{what} is another one at each call, and needed as a plain Python value",
                              kind="not-constant")

    def unrolls(self, source, position: int) -> bool:
        """Whether an iterator from outside that stands at ``position`` may be followed from there."""
        return self.history is None or self.history.unrolls(source, position)

    def may_be_replaced(self, source) -> bool:
        """Whether it is remembered what a slot has held, and so what such a slot of a sibling has."""
        return self.history is not None and source.watched

    def is_replaced(self, source, obj) -> bool:
        """Whether a slot of an object that stays has been seen to hold another object: a parameter under
        ``functional_call``, the state of a model."""
        if not self.may_be_replaced(source):
            return False
        if (isinstance(obj, (type, types.ModuleType, types.BuiltinFunctionType))
            or isinstance(obj, types.FunctionType) and "<locals>" not in obj.__qualname__):
            return False
        return self.history.is_replaced(source, obj)

    def turns(self, place: tuple) -> bool:
        """Whether the branch at a place is none that is told ahead (any more)."""
        return self.history is not None and not self.history.in_one_graph and self.history.told.turns(place)

    def foretells(self, place: tuple, holds: bool) -> bool:
        """Note what a branch on data finds that is told ahead -> whether it still may be."""
        if self.history is None:
            return True
        key, told = (place, self.asked[place]), self.history.told
        self.asked[place] += 1
        if told.found.setdefault(key, holds) not in (holds, None):
            told.found[key] = None
            told.turned.add(place)
        return not self.turns(place)

    def foresee(self, slots) -> None:
        """The program itself puts something else into these slots: (source, integer or None) of each. Raises Reconsider
        where what is there was taken to stay."""
        history, changed = self.history, False
        for source, value in slots if history is not None and history.mode is None else ():
            stays = (source.watched and value is None and history.objects.get(source) is not None,
                     _differs(history.integers.get(source), value))
            for seen, stayed in zip((history.objects, history.integers), stays):
                if stayed:
                    seen[source], changed = None, True
        if changed:
            raise Reconsider("")

    def origins(self) -> dict:
        """What each symbol stands for: see ``SizeFacts.origins``."""
        return self.guards.sizes.origins()

    def plain_dim(self, dim):
        """A Dim for the graph, to which the integer arguments in it become known."""
        integers = self.guards.sizes.integers
        for name in free_symbols(dim):
            if name in integers:
                self.env.origins.setdefault(name, integers[name])
        return dim
