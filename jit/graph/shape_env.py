"""The size symbols of one capture, and the facts about them on which it relies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from jit.graph.dims import Dim, IntExpr, Sym, evaluate, free_symbols, hint
from jit.graph.journal import Journal


@dataclass(frozen=True)
class Predicate:
    """A fact about sizes that the capture relied on: ``expr`` is ``kind`` (``==0``, ``!=0``, ``>=0``)."""

    kind: str
    expr: Dim

    def holds(self, values: dict) -> bool:
        """Whether it is true for integer values of the symbols."""
        v = evaluate(self.expr, values)
        return {"==0": v == 0, "!=0": v != 0, ">=0": v >= 0}[self.kind]

    def __repr__(self) -> str:
        return f"{self.expr} {self.kind[:2]} 0"


class ShapeEnv:
    """The size symbols of one capture and the guards recorded about them.

    Attributes:
        guards: list of Predicate, in the order in which they were needed, without repetitions.
        origins: symbol name -> the origin given to ``symbol``; opaque here.
        symbols: symbol name -> the symbol that ``symbol`` gave.
        journal: takes back guards and symbols.
        where: what is being followed, noted for each guard; opaque here.
        scaled: the integer below the product of a size and a float, or None where it has no symbol.
    """

    where: Callable[[], object] = staticmethod(lambda: None)
    scaled: Callable[[Dim, float], IntExpr | None] = staticmethod(lambda size, factor: None)

    def __init__(self, prefix: str = "s") -> None:
        self.prefix = prefix
        self.guards: list[Predicate] = []
        self.origins: dict[str, object] = {}
        self.symbols: dict[str, Dim] = {}
        self._seen: dict[Predicate, object] = {}  # and where it was first needed
        self.journal = Journal()
        self.journal.grows(self.guards, self.origins, self.symbols, self._seen)

    def symbol(self, hint: int, origin: tuple, multiple: int = 1) -> IntExpr:
        """A new symbol for a size whose present value is ``hint``; the plain int for 0 and 1, which are always
        specialised."""
        if hint in (0, 1):
            return hint
        name = f"{self.prefix}{len(self.origins)}"
        self.origins[name] = origin
        made = self.symbols[name] = Sym(name, hint, lo=2, env=self, multiple=multiple)
        return made

    def bind(self, e: IntExpr, origin: tuple) -> None:
        """Record that what ``origin`` reads is ``e``: of a stride that is an expression over other symbols."""
        if not free_symbols(e) or self.is_bound(origin):
            return
        name = f"{self.prefix}{len(self.origins)}"
        self.origins[name] = origin
        self._record(Predicate("==0", Sym(name, hint(e), env=self) - e))  # type: ignore[arg-type]  # its symbol is new

    def is_bound(self, origin: tuple) -> bool:
        """Whether a symbol stands for what ``origin`` reads."""
        return origin in self.origins.values()

    def decide(self, kind: str, e: Dim) -> bool:
        """The truth of ``e == 0`` or ``e >= 0`` at the hints, recorded as a guard."""
        value = hint(e)
        if kind == "==0":
            truth = value == 0
            self._record(Predicate("==0" if truth else "!=0", e))
        else:
            truth = value >= 0
            self._record(Predicate(">=0", e if truth else -1 - e))  # type: ignore[arg-type]
        return truth

    def require(self, e: Dim) -> None:
        """Record that ``e`` is not negative."""
        self._record(Predicate(">=0", e))

    def specialize(self, e: IntExpr) -> int:
        """Record that ``e`` keeps its present value and return that."""
        value = hint(e)
        if free_symbols(e):
            self._record(Predicate("==0", e - value))  # type: ignore[arg-type]
        return value

    def _record(self, predicate: Predicate) -> None:
        # Signs are normalised for equalities, so that a == b and b == a are one guard.
        if predicate.kind != ">=0":
            first = min(predicate.expr.terms, key=lambda mono: [a.key for a in mono])
            if predicate.expr.terms[first] < 0:
                predicate = Predicate(predicate.kind, -predicate.expr)
        if predicate not in self._seen:
            self._seen[predicate] = self.where()
            self.guards.append(predicate)

    def needed_at(self, predicate: Predicate) -> object:
        """What ``where`` has said when a guard was recorded."""
        return self._seen[predicate]
