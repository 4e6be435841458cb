"""Stretches of a graph that do the same again and again, as the layers of a deep network do: found by their structure,
whatever the program looks like that has made them.

A *window* is one of the stretches. All have the same operations in the same order and read one another's results in the
same way; each reads, at the same places, what is the same for all of them, inputs of the graph of its own, or what the
window before it has computed. So one graph (``Repeat.window``) says what each does, and the graph is that of what comes
before the windows (``before``), one window after the other, and what comes after them (``after``).

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

    before: Part
    window: Part
    after: Part

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        return self.before, self.window, self.after


def find(graph: Graph) -> Repeat | None:
    """The graph in parts; None where it has no stretch that is repeated often. Sizes have to be known, and nothing may
    be done but for its result and for random numbers."""
    if any(o.mutates is not None for o in graph.outputs) or graph.env.symbols:
        return None
    nodes = [n for n in graph.nodes if n.op != "input"]
    if len(nodes) < MIN_NODES or not all(n.repeatable or n.attrs.get("target", "").startswith("aten::") for n in nodes):
        return None
    ops = [n.op for n in nodes]
    period = _period(ops)
    if period is None:
        return None
    start, length = _longest([_looks(n) for n in nodes], period)
    if length < MIN_WINDOWS * period:
        return None
    end = start + length
    places = {n: k for k, n in enumerate(nodes)}
    last = dict.fromkeys(nodes, -1)  # where a node is read last
    for k, n in enumerate(nodes):
        for i in n.inputs:
            if i in last:
                last[i] = k
    middle = start + (end - start) // period // 2 * period
    cut = _cut(nodes, last, middle, period)
    for o in graph.outputs:
        if o.node in last:
            last[o.node] = len(nodes)
    if cut is None:
        return None
    start += (cut - start) % period
    count, roles = _windows(nodes, places, start, (end - start) // period, period)
    goes_on = [places[r[1]] for r in roles.values() if count > 1 and places.get(r[1], -1) >= start]
    behind = start + (count - 1) * period
    if any(last[nodes[k - start + behind]] < behind + period for k in goes_on):
        # What follows looks like one of them, but for what it gives.
        count, roles = count - 1, {n: found[:-1] for n, found in roles.items()}
    if count < MIN_WINDOWS or count * period < MIN_NODES:
        return None
    return _parts(graph, nodes, places, start, period, count, roles)


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


def _parts(graph: Graph, nodes: list[Node], places: dict[Node, int], start: int, period: int, count: int,
           roles: dict[Node, list[Node]]) -> Repeat | None:
    """The parts before, in and behind the windows."""
    end = start + count * period
    before, first, after = nodes[:start], nodes[start:start + period], nodes[end:]
    # A window's results: what the next one, or whatever comes after them, reads of it.
    wanted = {o.node for o in graph.outputs} | {i for n in after for i in n.inputs}
    wanted_here = wanted | {i for n in nodes[start:end] for i in n.inputs}
    offsets = {(places[n] - start) % period for n in wanted if start <= places.get(n, -1) < end}
    offsets |= {places[r[1]] - start for r in roles.values() if start <= places.get(r[1], -1) < end}
    made = sorted(offsets)
    starts = range(start, end, period)
    head = [n for n in before if n in wanted_here]
    tail = list(dict.fromkeys(o.node for o in graph.outputs if places.get(o.node, -1) >= end))
    parts = [Part(*_apart(graph, before, head), results=[list(head)]),
             Part(_apart(graph, first, [first[k] for k in made])[0], [list(r) for r in zip(*roles.values())],
                  [[nodes[at + k] for k in made] for at in starts]),
             Part(*_apart(graph, after, tail), results=[list(tail)])]
    return None if any(n.several for p in parts for ns in (*p.reads, *p.results) for n in ns) else Repeat(*parts)


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
