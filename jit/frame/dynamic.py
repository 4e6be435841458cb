"""Which sizes and integers become symbols: those that changed since an earlier capture, and those marked or asked
for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import config
from ..graph.dims import Sym
from ..runtime import cures, native
from ..runtime.holding import holding
from .source import Item, Length, Local, Source
from .tried import Tried, is_weight

if TYPE_CHECKING:
    from ..graph.dims import Dim
    from ..graph.shape_env import ShapeEnv

MAX_POSITIONS = 4
SHORT = 4  # elements; what holds more is data
LARGEST = (1 << 63) - 1  # integer that guards read; a larger one is another entry's
_MARKED = "_jit_dynamic_dims"
_STATIC, *_OTHERS_STATIC = cures.STATIC
# What PyTorch's functions of these names write at a tensor.
_OTHERS_MARKED = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices",
                  "_dynamo_strict_unbacked_indices")


def mark_dynamic(tensor: torch.Tensor, *dims: int) -> None:
    """Ask that these dims of ``tensor`` become symbols at its next capture."""
    setattr(tensor, _MARKED, set(getattr(tensor, _MARKED, ())) | {d % tensor.dim() for d in dims})


def mark_unbacked(tensor: torch.Tensor, *dims: int) -> None:
    """As ``mark_dynamic``: a size that is a symbol is specialised only where the program compares it, and its value is
    never hidden from the program."""
    mark_dynamic(tensor, *dims)


def mark_static(tensor: torch.Tensor, *dims: int) -> None:
    """Ask that these dims of ``tensor``, or all if none is named, are never symbols: another size is compiled for
    anew."""
    found = {d % tensor.dim() for d in dims} or set(range(tensor.dim()))
    setattr(tensor, _STATIC, set(getattr(tensor, _STATIC, ())) | found)


def _marks(tensor: torch.Tensor, *names: str) -> set[int]:
    return set().union(*(getattr(tensor, name, None) or () for name in names))


class Told:
    """Branches on data that were told ahead, in the functions of one ``jit.compile``.

    Attributes:
        found: (place, how often it was reached in a capture) -> what was found there, None for both.
        turned: the places of those that have become None.
    """

    def __init__(self) -> None:
        self.found: dict[tuple, bool | None] = {}
        self.turned: set[tuple] = set()

    def turns(self, place: tuple) -> bool:
        """Whether the branch at a place is none that is told ahead: it is reached several times in a capture, so that
        there is no end of what may be found, and it has turned out otherwise."""
        return place in self.turned and (place, 1) in self.found


class Dynamic:
    """What earlier captures of one function have seen. ``mode``: None learns from changes, True makes every size a
    symbol at once, False none ever. ``resumed``: the function goes on after a break, so that its integers are often a
    loop's; "step": it is a step of a generator, which comes to each place once. ``in_one_graph``: breaks are errors.

    Attributes:
        lengths_differ: whether it was found that lengths are others at each call.
        lengths_known: that was found earlier, in a part of what the user has asked for, and this is no first
            capture: it takes no further one.
        stepwise: that was found earlier in the function that goes on here. Its loops are not written out, and its
            lists are not read as a whole: each step of a loop is captured, and is one for all.
        quiet: the user did not ask for this function to be compiled.
        behind_data: it goes on behind a result whose size depends on data.
    """

    lengths_differ = lengths_known = stepwise = quiet = behind_data = False

    def __init__(self, mode: bool | None, resumed: bool | str = False, in_one_graph: bool = False) -> None:
        self.mode, self.resumed, self.in_one_graph = mode, resumed, in_one_graph
        self.sizes: dict[Source, list] = {}
        self.tried = Tried()
        self.learns: dict[Source, bool] = {}
        self.strides: dict[Source, list] = {}
        self.positions: dict[Source, set] = {}
        self.integers: dict[Source, object] = {}
        self.negative: set[Source] = set()
        self.floats: dict[Source, object] = {}
        self.long: set[Source] = set()  # containers of data
        self.mixed: set[Source] = set()  # those among them of which an integer has changed
        # What has been there: a number, or a reference that does not keep it alive; None for several.
        self.objects: dict[Source, object] = {}
        self.facts: dict[object, set] = {}
        self.told = Told()
        self.captures = 0  # so far
        self.limit: int = config.cache_limit  # of captures

    def tensor_dims(self, source: Source | None, tensor: torch.Tensor) -> set[int]:
        """The dims of an input that are to be symbols; remembers its sizes for the next time."""
        return self.changing(source, tensor) - _marks(tensor, _STATIC, *_OTHERS_STATIC)

    def tensor_strides(self, source: Source | None, tensor: torch.Tensor) -> set[int]:
        """The dims of an input whose strides are to be symbols where no size says what they are: those that have
        changed, as a slice's do with what it was cut from. Of a dim of size 1 it is at once one if it is that of a
        larger tensor, since nothing is computed with it."""
        if self.mode is False or source is None or source.watched or not tensor.numel():
            return set()
        now, sizes, seen = list(tensor.stride()), tensor.shape, self.strides.get(source)
        if seen is None or len(seen) != len(now):
            self.strides[source] = now
            return {d for d, size in enumerate(sizes) if size == 1 and now[d] > 1}
        self.strides[source] = [a if a == b else None for a, b in zip(seen, now)]
        if self.inner and self.mode is None and None in self.strides[source]:
            self.tried.changed()
        return {d for d, stride in enumerate(self.strides[source]) if stride is None or sizes[d] == 1 and now[d] > 1}

    def changing(self, source: Source | None, tensor: torch.Tensor) -> set[int]:
        """The dims that are to be symbols as long as none says that they are not."""
        marked = _marks(tensor, _MARKED, *_OTHERS_MARKED)
        if self.mode is False or source is None:
            return marked
        seen = self.sizes.get(source)
        now = list(tensor.shape)
        gains = self.inner and self.gains(source, tensor)
        if seen is None or len(seen) != len(now):
            self.sizes[source] = now
            self.tried.new.add(source)
            return marked | self.at_once(source, tensor)
        self.sizes[source] = [a if a == b else None for a, b in zip(seen, now)]
        changed = {i for i, size in enumerate(self.sizes[source]) if size is None}
        if self.mode is None and not source.watched and (changed or gains):
            self.tried.changed()
        return marked | changed | self.at_once(source, tensor)

    def gains(self, source: Source, tensor: torch.Tensor) -> bool:
        """Whether an input has required grad in some captures and not in others while gradients are recorded: the
        state of a loop, whose first round is compiled, then the others."""
        if not torch.is_grad_enabled():
            return False
        return self.learns.setdefault(source, tensor.requires_grad) != tensor.requires_grad

    def at_once(self, source: Source, tensor: torch.Tensor) -> set[int]:
        """The dims of an input that are to be symbols though they have not changed."""
        if self.mode:
            return set() if source.watched or is_weight(source, tensor) else set(range(tensor.dim()))
        return self.tried.sizes(source, tensor) if self.inner or source in self.tried.new else set()

    def unrolls(self, source: Source, position: int) -> bool:
        """Whether a loop over an iterator that is given at this position is unrolled: for the first few positions. What
        goes on after a break in a loop comes to all of them, and holds for any once another one has come, or at once
        behind a result whose size depends on data."""
        if self.resumed is not True:
            return not self.stepwise and self.admits(self.positions.setdefault(source, set()), position, MAX_POSITIONS)
        seen = self.positions.setdefault(source, set())
        seen.add(position)
        return not (self.stepwise or self.behind_data or self.few_left) and len(seen) == 1

    def takes(self, key: Source | tuple[Source, str], fact: int | str, lengths: int = 0, loops: bool = True) -> bool:
        """Whether ``fact``, about what ``key`` stands for, is compiled for: not one that is another at each call.
        ``lengths``: it is how much data there is, which is no way of calling a function once there is more than a few
        elements; so many of these are compiled for (0: of anything else). ``loops``: they may be how often loops
        run."""
        most = MAX_POSITIONS if self.resumed else self.limit - 2
        if lengths and fact > SHORT:
            known = self.lengths_known and isinstance(key, tuple)  # a size that is a symbol, and not a container's
            most = min(most, 0 if known else 1 if self.resumed or self.captures > 1 else lengths)
        admitted = self.in_one_graph or self.admits(self.facts.setdefault(key, set()), fact, most)
        self.lengths_differ |= not admitted and bool(lengths) and loops
        return admitted

    def holds(self, source: Source, n: int) -> None:
        """A list or tuple of ``n`` elements at ``source`` is read as a whole: the numbers in a long one are data."""
        if n > SHORT and not source.watched:
            self.long.add(source)

    def admits(self, seen: set, fact: int | str, most: int) -> bool:
        """Whether ``fact`` is one of the first ``most``. When few captures are left there may be one only, so that the
        last ones hold for whatever comes."""
        if self.few_left and not self.in_one_graph and seen - {fact} or fact not in seen and len(seen) >= most:
            return False
        seen.add(fact)
        return True

    @property
    def inner(self) -> bool:
        """Whether it is a function, or a part of one, that the program is in the middle of."""
        return self.resumed or self.quiet

    @property
    def few_left(self) -> bool:
        return self.captures >= self.limit - 3

    def integer(self, env: ShapeEnv, origins: dict, source: Source, value: int) -> Dim | None:
        """A symbol for an integer from outside, recorded in ``origins``, or None where it is a constant."""
        changed = self.is_symbol(source, value)
        changed = changed or self.mode is None and self.tried.integer(source, value, env, self.inner)
        if value < 0:
            self.negative.add(source)
        if not changed or abs(value) >= 1 << 62:
            return None
        name = f"i{len(origins)}"
        origins[name] = (source, "int")
        return Sym(name, value, lo=-LARGEST - 1 if source in self.negative else 0, hi=LARGEST, env=env)

    def is_symbol(self, source: Source | None, value: int) -> bool:
        """True if an integer is to be a symbol."""
        if self.mode is False or source is None:
            return False
        if source not in self.integers:
            self.tried.new.add(source)
        seen = self.integers.setdefault(source, value)
        if seen is not None and seen != value:
            self.integers[source] = None
            if self.mode is None:
                self.tried.varies(source)
        if type(source) is Item and source.of in self.long:  # once one has changed, any of them will
            if self.integers[source] is None:
                self.mixed.add(source.of)
            elif source.of in self.mixed:
                return True
        # A loop counter, but not the attributes of a module.
        at_once = bool(self.mode) or self.resumed and isinstance(source, Local)
        at_once = at_once or self.few_left and isinstance(source, Length)
        return self.integers[source] is None or at_once and not source.watched

    def is_replaced(self, source: Source, obj: object) -> bool:
        """True once there has been another object at a source."""
        seen = self.objects.get(source, self)
        if seen is self:
            self.objects[source] = (native().Weak(obj) if holding(obj) == "weak" and not isinstance(obj, torch.Tensor)
                                    else id(obj))
            return False
        if seen is not None and (id(obj) != seen if type(seen) is int else seen() is not obj):
            seen = self.objects[source] = None
        return seen is None

    def is_symbolic_float(self, source: Source, value: float) -> bool:
        """True if a float is to be computed with, and not a constant: it has changed."""
        if self.mode is False:
            return False
        if type(source) is Item and source.of in self.long or self.stepwise and isinstance(source, Local):
            return True
        if repr(self.floats.setdefault(source, value)) != repr(value):
            self.floats[source] = None
        return self.floats[source] is None
