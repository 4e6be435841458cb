"""Seeds and states of PyTorch's random generators: calls in the graph, in order with its draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from ... import devices
from ...errors import Unsupported
from ...graph import generators
from ..values import batched
from ..tables import add_forbidden, on_function, on_method
from ..values.constant import Constant

if TYPE_CHECKING:
    from ...graph.handles import TensorHandle
    from ..session import Session
    from ..values.base import Value

NONE = Constant(None)


def _argument(s: Session, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The only argument of a function."""
    if len(args) + len(kwargs) != 1 or kwargs and name not in kwargs:
        raise Unsupported(f"a call with other arguments than {name}", kind="argument-error")
    return args[0] if args else kwargs[name]


def _record(s: Session, fn: Callable, *args: TensorHandle | int | None) -> Value:
    if batched.active(s):
        raise Unsupported("the random state is used inside torch.vmap or under a mode", "use it outside",
                          kind="global-state")
    return s.recording.traced(lambda: fn(s.tracer, *args))


def _seed(s: Session, args: list[Value], kwargs: dict[str, Value]) -> int:
    return _argument(s, "seed", args, kwargs).lower(s)


def _state(s: Session, args: list[Value], kwargs: dict[str, Value]) -> TensorHandle:
    value = _argument(s, "new_state", args, kwargs)
    if not value.is_tensor:
        raise Unsupported("a random state is set to something that is no tensor", kind="argument-error")
    return value.handle(s)


@on_function(torch.manual_seed)
def manual_seed(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _record(s, generators.manual_seed, _seed(s, args, kwargs))
    return s.wrap_raw(torch.default_generator)


@on_function(torch.get_rng_state)
def get_rng_state(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _record(s, generators.state, None)


@on_function(torch.set_rng_state)
def set_rng_state(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _record(s, generators.set_state, None, _state(s, args, kwargs))
    return NONE


@on_method((torch.Generator, "manual_seed"))
def generator_manual_seed(s: Session, generator, args, kwargs: dict[str, Value]):
    _record(s, generators.seed_generator, generator.known(s), _seed(s, args, kwargs))
    return generator


@on_method((torch.Generator, "get_state"))
def generator_get_state(s: Session, generator, args, kwargs: dict[str, Value]) -> Value:
    return _record(s, generators.state, generator.known(s))


@on_method((torch.Generator, "set_state"))
def generator_set_state(s: Session, generator, args, kwargs: dict[str, Value]):
    _record(s, generators.set_state, generator.known(s), _state(s, args, kwargs))
    return generator


add_forbidden("random state is read by Python, or seeded by chance", "do it outside the compiled function",
              torch.seed, torch.initial_seed)


# those of other devices than the CPU


@on_function(torch.accelerator.current_accelerator)
def current_accelerator(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.from_python(torch.accelerator.current_accelerator(*(a.const(s) for a in args),
                                                               **{k: v.const(s) for k, v in kwargs.items()}))


def _generator(device) -> torch.Generator:
    """The generator of a device, given as PyTorch's functions take it. Raises Unsupported where there is none yet."""
    device = torch.device(device)
    found = devices.backend(device)
    generators = found.generators()
    if generators is None:
        raise Unsupported("the random state of a GPU that is not in use",
                          "do it outside the compiled function", kind="global-state")
    return generators[found.current().index if device.index is None else device.index]


def _follow(found: devices.Backend) -> None:
    """Rules for the functions that ``torch.cuda``, say, has for its devices."""
    module = found.module

    def place(device):
        """The device that such a function means by its argument, which may be an index."""
        return torch.device(found.type, device) if isinstance(device, int) else device

    @on_function(module.device_count)
    def device_count(s: Session, args, kwargs: dict[str, Value]) -> Constant:
        return Constant(module.device_count())

    @on_function(module.get_rng_state)
    def get_rng_state(s: Session, args, kwargs: dict[str, Value]) -> Value:
        device = _argument(s, "device", args, kwargs).const(s) if args or kwargs else found.type
        return _record(s, generators.state, _generator(place(device)))

    @on_function(module.set_rng_state)
    def set_rng_state(s: Session, args, kwargs: dict[str, Value]):
        args = list(args)
        device = kwargs["device"] if "device" in kwargs else args.pop() if len(args) == 2 else Constant(found.type)
        new = _state(s, args, {k: v for k, v in kwargs.items() if k != "device"})
        _record(s, generators.set_state, _generator(place(device.const(s))), new)
        return NONE

    @on_function(module.manual_seed)
    def manual_seed(s: Session, args, kwargs: dict[str, Value]):
        _record(s, generators.seed_generator, _generator(found.type), _seed(s, args, kwargs))
        return NONE

    @on_function(module.manual_seed_all)
    def manual_seed_all(s: Session, args, kwargs: dict[str, Value]):
        _generator(found.type)  # raises where none is in use
        for generator in found.generators():
            _record(s, generators.seed_generator, generator, _seed(s, args, kwargs))
        return NONE


for _backend in devices.registered():
    if _backend.module is not None:
        _follow(_backend)
