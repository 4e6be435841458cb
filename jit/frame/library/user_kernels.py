"""Triton kernels of the program's own: ``kernel[grid](x, out, n, BLOCK=128)`` is a node of the graph
(``graph.launches``).

Triton's own Python code is followed down to the launch: what ``kernel[grid]`` gives, heuristics, and the choice of an
autotuner that has been made. Which of its tensors the kernel may write is told from its source (``kernel_writes``).
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from ...errors import Unsupported
from ...graph import launches
from ...graph.dims import Dim
from ...graph.handles import TensorHandle
from ...graph.ir import Loc
from ...graph.launches import Call, constant
from ...graph.nested import of_kind
from ...runtime import user_kernels
from ..kernel_writes import writes_of
from ..tables import on_function, on_name
from ..values import batched
from ..values.base import Value
from ..values.constant import Constant
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.functions import FunctionValue

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "enable_fp_fusion", "launch_pdl",
            "launch_cooperative_grid", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "ir_override")


def _break(why: str, hint: str = "") -> Unsupported:
    return Unsupported(f"a Triton kernel {why}", hint, kind="triton-kernel")


def _grid(grid, names, values):
    """The three dimensions of a grid, as Triton takes it: a tuple, or a function of the arguments by name."""
    if callable(grid):
        grid = grid(dict(zip(names, values)))
    return (grid[0], grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1)


def _tuned(self, args, kwargs):
    """(whether an autotuner has chosen for these arguments, the choice), as ``Autotuner.run`` finds it."""
    nargs = dict(zip(self.arg_names, args))
    if len(self.configs) == 1:
        return True, self.configs[0]
    given = {k: v for k, v in {**nargs, **kwargs}.items() if k in self.arg_names}
    key = [given[name] for name in self.keys if name in given]
    for value in given.values():
        if hasattr(value, "dtype"):
            key.append(str(value.dtype))
    key = tuple(key)
    if key not in self.cache:
        return False, None
    return True, self.cache[key]


def _run_tuned(self, config, args, kwargs):
    """What ``Autotuner.run`` does once it has chosen."""
    options = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(self.arg_names, args)), **kwargs, **options})
    return self.fn.run(*args, **kwargs, **options)


@on_name(("triton.runtime.autotuner", "Autotuner.run"))
def run_autotuned(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tuner, *rest = args
    given = s.from_python({})
    for name, value in kwargs.items():
        given.setitem(s, Constant(name), value)
    packed = TupleValue(rest)
    chosen, config = s.inline(s.wrap_raw(_tuned), [tuner, packed, given], {}).items_list(s)
    if chosen.truth(s):
        return s.inline(s.wrap_raw(_run_tuned), [tuner, config, packed, given], {})
    return launch(s, fn, args, kwargs)


@on_name(("triton.runtime.jit", "JITFunction.run"), ("triton.runtime.interpreter", "InterpretedFunction.run"))
def launch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``run(*args, grid=, warmup=, **kwargs)`` of a kernel, or of an autotuner that has still to choose."""
    owner, *rest = args
    kernel: Any = owner.real(s)
    if kernel is None:
        raise _break("is made inside of the compiled function", "make it outside")
    if batched.active(s):
        raise _break("is launched inside torch.vmap")
    grid, warmup = kwargs.get("grid"), kwargs.get("warmup")
    if grid is None or warmup is None or warmup.truth(s):
        raise _break("is compiled and not launched")
    if getattr(_innermost_kernel(kernel), "pre_run_hooks", None):
        raise _break("has hooks that see each launch")
    names, bound, options = _bound(s, kernel, rest, {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")})
    tuned = kernel is not _innermost_kernel(kernel)
    call = Call(s.tracer)
    arguments = tuple((name, _argument(s, call, value, name in _constants(kernel))) for name, value in bound.items())
    if not call.bases:
        raise _break("is given no tensor")
    if len({base.type.device for base in call.bases}) > 1:
        raise _break("is given tensors of several devices")
    if not tuned:
        programs = s.inline(s.wrap_raw(_grid), [grid, s.from_python(tuple(bound)), TupleValue(list(bound.values()))],
                            {})
        grids: tuple = (((), _dimensions(s, call, programs)),)
    else:
        grids = _grids(s, call, owner, grid, names, bound)
    found = writes_of(kernel)
    written = {p.memory for name, argument in arguments if name in found.written or tuned
               for p in _pointers(argument)}
    given = tuple((name, constant(value.const(s))) for name, value in options.items())
    s.tracer.builder.loc = _location(s)
    examples = None if tuned else launches.examples(call, arguments, *_unspecialised(kernel))

    def spec(written: tuple, made: tuple) -> user_kernels.Launch:
        return user_kernels.Launch(written, made, user_kernels.name_of_kernel(kernel), arguments, given, grids,
                                   examples)

    call.record(spec, user_kernels.innermost(kernel).__name__, list(written), found.loud)
    return Constant(None) if type(kernel).__name__ == "InterpretedFunction" else Launched()


def _location(s: Session) -> Loc | None:
    """Where the program launches: not in Triton's own code."""
    own = (os.path.dirname(sys.modules["triton"].__file__ or "") + os.sep, __file__)
    frame = next((f for f in reversed(s.frames) if not f.fn.code.co_filename.startswith(own)), None)
    return None if frame is None else Loc(*frame.where(), None, s.recording.region)


class Launched(Value):
    """What a launch gives: the compiled kernel, of which nothing is known before it runs."""

    def describe(self) -> str:
        return "the compiled form of a Triton kernel"


def _innermost_kernel(kernel: Any) -> Any:
    """The kernel itself, under an autotuner and the like."""
    while not inspect.isfunction(kernel.fn):
        kernel = kernel.fn
    return kernel


def _constants(kernel: Any) -> set[str]:
    """The parameters that are compile-time constants."""
    return {name for name, p in inspect.signature(user_kernels.innermost(kernel)).parameters.items()
            if "constexpr" in str(p.annotation)}


def _unspecialised(kernel: Any) -> tuple[set[str], set[str]]:
    """(the parameters for whose values Triton compiles nothing of its own, those for which it does not ask whether they
    are multiples)"""
    params = getattr(kernel, "params", ())
    return ({p.name for p in params if p.do_not_specialize},
            {p.name for p in params if p.do_not_specialize_on_alignment})


def _bound(s: Session, kernel: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple:
    """(names of the parameters, what they are given in their order, other keyword arguments)"""
    parameters = inspect.signature(user_kernels.innermost(kernel)).parameters
    names = list(parameters)
    if len(args) > len(names) or any(name in kwargs for name in names[: len(args)]):
        raise _break("does not take these arguments")
    given = {**dict(zip(names, args)), **{k: v for k, v in kwargs.items() if k in parameters}}
    options = {k: v for k, v in kwargs.items() if k not in parameters}
    if not set(options) <= set(_OPTIONS):
        raise _break(f"does not take {sorted(set(options) - set(_OPTIONS))[0]!r}")
    bound = {}
    for name, p in parameters.items():
        if name in given:
            bound[name] = given[name]
        elif p.default is not p.empty:
            bound[name] = s.from_python(p.default)
        elif kernel is _innermost_kernel(kernel):
            raise _break(f"lacks its argument {name!r}")
    return names, bound, options


def _argument(s: Session, call: Call, value: Value, known: bool) -> user_kernels.Argument:
    if known and not value.is_tensor:
        return constant(value.const(s) if value.is_const() else _pinned(s, value))
    if value.builtin in (tuple, list):
        return user_kernels.Several(value.builtin, tuple(_argument(s, call, v, known) for v in value.items_list(s)))
    if value.is_tensor and (value.cls not in (torch.Tensor, torch.nn.Parameter) or getattr(value, "levels", ())):
        raise _break("is given a tensor of a subclass, or of a transform")
    low = value.lower(s) if value.is_tensor or value.is_const() else _pinned(s, value)
    if isinstance(low, TensorHandle):
        return call.pointer(low)
    if type(low) in (int, Dim):
        return call.argument(low)
    return constant(low)


def _pinned(s: Session, value: Value) -> object:
    real = value.real(s)
    if real is None:
        raise _break(f"is given {value.describe()}")
    return real


def _pointers(argument: user_kernels.Argument):
    return of_kind(user_kernels.Pointer, argument.items if isinstance(argument, user_kernels.Several) else argument)


def _dimensions(s: Session, call: Call, grid: Value) -> int:
    """Where the three dimensions of a grid stand among the numbers of a call."""
    found = [v.lower(s) for v in grid.items_list(s)]
    if not all(type(v) in (int, Dim) for v in found):
        raise _break("has a grid that is not made of integers")
    return call.add(*found)


def _grids(s: Session, call: Call, tuner: Value, grid: Value, names: list[str], bound: dict[str, Value]) -> tuple:
    """The grids of the configurations from which an autotuner has still to choose: (what each gives to parameters,
    where its dimensions stand)."""
    configs, found = s.inline(s.wrap_raw(_configs), [tuner], {}).items_list(s), []
    given = [s.from_python(tuple(bound)), TupleValue(list(bound.values()))]
    for config in configs:
        programs = s.inline(s.wrap_raw(_grid_of_config), [tuner, config, grid, *given], {})
        chosen = [pair.items_list(s) for pair in s.inline(s.wrap_raw(_choice), [config], {}).items_list(s)]
        found.append((tuple((k.const(s), constant(v.const(s))) for k, v in chosen), _dimensions(s, call, programs)))
    return tuple(found)


def _choice(config):
    return tuple(config.kwargs.items())


def _configs(tuner):
    return tuple(tuner.configs)


def _grid_of_config(tuner, config, grid, names, values):
    given = {**dict(zip(names, values)), **config.kwargs}
    kernel = tuner.fn
    while hasattr(kernel, "values"):
        for name, heuristic in kernel.values.items():
            given[name] = heuristic({**given})
        kernel = kernel.fn
    if callable(grid):
        grid = grid(given)
    return (grid[0], grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1)


@on_function(torch.library.wrap_triton)
def wrap_triton(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The kernel itself: it is followed anyway."""
    (kernel,) = args
    if kernel.real(s) is None or not hasattr(kernel.real(s), "run"):
        raise _break("is wrapped that is none")
    return kernel
