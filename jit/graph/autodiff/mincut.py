"""Minimum cut of a directed graph with capacities (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

from jit.turns import point

INFINITE = 1 << 62


class Network:
    """Vertices are numbers from ``vertex()``; 0 is the source and 1 the sink."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self.edges: list = [[], []]   # per vertex: numbers of edges; edge e and its reverse e ^ 1
        self.to: list = []
        self.capacity: list = []

    def vertex(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        for start, end, c in ((a, b, capacity), (b, a, 0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.capacity.append(c)

    def sink_side(self) -> set:
        """The vertices on the sink's side of the minimum cut that lies closest to the sink."""
        while True:
            level = self._levels()
            if level[self.SINK] < 0:
                break
            self._block(level)
        found, queue = {self.SINK}, deque([self.SINK])
        while queue:
            v = queue.popleft()
            for e in self.edges[v]:
                u = self.to[e]
                if u not in found and self.capacity[e ^ 1] > 0:
                    found.add(u)
                    queue.append(u)
        return found

    def _levels(self) -> list:
        point()
        level = [-1] * len(self.edges)
        level[self.SOURCE] = 0
        queue = deque([self.SOURCE])
        to, capacity = self.to, self.capacity
        while queue:
            v = queue.popleft()
            for e in self.edges[v]:
                if capacity[e] > 0 and level[to[e]] < 0:
                    level[to[e]] = level[v] + 1
                    queue.append(to[e])
            if level[self.SINK] >= 0:
                break  # what is as far away, or further, is on no shortest path
        return level

    def _block(self, level: list[int]) -> None:
        """Saturate paths of the level graph."""
        to, capacity, edges = self.to, self.capacity, self.edges
        at = [0] * len(edges)
        while True:
            path, v = [], self.SOURCE
            while v != self.SINK:
                for k in range(at[v], len(edges[v])):
                    e = edges[v][k]
                    if capacity[e] > 0 and level[to[e]] == level[v] + 1:
                        at[v] = k
                        path.append(e)
                        v = to[e]
                        break
                else:
                    at[v] = len(edges[v])
                    if not path:
                        return
                    e = path.pop()
                    v = to[e ^ 1]
                    at[v] += 1
            amount = min(capacity[e] for e in path)
            if amount >= INFINITE:
                raise ValueError("the sink can be reached by uncuttable edges only")
            for e in path:
                capacity[e] -= amount
                capacity[e ^ 1] += amount
