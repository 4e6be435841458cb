"""How kernels compute windows (``graph.windows``): the places that an element reads, unrolled.

For each axis ``taps`` gives the places as index expressions, with a weight and a condition where there is one. What
depends on few axes is computed from these alone, so that a tile of a kernel has it once for all of its other elements.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

import torch

from ..graph import dims, windows
from ..graph.windows import Edge, EdgeBack, Resized, ResizedBack, Same, Shares, SharesBack, Strided, StridedBack
from .lower import Emitter, lowers, register_dtype

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Node

INT32_MAX = 2**31 - 1
NEGATIVE = -0.75  # of cubic convolutions
LONGEST_PERIOD = 8  # of distances from the first place that are computed for each of its results


class Tap(NamedTuple):
    """A place along one axis: an index expression, the weight of what is there (None: one), and where it counts (None:
    always)."""

    place: IntExpr
    weight: Optional[str] = None
    inside: Optional[str] = None


class Real:
    """Arithmetic of one dtype on values and Python numbers."""

    def __init__(self, e: Emitter, dtype: torch.dtype) -> None:
        self.e, self.dtype = e, dtype

    def __call__(self, op: str, *args: str | float) -> str:
        return self.e.compute(op, *(self.value(a) for a in args), dtype=self.dtype)

    def value(self, v: str | float) -> str:
        return v if isinstance(v, str) else self.e.constant(float(v), self.dtype)

    def test(self, op: str, a: str | float, b: str | float) -> str:
        return self.e.compute(op, self.value(a), self.value(b), dtype=torch.bool)

    def where(self, condition: str | None, a: str, b: str | float) -> str:
        return a if condition is None else self.e.compute("where", condition, a, self.value(b), dtype=self.dtype)

    def of(self, index: IntExpr) -> str:
        """An index expression as a number."""
        return self.value(index) if type(index) is int else self.e.b.cast(integer(self.e, index), self.dtype)


def integer(e: Emitter, index: IntExpr) -> str:
    """An index expression as a value, in 32 bits where they hold it."""
    lo, hi = dims.bounds(index) if isinstance(index, dims.Dim) else (index, index)
    small = lo is not None and hi is not None and max(-lo, hi) <= INT32_MAX
    return e.b.index(index, torch.int32 if small else torch.int64)


def _less(e: Emitter, a: IntExpr, b: IntExpr) -> Optional[str]:
    """The condition ``a < b``, None where it always holds."""
    if dims.nonnegative(b - a - 1):
        return None
    x, y = integer(e, a), integer(e, b)
    dtype = e.b.dtype[x] if e.b.dtype[x] is e.b.dtype[y] else torch.int64
    return e.compute("lt", e.b.cast(x, dtype), e.b.cast(y, dtype), dtype=torch.bool)


def within(e: Emitter, index: IntExpr, lo: int, hi: IntExpr) -> Optional[str]:
    """The condition ``lo <= index < hi``, None where it always holds."""
    return e.both(_less(e, lo - 1, index), _less(e, index, hi))


def placed(e: Emitter, value: str, extent: IntExpr) -> dims.Dim:
    """A float that is a whole number, as a place in 0 .. extent - 1: the nearest one."""
    small = type(extent) is int and extent <= INT32_MAX
    return e.b.clamped(e.b.cast(value, torch.int32 if small else torch.int64), extent)


def nearest(index: IntExpr, extent: IntExpr) -> IntExpr:
    """An index brought into 0 .. extent - 1."""
    return dims.Max(dims.Min(index, extent - 1), 0)


# the places of each kind of axis

TAPS: dict[type, Callable] = {}


def _of(kind: type) -> Callable:
    def register(fn: Callable) -> Callable:
        TAPS[kind] = fn
        return fn

    return register


def taps(e: Emitter, axis: windows.Axis, o: IntExpr) -> list[Tap]:
    """The places that element ``o`` along an axis reads."""
    return TAPS[type(axis)](e, axis, o)


@_of(Same)
def _same(e: Emitter, axis: Same, o: IntExpr) -> list[Tap]:
    return [Tap(o)]


@_of(Strided)
def _strided(e: Emitter, axis: Strided, o: IntExpr) -> list[Tap]:
    return [_strided_tap(e, axis, o, k) for k in range(axis.kernel)]


def _strided_tap(e: Emitter, axis: Strided, o: IntExpr, k: IntExpr) -> Tap:
    place = o * axis.stride - axis.padding + k * axis.dilation
    return Tap(place, None, within(e, place, 0, axis.source))


@_of(Shares)
def _shares(e: Emitter, axis: Shares, o: IntExpr) -> list[Tap]:
    start, end = _share(axis, o)
    return [Tap(start + k, None, None if k < axis.least else _less(e, start + k, end)) for k in range(axis.count)]


def _share(axis: Shares, o: IntExpr) -> tuple:
    return o * axis.source // axis.size, -(-((o + 1) * axis.source) // axis.size)


@_of(Edge)
def _edge(e: Emitter, axis: Edge, o: IntExpr) -> list[Tap]:
    i, n = o - axis.before, axis.source
    if axis.how == "replicate":
        return [Tap(nearest(i, n))]
    if axis.how == "circular":
        return [Tap((i + n) % n)]
    i = dims.Max(i, -i)
    return [Tap(dims.Min(i, (n - 1) * 2 - i))]


@_of(StridedBack)
def _strided_back(e: Emitter, axis: StridedBack, i: IntExpr) -> list[Tap]:
    """Only for windows without holes it is said which of the places are in the window."""
    at = i + axis.padding
    last, rest = at // axis.stride, at % axis.stride
    found = []
    for j in reversed(range(axis.count)):
        inside = within(e, last - j, 0, axis.source)
        if axis.dilation == 1:
            inside = e.both(inside, _less(e, rest + j * axis.stride, axis.kernel))
        found.append(Tap(last - j, None, inside))
    return found


@_of(SharesBack)
def _shares_back(e: Emitter, axis: SharesBack, i: IntExpr) -> list[Tap]:
    first = i * axis.source // axis.size
    if axis.count == 1:
        return [Tap(first)]
    last = ((i + 1) * axis.source - 1) // axis.size
    return [Tap(first)] + [Tap(first + j, None, _less(e, first + j, last + 1)) for j in range(1, axis.count)]


@_of(EdgeBack)
def _edge_back(e: Emitter, axis: EdgeBack, i: IntExpr) -> list[Tap]:
    n, before, after = axis.size, axis.before, axis.after
    found = [Tap(i + before)]
    if axis.how == "replicate":
        found += [Tap(k, None, _less(e, i, 1)) for k in range(before)]
        found += [Tap(n + before + k, None, _less(e, n - 2, i)) for k in range(after)]
        return found
    low, high = ((before - i, 2 * (n - 1) + before - i) if axis.how == "reflect" else (i + before - n, i + before + n))
    if before:
        inside = within(e, i, 1, before + 1) if axis.how == "reflect" else _less(e, -1, low)
        found.insert(0, Tap(low, None, inside))
    if after:
        inside = within(e, i, n - 1 - after, n - 1) if axis.how == "reflect" else _less(e, high, axis.source)
        found.append(Tap(high, None, inside))
    return found


# resizing


def _step(e: Emitter, real: Real, axis: Resized) -> str:
    if axis.step is not None:
        return real.value(axis.step)
    if axis.align:
        return real("div", real.of(axis.source - 1), real.of(axis.size - 1))
    return real("div", real.of(axis.source), real.of(axis.size))


def _centre(e: Emitter, real: Real, axis: Resized, o: IntExpr, half: bool, low: bool) -> str:
    """``step * (o + 1/2) - 1/2``, or without halves; at least 0 where ``low``."""
    step = _step(e, real, axis)
    if axis.align or not half:
        return real("mul", step, real.of(o))
    at = real("sub", real("mul", step, real("add", real.of(o), 0.5)), 0.5)
    return real("maximum", at, 0.0) if low else at


@_of(Resized)
def _resized(e: Emitter, axis: Resized, o: IntExpr) -> list[Tap]:
    how = axis.how
    if how in ("nearest", "exact"):
        if axis.nearest_place is not None:
            a, b, c = axis.nearest_place
            return [Tap((o * a + b) // c)]
        real = Real(e, torch.float32)
        at = real.of(o) if how == "nearest" else real("add", real.of(o), 0.5)
        return [Tap(placed(e, real("floor", real("mul", at, _step(e, real, axis))), axis.source))]
    real = Real(e, torch.float64 if axis.wide else torch.float32)
    if how.startswith("smooth"):
        return _smooth(e, real, axis, o)
    if axis.first_place is None:
        at = _centre(e, real, axis, o, True, how == "linear")
        first = real("floor", at)
        far = real("sub", at, first)
    else:  # with an index expression several results can share what they read
        a, b, c = axis.first_place
        low = (o * a + b) // c
        if axis.period is not None and axis.period <= LONGEST_PERIOD:  # of several results each may have its constant
            r = o % axis.period
            far = real("sub", _centre(e, real, axis, r, True, False), real.of((r * a + b) // c))
            if how == "linear":
                before = _less(e, o * a + b, 0)
                far = far if before is None else real.where(before, real.value(0.0), far)
        else:
            first = real.of(dims.Max(low, 0) if how == "linear" else low)
            far = real("sub", _centre(e, real, axis, o, True, how == "linear"), first)
        low = dims.Max(low, 0) if how == "linear" else low

    def place(k: int) -> IntExpr:
        if axis.first_place is None:
            return placed(e, real("add", first, float(k)) if k else first, axis.source)
        return nearest(low + k, axis.source)

    if how == "linear":
        right = real("minimum", far, 1.0)
        return [Tap(place(0), real("sub", 1.0, right)), Tap(place(1), right)]
    return [Tap(place(k - 1), w) for k, w in enumerate(_cubic(real, far))]


def _near(real: Real, x: str, a: float) -> str:
    """The cubic kernel up to 1: ((a + 2) x - (a + 3)) x x + 1"""
    inner = real("sub", real("mul", a + 2, x), a + 3)
    return real("add", real("mul", real("mul", inner, x), x), 1.0)


def _far(real: Real, x: str, a: float) -> str:
    """The cubic kernel from 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a"""
    inner = real("add", real("mul", real("sub", real("mul", a, x), 5 * a), x), 8 * a)
    return real("sub", real("mul", inner, x), 4 * a)


def _cubic(real: Real, t: str, a: float = NEGATIVE) -> list[str]:
    """The weights of four neighbours of which the second is ``t`` before."""
    back = real("sub", 1.0, t)
    return [_far(real, real("add", t, 1.0), a), _near(real, t, a), _near(real, back, a),
            _far(real, real("add", back, 1.0), a)]


def _smooth(e: Emitter, real: Real, axis: Resized, o: IntExpr) -> list[Tap]:
    """Places under a kernel that is stretched by the step where the image shrinks; the weights add up to 1."""
    centre = real("mul", _step(e, real, axis), real("add", real.of(o), 0.5))

    def bound(sign: str) -> str:
        """Towards zero, as a conversion rounds; what is below zero is cut off anyway."""
        return real("trunc", real("add", real(sign, centre, axis.reach), 0.5))

    low = real("maximum", bound("sub"), 0.0)
    end = real("minimum", bound("add"), real.of(axis.source))
    inverse = 1.0 / max(axis.step, 1.0)
    found, total = [], None
    for k in range(axis.count):
        if axis.first_place is None:
            place = real("add", low, float(k))
            at, inside = placed(e, place, axis.source), real.test("lt", place, end)
        else:
            a, b, c = axis.first_place
            index = (o * a + b) // c + k
            place, at = real.of(index), nearest(index, axis.source)
            inside = e.both(real.test("le", low, place), real.test("lt", place, end))
        x = real("abs", real("mul", real("add", real("sub", place, centre), 0.5), inverse))
        if axis.how == "smooth linear":
            weight = real("maximum", real("sub", 1.0, x), 0.0)
        else:
            weight = real.where(real.test("lt", x, 1.0), _near(real, x, -0.5),
                                real.where(real.test("lt", x, 2.0), _far(real, x, -0.5), 0.0))
        weight = real.where(inside, weight, 0.0)
        total = weight if total is None else real("add", total, weight)
        found.append((at, weight, inside))
    return [Tap(place, real("div", weight, total), inside) for place, weight, inside in found]


@_of(ResizedBack)
def _resized_back(e: Emitter, axis: ResizedBack, i: IntExpr) -> list[Tap]:
    """The weights that a result gives to its places, of those that are this one."""
    first, found, forward = windows.first_touching(axis, i), [], axis.forward
    real = Real(e, torch.float64 if axis.wide else torch.float32)
    for j in range(axis.count):
        o = first + j
        inside = within(e, o, 0, axis.source)
        weight = None
        for tap in taps(e, forward, o):
            here = _equal(e, tap.place, i)
            if tap.weight is None:
                inside = e.both(inside, here)
                continue
            part = real.where(here, tap.weight, 0.0)
            weight = part if weight is None else real("add", weight, part)
        found.append(Tap(o, weight, inside))
    return found


def _equal(e: Emitter, a: IntExpr, b: IntExpr) -> str:
    return e.compute("eq", e.b.index(a), e.b.index(b), dtype=torch.bool)


# what becomes of them


HOW: dict[str, Callable] = {}


def _how(name: str) -> Callable:
    def register(fn: Callable) -> Callable:
        HOW[name] = fn
        return fn

    return register


@lowers("window")
def _window(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    return HOW[node.attrs["how"]](e, node, index, mask)


def _split(node: Node, index: tuple) -> tuple:
    """The axes, the index in front of them, and the index along them."""
    axes = windows.axes_of(node)
    return axes, index[: len(index) - len(axes)], index[len(index) - len(axes):]


@_how("sum")
def _sum(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    axes, lead, at = _split(node, index)
    x, dtype = node.inputs[0], register_dtype(node.type.dtype)
    along = [taps(e, a, o) for a, o in zip(axes, at)]
    divisor = node.attrs.get("divisor")
    if all(len(t) == 1 and t[0].weight is None and t[0].inside is None for t in along):  # moved, of any dtype
        value = e.value(x, (*lead, *(t[0].place for t in along)), mask)
        if divisor is None:
            return value
    else:
        real = Real(e, dtype)
        value = _nested(e, real, x, lead, along, mask)
    real = Real(e, dtype)
    if divisor is None:
        return value
    for count in _divisors(axes, at, divisor):
        value = real("div", value, real.of(count) if not isinstance(count, float) else count)
    return value


def _nested(e: Emitter, real: Real, x: Node, place: tuple, along: list, mask: str | None) -> str:
    """The sum over the first of the axes of the sums over the others."""
    if not along:
        return e.b.cast(e.value(x, place, mask), real.dtype)
    total = None
    for tap in along[0]:
        inside = e.both(mask, tap.inside)
        value = _nested(e, real, x, (*place, tap.place), along[1:], inside)
        if tap.weight is not None and tap.inside is None and total is not None:
            total = real("fma", tap.weight, value, total)
            continue
        if tap.weight is not None:
            value = real("mul", tap.weight, value)
        value = real.where(tap.inside, value, 0.0)
        total = value if total is None else real("add", total, value)
    assert total is not None
    return total


def _divisors(axes: list, at: tuple, divisor: str | float) -> list:
    """What a sum is divided by, one after the other: sizes or numbers."""
    if not isinstance(divisor, str):
        return [float(divisor)]
    if divisor == "axes":
        shares = [(a, *_share(a, o)) for a, o in zip(axes, at) if isinstance(a, Shares)]
        return [a.source // a.size if dims.divisible(a.source, a.size) else end - start for a, start, end in shares]
    count = 1
    for a, o in zip(axes, at):
        start = o * a.stride - a.padding
        end = dims.Min(start + a.kernel, a.source + a.padding)
        if divisor == "inside":
            start, end = dims.Max(start, 0), dims.Min(end, a.source)
        count = count * (end - start)
    return [count]


@_how("back")
def _back(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    axes, lead, at = _split(node, index)
    real, g, total = Real(e, register_dtype(node.type.dtype)), node.inputs[0], None
    shares = isinstance(axes[0], SharesBack)
    windows_ = [Shares(a.size, a.source) if shares
                else Strided(a.size, a.source, a.kernel, a.stride, a.padding) for a in axes]
    for inside, place, _ in _combined(e, [taps(e, a, i) for a, i in zip(axes, at)]):
        value = e.value(g, (*lead, *place), e.both(mask, inside))
        for count in _divisors(windows_, place, node.attrs["divisor"]):
            value = real("div", value, count if isinstance(count, float) else real.of(count))
        value = real.where(inside, value, 0.0)
        total = value if total is None else real("add", total, value)
    return total


def _combined(e: Emitter, along: list) -> list:
    """(where it counts, places, taps) for each combination of the taps of all axes, the last one fastest."""
    found = []
    for combination in itertools.product(*along):
        inside = None
        for tap in combination:
            inside = e.both(inside, tap.inside)
        found.append((inside, tuple(t.place for t in combination), combination))
    return found


@_how("max")
def _max(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    axes, lead, at = _split(node, index)
    real = Real(e, register_dtype(node.type.dtype))

    def largest(place: tuple, along: list, mask: str | None) -> str:
        """Along the first of the axes of the largest along the others."""
        if not along:
            return e.value(node.inputs[0], place, mask)
        best = None
        for tap in along[0]:
            value = largest((*place, tap.place), along[1:], e.both(mask, tap.inside))
            value = real.where(tap.inside, value, float("-inf"))
            best = value if best is None else real("maximum", value, best)
        assert best is not None
        return best

    return largest(tuple(lead), [taps(e, a, o) for a, o in zip(axes, at)], mask)


def _narrow(count: IntExpr) -> torch.dtype:
    """An integer type for positions among so many."""
    return torch.int32 if type(count) is int and count <= INT32_MAX else torch.int64


@_how("position")
def _position(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    """Where the largest is; as eager goes through them: a place takes over that has more, or NaN. Where all are
    -inf it is the first place in the image."""
    axes, lead, at = _split(node, index)
    x, largest = node.inputs
    real = Real(e, register_dtype(x.type.dtype))
    top = e.value(largest, index, mask)
    e_type = _narrow(dims.product(a.source for a in axes))

    def flat(place: tuple) -> IntExpr:
        out: IntExpr = 0
        for p, a in zip(place, axes):
            out = out * a.source + p
        return out

    def number(position: IntExpr) -> str:
        return e.b.index(position, e_type)

    start = []
    for a, o in zip(axes, at):
        if isinstance(a, Strided):
            first = o * a.stride - a.padding
            start.append(first + dims.Max(dims.ceil_div(-first, a.dilation), 0) * a.dilation)
        else:
            start.append(_share(a, o)[0])
    best, nan = number(flat(tuple(start))), e.compute("isnan", top, dtype=torch.bool)
    found = _combined(e, [taps(e, a, o) for a, o in zip(axes, at)])
    values = [e.value(x, (*lead, *place), e.both(mask, inside)) for inside, place, _ in found]

    def pick(order: list, test: Callable) -> str:
        chosen = best
        for k in order:
            inside, place, _ = found[k]
            hit = e.both(inside, test(values[k]))
            chosen = e.compute("where", hit, number(flat(place)), chosen, dtype=e_type)
        return chosen

    one_by_one = list(range(len(found)))
    first = pick(one_by_one[::-1], lambda v: real.test("eq", v, top))
    last = pick(one_by_one, lambda v: e.compute("isnan", v, dtype=torch.bool))
    return e.b.cast(e.compute("where", nan, last, first, dtype=e_type), node.type.dtype)


@_how("picked")
def _picked(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    axes, lead, at = _split(node, index)
    (g, positions), real, total = node.inputs, Real(e, register_dtype(node.type.dtype)), None
    own: IntExpr = 0
    for i, a in zip(at, axes):
        own = own * a.size + i
    narrow = _narrow(dims.product(a.size for a in axes))
    own = e.b.index(own, narrow)
    for inside, place, _ in _combined(e, [taps(e, a, i) for a, i in zip(axes, at)]):
        there = e.both(mask, inside)
        hit = e.compute("eq", e.b.cast(e.value(positions, (*lead, *place), there), narrow), own, dtype=torch.bool)
        value = real.where(e.both(inside, hit), e.value(g, (*lead, *place), there), 0.0)
        total = value if total is None else real("add", total, value)
    return total


@_how("columns")
def _columns(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    axes = windows.axes_of(node)
    n, k = len(axes), len(index) - 2 * len(axes)
    along = [_strided_tap(e, a, o, t) for a, t, o in zip(axes, index[k : k + n], index[k + n :])]
    inside = None
    for tap in along:
        inside = e.both(inside, tap.inside)
    value = e.value(node.inputs[0], (*index[:k], *(t.place for t in along)), e.both(mask, inside))
    if inside is None:
        return value
    dtype = register_dtype(node.type.dtype)
    return e.compute("where", inside, value, e.constant(0, dtype) if not dtype.is_floating_point
                     else e.constant(0.0, dtype), dtype=dtype)


@_how("images")
def _images(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    """Each place is one of those of its window: the remainder that its window leaves."""
    axes, lead, at = _split(node, index)
    real, total = Real(e, register_dtype(node.type.dtype)), None
    for inside, place, _ in _combined(e, [taps(e, a, i) for a, i in zip(axes, at)]):
        inner = tuple(i + a.padding - o * a.stride for a, i, o in zip(axes, at, place))
        value = e.value(node.inputs[0], (*lead, *inner, *place), e.both(mask, inside))
        value = real.where(inside, e.b.cast(value, real.dtype), 0.0)
        total = value if total is None else real("add", total, value)
    return total


# samples at coordinates that data give


@_how("sample")
def _sample(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    x, grid = node.inputs
    n, sizes = len(node.attrs["axes"]), x.type.shape[2:]
    batch, channel, at = index[0], index[1], index[2:]
    real = Real(e, register_dtype(grid.type.dtype))
    mode, padding, align = (node.attrs[k] for k in ("mode", "padding", "align"))
    coordinates = [_unnormalized(real, e.value(grid, (batch, *at, n - 1 - d), mask), sizes[d], align)
                   for d in range(n)]  # the last coordinate of the grid is that of the first dimension

    def read(places: list, inside: str | None) -> str:
        value = e.value(x, (batch, channel, *places), e.both(mask, inside))
        return real.where(inside, e.b.cast(value, real.dtype), 0.0)

    def corner(numbers: list) -> tuple:
        """The places of whole numbers, and where all lie in the image."""
        inside = None
        if padding == 0:
            for v, s in zip(numbers, sizes):
                inside = e.both(inside, e.both(real.test("ge", v, 0.0), real.test("lt", v, real.of(s))))
        return [placed(e, v, s) for v, s in zip(numbers, sizes)], inside

    if mode == 2:
        return _sample_cubic(e, real, coordinates, sizes, padding, align, read)
    coordinates = [_safe(e, real, _padded(e, real, c, s, padding, align)) for c, s in zip(coordinates, sizes)]
    if mode == 1:
        return read(*corner([real("round", c) for c in coordinates]))
    low = [real("floor", c) for c in coordinates]
    total = None
    for choice in itertools.product((0, 1), repeat=n):
        numbers, weight = [], None
        # The factors in eager's order: x, y, z.
        for d in reversed(range(n)):
            up = real("add", low[d], 1.0)
            w = real("sub", coordinates[d], low[d]) if choice[d] else real("sub", up, coordinates[d])
            weight = w if weight is None else real("mul", weight, w)
            numbers.insert(0, up if choice[d] else low[d])
        places, inside = corner(numbers)
        if padding:  # what lies beyond the last place is not read, and has no weight
            for v, s in zip(numbers, sizes):
                inside = e.both(inside, real.test("lt", v, real.of(s)))
        value = real("mul", read(places, inside), weight)
        value = real.where(inside, value, 0.0)
        total = value if total is None else real("add", total, value)
    return total


def _unnormalized(real: Real, c: str, size: IntExpr, align: bool) -> str:
    """From -1 .. 1 to places: -1 and 1 are the first and last place where ``align``, else the outer edges of these."""
    if align:
        return real("mul", real("mul", real("add", c, 1.0), 0.5), real.of(size - 1))
    return real("mul", real("sub", real("mul", real("add", c, 1.0), real.of(size)), 1.0), 0.5)


def _padded(e: Emitter, real: Real, c: str, size: IntExpr, padding: int, align: bool) -> str:
    """A coordinate brought into the image: by the nearest edge (1), or mirrored at edges until it is inside (2)."""
    if padding == 0:
        return c
    if padding == 2:
        low = 0.0 if align else -0.5
        span = real.of(size - 1) if align else real.of(size)
        if align and type(size) is int and size == 1:
            return real("mul", c, 0.0) if False else real.value(0.0)
        off = real("abs", real("sub", c, low))
        flips = real("floor", real("div", off, span))
        extra = real("fmod", off, span)
        odd = real.test("ne", real("fmod", flips, 2.0), 0.0)
        c = real.where(odd, real("add", real("sub", span, extra), low), real("add", extra, low))
    # NaN goes to the first place, as fmax takes it.
    c = real.where(real.test("gt", c, 0.0), c, 0.0)
    return real("minimum", c, real.of(size - 1))


def _safe(e: Emitter, real: Real, c: str) -> str:
    """What no integer can hold is far outside."""
    good = e.both(real.test("le", c, float(INT32_MAX - 1)), real.test("ge", c, float(-INT32_MAX - 1)))
    return real.where(good, c, -100.0)


def _sample_cubic(e: Emitter, real: Real, coordinates: list, sizes: tuple, padding: int, align: bool,
                  read: Callable) -> str:
    """The coordinates are whole ones before they are brought into the image."""
    low = [real("floor", c) for c in coordinates]
    weights = [_cubic(real, real("sub", c, first)) for c, first in zip(coordinates, low)]

    def along(d: int, k: int) -> tuple:
        v = _safe(e, real, _padded(e, real, real("add", low[d], float(k - 1)), sizes[d], padding, align))
        inside = None
        if padding == 0:
            inside = e.both(real.test("ge", v, 0.0), real.test("lt", v, real.of(sizes[d])))
        return placed(e, v, sizes[d]), inside

    places = [[along(d, k) for k in range(4)] for d in range(2)]
    total = None
    for k in range(4):
        row = None
        for m in range(4):
            (y, in_y), (x, in_x) = places[0][k], places[1][m]
            part = real("mul", read([y, x], e.both(in_y, in_x)), weights[1][m])
            row = part if row is None else real("add", row, part)
        part = real("mul", row, weights[0][k])
        total = part if total is None else real("add", total, part)
    return total
