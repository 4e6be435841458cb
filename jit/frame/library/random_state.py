"""Seeds and states of PyTorch's random generators: calls in the graph, in order with its draws."""

from __future__ import annotations

import torch

from ...errors import Unsupported
from ...graph import generators
from ..values import batched
from ..tables import add_forbidden, on_function, on_method
from ..values.constant import Constant
from ..values.tensor import TensorValue, known_generator, lower

NONE = Constant(None)


def _argument(s, name, args, kwargs):
    """The only argument of a function."""
    if len(args) + len(kwargs) != 1 or kwargs and name not in kwargs:
        raise Unsupported(f"a call that does not give {name} alone", kind="argument-error")
    return args[0] if args else kwargs[name]


def _record(s, fn, *args):
    if batched.active(s):
        raise Unsupported("random state inside torch.vmap or under a mode", "set it outside", kind="global-state")
    return s.recording.traced(lambda: fn(s.tracer, *args))


def _seed(s, args, kwargs):
    return lower(s, _argument(s, "seed", args, kwargs))


def _state(s, args, kwargs):
    value = _argument(s, "new_state", args, kwargs)
    if not isinstance(value, TensorValue):
        raise Unsupported("a random state that is no tensor", kind="argument-error")
    return value.handle(s)


@on_function(torch.manual_seed)
def manual_seed(s, args, kwargs):
    _record(s, generators.manual_seed, _seed(s, args, kwargs))
    return s.wrap_raw(torch.default_generator)


@on_function(torch.get_rng_state)
def get_rng_state(s, args, kwargs):
    return _record(s, generators.state, None)


@on_function(torch.set_rng_state)
def set_rng_state(s, args, kwargs):
    _record(s, generators.set_state, None, _state(s, args, kwargs))
    return NONE


@on_method((torch.Generator, "manual_seed"))
def generator_manual_seed(s, generator, args, kwargs):
    _record(s, generators.seed_generator, known_generator(s, generator), _seed(s, args, kwargs))
    return generator


@on_method((torch.Generator, "get_state"))
def generator_get_state(s, generator, args, kwargs):
    return _record(s, generators.state, known_generator(s, generator))


@on_method((torch.Generator, "set_state"))
def generator_set_state(s, generator, args, kwargs):
    _record(s, generators.set_state, known_generator(s, generator), _state(s, args, kwargs))
    return generator


add_forbidden("random state is read by Python, or seeded by chance", "do it outside the compiled function",
              torch.seed, torch.initial_seed)


# the GPUs'


@on_function(torch.accelerator.current_accelerator)
def current_accelerator(s, args, kwargs):
    return s.from_python(torch.accelerator.current_accelerator(*(a.const(s) for a in args),
                                                               **{k: v.const(s) for k, v in kwargs.items()}))


@on_function(torch.cuda.device_count)
def device_count(s, args, kwargs):
    return Constant(torch.cuda.device_count())


def _gpu(device) -> torch.Generator:
    """The generator of a GPU, given as PyTorch's functions take it. Raises Unsupported where there is none yet."""
    if not torch.cuda.is_initialized():
        raise Unsupported("the random state of a GPU that is not in use",
                          "do it outside the compiled function", kind="global-state")
    index = device if isinstance(device, int) else torch.device(device).index
    return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]


@on_function(torch.cuda.get_rng_state)
def gpu_get_rng_state(s, args, kwargs):
    device = _argument(s, "device", args, kwargs).const(s) if args or kwargs else "cuda"
    return _record(s, generators.state, _gpu(device))


@on_function(torch.cuda.set_rng_state)
def gpu_set_rng_state(s, args, kwargs):
    args = list(args)
    device = kwargs["device"] if "device" in kwargs else args.pop() if len(args) == 2 else Constant("cuda")
    _record(s, generators.set_state, _gpu(device.const(s)), _state(s, args,
                                                                   {k: v for k, v in kwargs.items() if k != "device"}))
    return NONE


@on_function(torch.cuda.manual_seed)
def gpu_manual_seed(s, args, kwargs):
    _record(s, generators.seed_generator, _gpu("cuda"), _seed(s, args, kwargs))
    return NONE


@on_function(torch.cuda.manual_seed_all)
def gpu_manual_seed_all(s, args, kwargs):
    _gpu("cuda")
    for generator in torch.cuda.default_generators:
        _record(s, generators.seed_generator, generator, _seed(s, args, kwargs))
    return NONE
