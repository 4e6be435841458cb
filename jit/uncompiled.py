"""The public functions on a version of Python or PyTorch that the compiler does not know: everything runs in eager. No
room is imported."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from . import arguments, config, versions
from .errors import CompileError, LoadError
from .explanation import Explanation

if TYPE_CHECKING:
    import torch

_reason = versions.refusal()
_told = False  # the user, of the reason


def _tell(stacklevel: int, strict: bool) -> None:
    """Warn once, or raise CompileError, that nothing is compiled."""
    global _told
    if strict or config.strict:
        raise CompileError(f"nothing can be compiled here: {_reason}")
    if not _told:
        _told = True
        warnings.warn(f"jit: functions run in eager, uncompiled: {_reason}", stacklevel=stacklevel + 1)


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Callable | None = None, mode: str | None = None, options: dict | None = None,
            disable: bool = False, passes: Sequence[Callable] = (), recompile_limit: int | None = None) -> Any:
    """Gives ``model`` back, and warns once. Arguments as in ``api.compile``.

    Raises:
        TypeError, ValueError: for arguments that are not allowed.
        CompileError: with ``fullgraph=True`` or ``JIT_STRICT=1``.
    """
    arguments.check(fullgraph, dynamic, mode, options, disable, passes, recompile_limit)
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic,
                                 backend=backend, mode=mode, options=options, disable=disable, passes=passes,
                                 recompile_limit=recompile_limit)
    if disable:
        return model
    if isinstance(model, type) or not callable(model) and not isinstance(model, (staticmethod, classmethod)):
        arguments.refuse(model)
    _tell(2, fullgraph)
    return model


def compile_in_place(module: Any, **options: Any) -> Any:
    """Gives ``module`` back, and warns once. Arguments as in ``compile``."""
    return compile(module, **options)


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Nothing is compiled that could be left out."""
    return disable if fn is None else fn


def explain(model: Any, **options: Any) -> Callable:
    """``explain(fn)(*args)`` runs the function, of which nothing is compiled."""
    _tell(2, bool(options.get("fullgraph")))

    def run(*args: object, **kwargs: object) -> Explanation:
        model(*args, **kwargs)
        return Explanation(0, 0, 0, [], [], [], [])

    return run


def verify(model: Any, *, gradients: bool = True, **options: Any) -> Callable[..., Any]:
    """There is nothing to compare with eager: raises CompileError."""
    _tell(2, True)
    raise AssertionError


def minify(model: Any, args: Sequence[object] = (), kwargs: dict[str, object] | None = None, *,
           isolated: bool = False, **options: Any) -> Any:
    """There is nothing to cut: raises CompileError."""
    _tell(2, True)
    raise AssertionError


def reset() -> None:
    """There is nothing to forget."""


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Nothing is ever being compiled."""
    return True


def compile_count() -> int:
    """0."""
    return 0


def is_compiling() -> bool:
    """False."""
    return False


is_dynamo_compiling = is_compiling


def graph_break(msg: str = "") -> None:
    """Nothing in eager."""


def cudagraph_mark_step_begin() -> None:
    """Nothing in eager."""


def mark_dynamic(tensor: torch.Tensor, *dims: int) -> None:
    """Nothing in eager."""


def mark_static(tensor: torch.Tensor, *dims: int) -> None:
    """Nothing in eager."""


def mark_unbacked(tensor: torch.Tensor, *dims: int) -> None:
    """Nothing in eager."""


def assume_constant_result(fn: Callable) -> Callable:
    """Nothing in eager."""
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Nothing in eager."""
    return list(fn) if isinstance(fn, (list, tuple)) else fn


def nested_compile_region(fn: Callable | None = None) -> Any:
    """Nothing in eager."""
    return nested_compile_region if fn is None else fn


def substitute_in_graph(original: Callable, *, can_constant_fold_through: bool = False,
                        skip_signature_check: bool = False) -> Callable[[Callable], Callable]:
    """In eager the original function is called."""
    def substitute(fn: Callable) -> Callable:
        return functools.wraps(fn)(lambda *args, **kwargs: original(*args, **kwargs))

    return substitute


def save(compiled: Any, path: Any) -> Any:
    """Nothing is compiled."""
    raise LoadError(f"jit.save: nothing is compiled here: {_reason}")


def load(path: Any, *, recompile: bool = False) -> Any:
    """Nothing that was compiled can be used here."""
    if not recompile:
        raise LoadError(f"jit.load: nothing is compiled here: {_reason}")


class _Stance:
    def __enter__(self) -> None:
        """Nothing in eager."""

    def __exit__(self, *error: object) -> None:
        """Nothing in eager."""

    def __call__(self, fn: Callable) -> Callable:
        return fn


def set_stance(stance: str = "default") -> Any:
    """Whatever the stance, functions run in eager."""
    return _Stance()
