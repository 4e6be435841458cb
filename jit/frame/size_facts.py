"""Facts about symbolic sizes, strides, integers and floats of one capture, as one native check.

Every symbol has an origin, where a call reads its value; every predicate that the capture relied on is compiled here,
and a symbol without an origin is an error: what cannot be checked cannot be relied on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ..errors import GuardError
from ..graph.dim_trees import fold
from ..graph.dims import Dim

if TYPE_CHECKING:
    from ..graph.ir import TensorType
    from ..graph.shape_env import ShapeEnv
    from .dynamic import Dynamic
    from .source import Source

_REGISTERS = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "max": "max", "min": "min"}


class SizeFacts:
    """``env``: the ShapeEnv of the capture's tracer. ``integers``: symbol of an integer from outside -> (source,
    "int"). ``dynamic``: which of these may be negative, or None."""

    def __init__(self, env: ShapeEnv, integers: dict, dynamic: Dynamic) -> None:
        self.env, self.integers, self.dynamic = env, integers, dynamic

    def origins(self) -> dict:
        """Symbol -> what it stands for: (source, "size" | "stride", dim), (source, "int") or (value, "float_low" |
        "float_high")."""
        return {**self.env.origins, **self.integers}

    def check_bound(self, source: Source, type_: TensorType) -> None:
        """Raise GuardError when a symbolic size or stride of an input is not tied to what the input has."""
        for what, values in (("size", type_.shape), ("stride", type_.strides)):
            for dim, value in enumerate(values):
                if type(value) is Dim and not self.env.is_bound((source, what, dim)):
                    raise GuardError(f"the {what} {value} of dim {dim} of {source} is recorded nowhere")

    def least(self, name: str, what: str) -> int | None:
        """The least value of a symbol, None for any: sizes and strides of 0 and 1 are constants, not symbols."""
        if what.startswith("float"):
            return None
        if what != "int":
            return 2
        negative = () if self.dynamic is None else self.dynamic.negative
        return None if name in self.integers and self.integers[name][0] in negative else 0

    def symbols(self) -> dict[str, str]:
        """What each symbol stands for, in words."""
        return {name: str(origin[0]) if origin[1] == "int" else f"{origin[0]}.{origin[1]}({origin[2]})"
                for name, origin in self.origins().items() if not origin[1].startswith("float")}

    def conditions(self) -> list[str]:
        """What is relied on of them, in words, in the order of the native check."""
        return [str(p) for p in self.env.guards]

    def places(self) -> list[str]:
        """For each of these the line of the program that needs it; "" where none is known."""
        found = [self.env.needed_at(p) for p in self.env.guards]
        return ["" if loc is None else "{}:{}".format(*(loc.user or loc)[:2]) for loc in found]

    def least_values(self) -> dict[str, int]:
        """The least value of each symbol that has one."""
        least = {name: self.least(name, origin[1]) for name, origin in self.origins().items()}
        return {name: value for name, value in least.items() if value is not None}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is symbolic."""
        return not self.env.guards and not self.origins()

    def payload(self, locate: Callable) -> tuple[tuple[int, ...], tuple[tuple[str | int, ...], ...], tuple[tuple, ...]]:
        """What the native check takes: (accessors, registers, conditions)."""
        origins = self.origins()
        locations: list[int] = []
        regs: list[tuple] = []
        symbols: dict[str, int] = {}

        def reg(row: tuple[str | int, ...]) -> int:
            regs.append(row)
            return len(regs) - 1

        def located(source: Source) -> int:
            at = locate(source)
            if at not in locations:
                locations.append(at)
            return locations.index(at)

        def symbol(name: str) -> int:
            if name not in symbols:
                if name not in origins:
                    raise GuardError(f"a condition on {name}, which no call can read")
                origin, what, *dim = origins[name]
                symbols[name] = reg((what, located(origin), *dim) if what in ("size", "stride")
                                    else ("int", located(origin)))
            return symbols[name]

        conditions = [(fold(p.expr, lambda n: reg(("const", n)), lambda s: symbol(s.name),
                            lambda function, a, b: reg((_REGISTERS[function], a, b))), p.kind) for p in self.env.guards]
        for name, least in self.least_values().items():
            conditions.append((reg(("sub", symbol(name), reg(("const", least)))), ">=0"))
        return tuple(locations), tuple(regs), tuple(conditions)
