"""Effects on PyTorch's random generators as operators, which a graph calls in program order between its draws.

``jit::manual_seed(seed)`` is ``torch.manual_seed``, of all devices; ``jit::seed_generator``, ``jit::generator_state``
and ``jit::set_generator_state`` are methods of one generator, None for the CPU's own. Those that give nothing give a
tensor without elements.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from jit.errors import EagerRaises, Unsupported
from jit.graph.dims import Dim
from jit.graph.handles import TensorHandle
from jit.graph.ir import TensorType

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.ir import Node
    from jit.graph.tracer import Tracer

_CPU = torch.device("cpu")
_NOTHING = TensorType.contiguous((0,), torch.int64, _CPU)


def _of(generator) -> object:
    return torch.default_generator if generator is None else generator


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64, device="cpu")


def _manual_seed(seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return _nothing()


def _seed_generator(generator, seed) -> torch.Tensor:
    _of(generator).manual_seed(seed)
    return _nothing()


def _generator_state(generator) -> torch.Tensor:
    return _of(generator).get_state()


def _set_generator_state(generator, state: torch.Tensor) -> torch.Tensor:
    _of(generator).set_state(state)
    return _nothing()


@functools.cache
def define() -> torch.library.Library:
    """The operators, registered with PyTorch's dispatcher once they are needed."""
    library = torch.library.Library("jit", "FRAGMENT")
    for schema, fn in {
        "manual_seed(int seed) -> Tensor": _manual_seed,
        "seed_generator(Generator? generator, int seed) -> Tensor": _seed_generator,
        "generator_state(Generator? generator) -> Tensor": _generator_state,
        "set_generator_state(Generator? generator, Tensor state) -> Tensor": _set_generator_state,
    }.items():
        library.define(schema)
        library.impl(schema[: schema.index("(")], fn, "CompositeExplicitAutograd")
    return library


def _record(tracer: Tracer, name: str, args: tuple[Node | int | None, ...], type: TensorType) -> TensorHandle:
    define()
    return tracer.fresh(tracer.builder.aten(f"jit::{name}", "", args, type, impure=True), False)


def _seed(seed: IntExpr) -> int:
    """A seed as an operator takes it. Raises Unsupported for one that is no integer of 64 bits."""
    seed = int(seed) if type(seed) is bool else seed
    if type(seed) is Dim or type(seed) is int and -(1 << 63) <= seed < 1 << 63:
        return seed
    raise Unsupported("a seed that is not an integer of 64 bits", "pass an int", kind="global-state")


def manual_seed(tracer: Tracer, seed: int) -> None:
    _record(tracer, "manual_seed", (_seed(seed),), _NOTHING)


def seed_generator(tracer: Tracer, generator, seed) -> None:
    """Raises what eager raises for what is no int, unlike ``torch.manual_seed``, which makes one of it."""
    if isinstance(seed, (bool, float, str, type(None))):
        try:
            torch.Generator().manual_seed(seed)
        except Exception as error:  # eager's own
            raise EagerRaises(error) from None
    _record(tracer, "seed_generator", (generator, _seed(seed)), _NOTHING)


def _state_type(generator) -> TensorType:
    return TensorType.contiguous((_of(generator).get_state().numel(),), torch.uint8, _CPU)


def state(tracer: Tracer, generator) -> TensorHandle:
    """The state of a generator, a new uint8 tensor on the CPU."""
    return _record(tracer, "generator_state", (generator,), _state_type(generator))


def set_state(tracer: Tracer, generator, handle: TensorHandle) -> None:
    """Raises Unsupported for a tensor that is not of the generator's kind of state."""
    if handle.node.type != _state_type(generator):
        raise Unsupported("a random state of another form than the generator's",
                          "give it what get_state() has given", kind="global-state")
    _record(tracer, "set_generator_state", (generator, handle.node), _NOTHING)
