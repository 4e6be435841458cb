"""Stretches of a graph that do the same again and again, as the layers of a deep network do: found by their structure,
whatever the program looks like that has made them.

A *window* is one of the stretches. All have the same operations in the same order and read one another's results in
the same way; each reads, at the same places, what is the same for all of them, inputs of the graph of its own, what was
computed for it before all windows, or what the window before it has computed. So one graph says what each does, and
the whole is what comes before the windows, one window after the other, and what comes after them, where there may be
other windows: an encoder and a decoder, say.

Windows begin in front of an operation of the library, where the values that go from one window to the next are in
memory anyway: kernels are then the same as for the whole graph.
"""

from __future__ import annotations

import collections
import itertools
from dataclasses import dataclass

from .dims import hint
from .ir import Graph, Node, Output
from .passes.cse import attributes_key
from .prims import VIEWS, base_of, info

_GRAM = 8  # operations in a row by which a stretch is recognised
_CANDIDATES = 8  # distances that are tried
MIN_WINDOWS = 16  # fewer are not worth it
MIN_NODES = 400  # of all windows


@dataclass
class Part:
    """A part of a graph.

    Attributes:
        graph: what it computes, as a graph apart.
        reads: nodes of the whole graph that its inputs stand for, one list for each time that it is done.
        results: likewise of its outputs.
    """

    graph: Graph
    reads: list[list[Node]]
    results: list[list[Node]]


@dataclass
class Repeat:
    """A graph in parts, in the order in which they are done."""

    parts: tuple[Part, ...]

    @property
    def windows(self) -> list[Part]:
        """The parts that are done several times."""
        return [part for part in self.parts if len(part.reads) > 1]


@dataclass
class _Stretch:
    """Windows that follow one another.

    Attributes:
        start, period, count: the place of the first one, the number of operations of each, and how many there are.
        roles: what the first one reads from elsewhere, and what each reads in its place.
    """

    start: int
    period: int
    count: int
    roles: dict[Node, list[Node]]

    @property
    def end(self) -> int:
        return self.start + self.count * self.period


def find(graph: Graph) -> Repeat | None:
    """The graph in parts; None where it has no stretch that is repeated often. Sizes have to be known, and nothing may
    be done but for its result and for random numbers."""
    if any(o.mutates is not None for o in graph.outputs) or graph.env.symbols:
        return None
    nodes = [n for n in graph.nodes if n.op != "input"]
    if len(nodes) < MIN_NODES or not all(n.repeatable or n.attrs.get("target", "").startswith("aten::") for n in nodes):
        return None
    found = _Stretches(graph, nodes).between(0, len(nodes))
    return _parts(graph, nodes, found) if found else None


class _Stretches:
    """What is repeated in a graph.

    Attributes:
        places: the number of each node.
        last: where it is read last; behind all of them, if it is a result of the graph.
    """

    def __init__(self, graph: Graph, nodes: list[Node]) -> None:
        self.nodes, self.ops, self.looks = nodes, [n.op for n in nodes], [_looks(n) for n in nodes]
        self.places = {n: k for k, n in enumerate(nodes)}
        self.last = dict.fromkeys(nodes, -1)
        for k, n in enumerate(nodes):
            for i in n.inputs:
                if i in self.last:
                    self.last[i] = k
        self.read = dict(self.last)  # the same, but for results of the graph
        self.last.update((o.node, len(nodes)) for o in graph.outputs if o.node in self.last)

    def between(self, begin: int, end: int) -> list[_Stretch]:
        """Those from one place to another, in order: the longest one, and what is before and behind it."""
        if end - begin < MIN_NODES:
            return []
        found = self.longest(begin, end)
        if found is None:
            return []
        return [*self.between(begin, found.start), found, *self.between(found.end, end)]

    def longest(self, begin: int, limit: int) -> _Stretch | None:
        period = _period(self.ops[begin:limit])
        if period is None:
            return None
        start, length = _longest(self.looks[begin:limit], period)
        if length < MIN_WINDOWS * period:
            return None
        start, end = begin + start, begin + start + length
        nodes, places, last = self.nodes, self.places, self.last
        middle = start + (end - start) // period // 2 * period
        cut = _cut(nodes, self.read, middle, period)
        if cut is None:
            return None
        start += (cut - start) % period
        count, roles = _windows(nodes, places, start, (end - start) // period, period)
        if count == 1 or any(r[0].op != "input" and base_of(r[0]).op == "input" and places.get(r[1], -1) >= start
                             for r in roles.values() if count > 1):
            # The first one is none: it reads the same where the others read several, or what it reads lies in memory
            # that the program has, and may write to.
            start += period
            count, roles = _windows(nodes, places, start, (end - start) // period, period)
        goes_on = [places[r[1]] for r in roles.values() if count > 1 and places.get(r[1], -1) >= start]
        behind = start + (count - 1) * period
        if any(last[nodes[k - start + behind]] < behind + period for k in goes_on):
            # What follows looks like one of them, but for what it gives.
            count, roles = count - 1, {n: found[:-1] for n, found in roles.items()}
        if count < MIN_WINDOWS or count * period < MIN_NODES:
            return None
        return _Stretch(start, period, count, roles)


def _looks(n: Node) -> tuple:
    """What two operations have in common that may be the same, but for what they read."""
    return n.op, attributes_key(n), n.type


def _period(ops: list[str]) -> int | None:
    """The distance at which runs of operations come again, of those that are met most the one at which the longest
    stretch does: within a layer there are runs that come again, too. None where no stretch is long enough."""
    last: dict[tuple, int] = {}
    votes: collections.Counter[int] = collections.Counter()
    for k in range(_GRAM, len(ops) + 1):
        gram = tuple(ops[k - _GRAM:k])
        votes[k - last.get(gram, k)] += 1
        last[gram] = k
    del votes[0]  # those that were met for the first time
    lengths = {period: _longest(ops, period)[1] for period, _ in votes.most_common(_CANDIDATES)}
    found = [period for period, length in lengths.items() if length >= MIN_WINDOWS * period]
    return max(found, key=lambda period: (lengths[period], -period), default=None)


def _longest(looks: list, period: int) -> tuple[int, int]:
    """(start, length) of the longest stretch in which all looks as what is a period before it."""
    same = [a == b for a, b in zip(looks, looks[period:])]
    best, begin = (0, 0), 0
    for alike, run in itertools.groupby(same):
        length = sum(1 for _ in run)
        if alike:
            best = max(best, (length, -begin))
        begin += length
    return -best[1], best[0] + period if best[0] else 0


def _cut(nodes: list[Node], last: dict[Node, int], middle: int, period: int) -> int | None:
    """Where, within the period from ``middle`` on, the fewest bytes go on to what follows: in front of an operation of
    the library, if there is any."""
    calls = [k for k in range(middle, middle + period) if info(nodes[k].op).kind == "call"]
    costs = []
    for k in calls or range(middle, middle + period):
        while calls and nodes[k - 1].op in VIEWS and base_of(nodes[k - 1]).op == "input":
            k -= 1  # what shows a parameter is the window's own
        crossing = [nodes[j] for j in range(max(0, k - period), k) if last[nodes[j]] >= k]
        if crossing and not any(n.several for n in crossing):
            memory = {base_of(n) for n in crossing}
            costs.append((sum(hint(n.type.numel) * n.dtype.itemsize for n in memory if n.op != "input"),
                          len(crossing), k))
    return min(costs)[2] if costs else None


def _windows(nodes: list[Node], places: dict[Node, int], start: int, most: int,
             period: int) -> tuple[int, dict[Node, list[Node]]]:
    """How many windows from ``start`` on are alike, and what each reads from elsewhere in the place of what the first
    one reads."""
    roles: dict[Node, list[Node]] = {}
    count = 0
    for at in range(start, start + most * period, period):
        own: dict[Node, Node] = {}
        stands_for: dict[Node, Node] = {}
        for first, n in zip(nodes[start:start + period], nodes[at:at + period]):
            for a, b in zip(first.inputs, n.inputs, strict=True):
                inside = start <= places.get(a, -1) < start + period
                if inside:
                    if places.get(b, -1) - at != places[a] - start:
                        return count, roles
                elif (own.setdefault(a, b) is not b or stands_for.setdefault(b, a) is not a or a.type != b.type
                      or at <= places.get(b, -1) < at + period):
                    return count, roles
        if count and not all(_goes_on(roles[a], b, places, start, at, period) for a, b in own.items()):
            return count, roles
        for a, b in own.items():
            roles.setdefault(a, []).append(b)
        count += 1
    return count, roles


def _goes_on(before: list[Node], b: Node, places: dict[Node, int], start: int, at: int, period: int) -> bool:
    """Whether the window at ``at`` may read ``b`` where those before it have read others: the same one as all, each an
    input of the graph or what was computed before all windows, or from the window before it."""
    if all(b is other for other in before):
        return True
    if places.get(b, -1) < start or places.get(before[-1], -1) < start and len(before) > 1:
        return all(places.get(other, -1) < start for other in (b, *before))
    place = places[b]
    return at - period <= place < at and (len(before) == 1 or place - places[before[-1]] == period)


def _parts(graph: Graph, nodes: list[Node], found: list[_Stretch]) -> Repeat | None:
    """The parts before, in and behind the windows."""
    starts = [at for s in found for at in range(s.start, s.end, s.period)]
    ends = [s.end for s in found]
    borders = sorted({0, len(nodes), *starts, *ends})
    piece_of = {n: k for k, (a, b) in enumerate(zip(borders, borders[1:])) for n in nodes[a:b]}
    # What is read of a piece behind it, or is a result of the graph.
    wanted = {o.node for o in graph.outputs} | {i for n in nodes for i in n.inputs if piece_of.get(i) != piece_of[n]}
    parts, at = [], 0
    for s in [*found, None]:
        plain = nodes[at:len(nodes) if s is None else s.start]
        results = [n for n in plain if n in wanted]
        if plain:
            parts.append(Part(*_apart(graph, plain, results), results=[results]))
        if s is not None:
            made = sorted({(k - s.start) % s.period for k in range(s.start, s.end) if nodes[k] in wanted})
            first = nodes[s.start:s.start + s.period]
            parts.append(Part(_apart(graph, first, [first[k] for k in made])[0],
                              [list(reads) for reads in zip(*s.roles.values())],
                              [[nodes[k + offset] for offset in made] for k in range(s.start, s.end, s.period)]))
            at = s.end
    return None if any(n.several for p in parts for ns in (*p.reads, *p.results) for n in ns) else Repeat(tuple(parts))


def _apart(graph: Graph, nodes: list[Node], results: list[Node]) -> tuple[Graph, list[list[Node]]]:
    """A graph of these nodes alone, and what its inputs stand for."""
    new: dict[Node, Node] = {}
    own, inputs, made = set(nodes), [], []
    for n in nodes:
        for i in n.inputs:
            if i not in own and i not in new:
                new[i] = i.replace("input", (), {"index": len(inputs)})
                inputs.append(i)
        new[n] = n.replace(inputs=tuple([new[i] for i in n.inputs]))
        made.append(new[n])
    return Graph([new[i] for i in inputs], [*[new[i] for i in inputs], *made],
                 [Output(new[r]) for r in results], graph.env), [inputs]
