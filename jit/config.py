"""Every option: name, type, default, its environment variable and one line of help. Read and write them as
``jit.config.NAME``."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any


@dataclasses.dataclass(frozen=True)
class Option:
    """A row of the option table. The environment variable is ``JIT_`` and the name in capitals."""

    default: object
    help: str
    minimum: int | None = None
    compiled: bool = True  # whether what is compiled depends on it
    choices: tuple[str, ...] = ()  # all that a text may be; empty: any

    @property
    def type(self) -> type:
        return type(self.default)


OPTIONS = {
    "cache_dir": Option(os.path.join(os.path.expanduser("~"), ".cache", "jit"),
                        "folder of the kernel cache and of the built runtime", compiled=False),
    "cache_size_mb": Option(8192, "megabytes that the cache may take; what was not used for longest is removed", 0,
                            compiled=False),
    "cache_below": Option("", "folders, separated as in PATH, whose caches are read too, and never written to",
                          compiled=False),
    "entry_cache": Option(True, "keep compiled functions on disk, so that a later process captures and compiles "
                                "nothing that an earlier one has", compiled=False),
    "backend": Option("jit", "backend of jit.compile when the call names none: jit, or eager to tell capture faults "
                             "from kernel faults"),
    "cache_limit": Option(8, "compiled entries a function may have for one kind of call before it runs in eager", 1,
                          compiled=False),
    "error_on_recompile": Option(False, "where a function would be compiled again, raise jit.RecompileError, which "
                                        "says what differs", compiled=False),
    "frame_hook": Option(True, "compile Python functions that a graph break reaches through C code, such as sorted's "
                               "key"),
    "eager_where_faster": Option(True, "leave entries that break the graph to eager where timed calls tell that eager "
                                       "is faster; a few calls run in eager for that",
                                 compiled=False),
    "cpu_pool_mb": Option(512, "megabytes of freed CPU output memory that are kept for reuse", 0, compiled=False),
    "debug": Option("", "folder to which every stage of each compilation is written, with a script for each graph that "
                        "runs it again on random inputs", compiled=False),
    "strict": Option(False, "raise on an internal failure instead of warning and running in eager", compiled=False),
    "verify_graphs": Option(False, "check every graph after every pass: order, types, layouts, outputs",
                            compiled=False),
    "untested": Option(False, "compile with a torch that is newer than the tested ones; read when jit is imported"),
    "says_compiling": Option(True, "what torch.compiler.is_compiling() says in captured code; read while capturing"),
    "match_eager_rounding": Option(False, "round half-precision intermediates as eager does"),
    "templates": Option(False, "compute matrix products together with what follows them, where a kernel of ours is "
                               "faster than the library's: candidates are timed while compiling. "
                               "mode=\"max-autotune\" switches it on"),
    "cudagraphs": Option(False, "record compiled graphs into CUDA graphs, which launch all their kernels at once. "
                                "mode=\"reduce-overhead\" and \"max-autotune\" switch it on"),
    "auto_cudagraphs": Option(True, "do so with those for which the GPU waits, as a few timed calls tell, where "
                                    "cudagraphs is off"),
    "bucket_collectives": Option(False, "call collectives that need nothing of each other at once, up to 25 MiB; all "
                                        "processes then have to run the same compiled calls, and none in eager"),
    "fallback_random": Option(False, "draw eager's very random numbers: by library calls, not in kernels; read while "
                                     "capturing"),
    "progress": Option(True, "say on a terminal what a compilation is doing that takes longer than two seconds",
                       compiled=False),
    "sanitize": Option("", "build the runtime and CPU kernels with address (which includes undefined) or thread "
                           "checks; read when jit is imported"),
    "siblings": Option(True, "follow the call of one of several modules that are alike, and take the others' to do the "
                             "same, and compile what a graph repeats once; off: each", compiled=False),
    "compile_in": Option("call", "where functions are compiled: in the call that needs it, or in the background, while "
                                 "calls run in eager", choices=("call", "background"),
                         compiled=False),
    "compile_threads": Option(max(1, min(16, os.cpu_count() or 1)), "kernels compiled at the same time", 1,
                              compiled=False),
}


# Other names of options, as programs that come from torch.compile know them.
ALSO_CALLED = {"recompile_limit": "cache_limit"}

if TYPE_CHECKING:
    # The options, for type checkers; tests/test_typing.py compares this with the table.
    cache_dir: str
    cache_size_mb: int
    cache_below: str
    entry_cache: bool
    backend: str
    cache_limit: int
    recompile_limit: int
    error_on_recompile: bool
    frame_hook: bool
    eager_where_faster: bool
    cpu_pool_mb: int
    debug: str
    strict: bool
    verify_graphs: bool
    untested: bool
    says_compiling: bool
    match_eager_rounding: bool
    templates: bool
    cudagraphs: bool
    auto_cudagraphs: bool
    bucket_collectives: bool
    fallback_random: bool
    progress: bool
    sanitize: str
    siblings: bool
    compile_in: str
    compile_threads: int


def _checked(name: str, value: object) -> object:
    """``value`` if the option ``name`` takes it. Raises TypeError for another type and ValueError for a number that is
    too small, or a text that is none of its choices."""
    option = OPTIONS[name]
    if type(value) is not option.type:
        raise TypeError(f"jit.config.{name} takes {option.type.__name__}, not {type(value).__name__}")
    if option.minimum is not None and value < option.minimum:  # type: ignore[operator]
        raise ValueError(f"jit.config.{name} = {value!r}: the least is {option.minimum}")
    if wrong := not_among(option, value):
        raise ValueError(f"jit.config.{name} = {value!r}: {wrong}")
    return value


def not_among(option: Option, value: object) -> str:
    """What is wrong with a value that is none of an option's choices; empty where nothing is."""
    return "" if not option.choices or value in option.choices else f"expected {' or '.join(option.choices)}"


def _parse(name: str, text: str, called: str) -> object:
    """The value that the text of the environment variable of the option, under the name ``called``, stands for. Raises
    ValueError naming the variable."""
    variable, option = "JIT_" + called.upper(), OPTIONS[name]
    if option.type is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ValueError(f"{variable}={text!r}: expected 1 or 0")
    try:
        value = option.type(text)
    except ValueError:
        raise ValueError(f"{variable}={text!r}: expected {option.type.__name__}") from None
    if option.minimum is not None and value < option.minimum:
        raise ValueError(f"{variable}={text!r}: the least is {option.minimum}")
    if wrong := not_among(option, value):
        raise ValueError(f"{variable}={text!r}: {wrong}")
    return value


# What options are in a part of a thread's work, and in the threads that it starts for it: see ``overlaid``.
_overlay: contextvars.ContextVar[dict[str, object]] = contextvars.ContextVar("options of one compilation")


class _Value:
    """An option as an attribute of the module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, module: types.ModuleType, cls: type) -> object:
        over = _overlay.get(_NONE)
        return over[self.name] if self.name in over else vars(module)[self.name]

    def __set__(self, module: types.ModuleType, value: object) -> None:
        vars(module)[self.name] = value


_NONE: dict[str, object] = {}


class _Config(types.ModuleType):
    """The module itself: setting an unknown option, or one to a value that it does not take, raises."""

    def __setattr__(self, name: str, value: object) -> None:
        name = ALSO_CALLED.get(name, name)
        if not name.startswith("__"):
            if name not in OPTIONS:
                raise AttributeError(f"jit.config has no option {name!r}; the options are: {', '.join(OPTIONS)}")
            _checked(name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ALSO_CALLED:
            return getattr(self, ALSO_CALLED[name])
        raise AttributeError(f"jit.config has no option {name!r}; the options are: {', '.join(OPTIONS)}")


@contextlib.contextmanager
def patch(**values: object) -> Iterator[None]:
    """Set options for the length of a ``with`` block: ``with jit.config.patch(strict=True): ...``"""
    module = sys.modules[__name__]
    before = {name: vars(module).get(ALSO_CALLED.get(name, name)) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is not None:  # else there is no such option, which was said
                setattr(module, name, value)


@contextlib.contextmanager
def overlaid(**values: object) -> Iterator[None]:
    """As ``patch``, in this thread only: a function may be compiled with its options while the program sets others."""
    token = _overlay.set({**_overlay.get(_NONE), **{name: _checked(name, value) for name, value in values.items()}})
    try:
        yield
    finally:
        _overlay.reset(token)


def changed() -> dict[str, object]:
    """The options on which what is compiled depends, where they are not at their defaults."""
    module = sys.modules[__name__]
    return {name: getattr(module, name) for name, option in OPTIONS.items()
            if option.compiled and getattr(module, name) != option.default}


def describe() -> str:
    """A line per option: name, present value, environment variable, help."""
    return "\n".join(f"{n} = {globals()[n]!r}  (JIT_{n.upper()}): {o.help}" for n, o in OPTIONS.items())


for _name, _option in OPTIONS.items():
    _names = (_name, *(_other for _other, _real in ALSO_CALLED.items() if _real == _name))
    _given = next((_n for _n in _names if "JIT_" + _n.upper() in os.environ), None)
    globals()[_name] = (_option.default if _given is None
                        else _parse(_name, os.environ["JIT_" + _given.upper()], _given))
    setattr(_Config, _name, _Value(_name))
sys.modules[__name__].__class__ = _Config
