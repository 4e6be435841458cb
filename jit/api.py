"""The public functions; wires the four rooms together."""

from __future__ import annotations

import copy
import asyncio
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, ParamSpec, TypeVar, overload

import torch

from . import arguments, backends, config, observing
from . import passes as user_passes
from .explanation import Explanation
from .frame import callees, dispatch, steps  # noqa: F401  (the first serves the callees of breaks)
from .frame import background, entries, marks
from .frame.background import wait_for_compiles  # noqa: F401
from .frame.dynamic import mark_dynamic, mark_static, mark_unbacked  # noqa: F401
from .frame.markers import (  # noqa: F401
    allow_in_graph, assume_constant_result, cudagraph_mark_step_begin, graph_break, is_compiling, is_dynamo_compiling,
    nested_compile_region, substitute_in_graph,
)
from .frame.modules import compile_in_place as _compile_in_place
from .frame.modules import compile_module
from .frame.stance import set_stance  # noqa: F401
from .frame.dispatch import Settings
from .graph.prim_info import info
from .runtime import unhooked
from .spelling import meant

if TYPE_CHECKING:
    from .frame.capture import Captured
    from .graph.edit import GraphEditor
    from .numerics import Verification
    from .report.minimal import Minimal


def _reports() -> types.ModuleType:
    from . import report  # late: it loads the code generator, autodiff and the operators

    return report


observing.recorder = lambda name: _reports().debug.recording(name)

_F = TypeVar("_F")  # what is compiled, of whatever type, keeps that type
_M = TypeVar("_M", bound=torch.nn.Module)
_P = ParamSpec("_P")


def _backend(backend: str | Callable | None, passes: Sequence[Callable[[GraphEditor], None]] = ()) -> Callable:
    return user_passes.applied(_plain_backend(backend), tuple(passes))


def _plain_backend(backend: str | Callable | None) -> Callable:
    if backend is None:
        backend = config.backend
    if isinstance(backend, str):
        if backend not in backends.BACKENDS:
            known = ", ".join(map(repr, backends.BACKENDS))
            raise ValueError(f"backend={backend!r}: expected a callable or one of {known}"
                             f"{meant(backend, backends.BACKENDS)}; other names are those of torch.compile's backends, "
                             "and without backend= kernels of ours are made")
        return backends.BACKENDS[backend]
    if not callable(backend):
        raise TypeError(f"backend={backend!r}: expected a callable or one of {', '.join(map(repr, backends.BACKENDS))}")
    return backends.from_callable(backend)


@overload
def compile(model: None = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Callable[..., Any] | None = None, mode: str | None = None,
            options: dict[str, Any] | None = None, disable: bool = False,
            passes: Sequence[Callable[[GraphEditor], None]] = (),
            recompile_limit: int | None = None) -> Callable[[_F], _F]: ...


@overload
def compile(model: _F, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Callable[..., Any] | None = None, mode: str | None = None,
            options: dict[str, Any] | None = None, disable: bool = False,
            passes: Sequence[Callable[[GraphEditor], None]] = (), recompile_limit: int | None = None) -> _F: ...


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Callable | None = None, mode: str | None = None, options: dict | None = None,
            disable: bool = False, passes: Sequence[Callable[[GraphEditor], None]] = (),
            recompile_limit: int | None = None) -> Any:
    """Compile a function or an ``nn.Module``; usable as a decorator with or without arguments.

    Args:
        model: the function, method or module. Its arguments, results and effects stay what they are in eager.
        fullgraph: raise ``jit.Unsupported`` where the graph would break, instead of running that step in eager.
        dynamic: None makes a size a symbol once it has changed, True makes all sizes of arguments symbols at once,
            False none.
        backend: None for our kernels, "eager" to run the captured graph op by op, or ``fn(graph, example_inputs) ->
            callable``.
        mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs", as in ``torch.compile``. The
            second and third set the option ``cudagraphs``, the last two ``templates``; one that asks for more than is
            done gives a warning, once, that says what it does not get.
        options: values for ``jit.config``, by name, that hold while this function is compiled.
        disable: return ``model`` as it is.
        passes: functions that change each captured graph before it is differentiated and compiled, in this order; see
            ``jit.passes``.
        recompile_limit: the option ``cache_limit`` for this function.

    Raises:
        TypeError, ValueError: for arguments that are not allowed, at once.
    """
    arguments.check(fullgraph, dynamic, mode, options, disable, passes, recompile_limit)
    arguments.tell_of_mode(mode)
    chosen = _backend(backend, passes)
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic,
                                 backend=backend, mode=mode, options=options, disable=disable, passes=passes,
                                 recompile_limit=recompile_limit)
    if disable:
        return model
    return compiled_with(model, _settings(chosen, fullgraph, dynamic, mode, options, recompile_limit))


def compile_in_place(module: _M, *, fullgraph: bool = False, dynamic: bool | None = None,
                     backend: str | Callable | None = None, mode: str | None = None, options: dict | None = None,
                     disable: bool = False, passes: Sequence[Callable[[GraphEditor], None]] = (),
                     recompile_limit: int | None = None) -> _M:
    """Compile a module as ``module.compile()`` does: its calls are compiled from now on, and it stays the very object,
    of the same class and with the same state_dict keys. Arguments as in ``compile``. Copies of it, also pickled ones,
    are not compiled; ``disable=True`` has its calls run in eager again.

    Raises:
        TypeError, ValueError: for arguments that are not allowed, at once.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"jit.compile_in_place takes a module, not {type(module).__name__}")
    arguments.check(fullgraph, dynamic, mode, options, disable, passes, recompile_limit)
    arguments.tell_of_mode(mode)
    settings = _settings(_backend(backend, passes), fullgraph, dynamic, mode, options, recompile_limit)
    return _compile_in_place(module, None if disable else settings)  # type: ignore[return-value]  # the very object


def _settings(backend: Callable, fullgraph: bool, dynamic: bool | None, mode: str | None, options: dict | None,
              recompile_limit: int | None) -> Settings:
    settings = Settings(backend, fullgraph, dynamic, mode=mode,
                        options=arguments.all_options(mode, options, recompile_limit))
    if settings.option("compile_in") == "background":
        backends.load()
        background.start()
    return settings


def compiled_with(model: Any, settings: Settings) -> Any:
    """The compiled form of a function or module, with settings of ours."""
    model = marks.innermost(model)
    if isinstance(model, torch.nn.Module):
        return compile_module(model, settings)
    fn = dispatch.plain(model)
    if isinstance(fn, types.FunctionType):
        fn = steps.original(fn)
        if marks.is_disabled(fn):
            return fn
        return steps.compile_steps(fn, settings) if steps.compilable(fn) else dispatch.make_dispatcher(fn, settings)
    if isinstance(fn, types.MethodType):
        return types.MethodType(compiled_with(fn.__func__, settings), fn.__self__)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(compiled_with(fn.__func__, settings))
    if isinstance(fn, type):
        arguments.refuse(fn)
    if callable(fn):
        def call(*args: object, **kwargs: object) -> object:
            return fn(*args, **kwargs)

        try:
            functools.update_wrapper(call, fn)
            del call.__wrapped__  # type: ignore[attr-defined]
        except AttributeError:
            pass
        return dispatch.make_dispatcher(call, settings)
    arguments.refuse(fn)


@overload
def disable(fn: None = None, recursive: bool = True, *, reason: str | None = None) -> Callable[[_F], _F]: ...


@overload
def disable(fn: _F, recursive: bool = True, *, reason: str | None = None) -> _F: ...


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Mark a function (or all calls of a module) to run in eager wherever compiled code calls it. Usable as a
    decorator.

    Args:
        fn: the function or module.
        recursive: with all that it calls; otherwise the functions that it calls are compiled where they are worth it.
        reason: a text for the graph break.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive, reason=reason)
        return fn
    inner = dispatch.plain(fn)
    if recursive:
        @functools.wraps(inner)
        def call(*args: object, **kwargs: object) -> object:
            return unhooked(inner)(*args, **kwargs)
    else:
        if (code := getattr(inner, "__code__", None)) is not None:
            dispatch.skip_code(code)

        @functools.wraps(inner)
        def call(*args: object, **kwargs: object) -> object:
            return inner(*args, **kwargs)

    marks.put(call, marks.DISABLED)
    setattr(call, marks.REASON, reason)
    return call


def reset() -> None:
    """Forget everything compiled, unload its kernels, and release pooled memory."""
    dispatch.reset()
    if "jit.codegen.cpp" in sys.modules:
        sys.modules["jit.codegen.cpp"].forget()


def compile_count() -> int:
    """Graphs compiled so far in this process."""
    return dispatch.compile_count()


_IN_CALL = {"compile_in": "call"}  # for what is told of one call
_EACH_KERNEL = {"cudagraphs": False, "auto_cudagraphs": False}  # so that profilers are told of each


def verify(model: Callable[_P, Any], *, gradients: bool = True, **options: Any) -> Callable[_P, Verification]:
    """``jit.verify(fn)(*args)`` compiles afresh, calls it once, and compares each graph with eager and float64; see
    ``jit.numerics`` for how.

    The function is called twice, in eager on deep copies of the module and the arguments, and compiled. Keyword
    arguments as in ``compile``.

    Args:
        gradients: compare the gradients of each graph too, for random tangents.

    Returns:
        A function of the arguments that gives a ``jit.numerics.Verification``: ``ok``, ``faults``, a text by ``print``,
            ``raise_if_wrong()``.
    """
    from . import numerics  # late: it loads the code generator, autodiff and the operators

    plain = dispatch.plain(getattr(type(model), "_jit_original_module", marks.innermost(model)))

    def run(*args: _P.args, **kwargs: _P.kwargs) -> Verification:
        report = numerics.Verification()
        expected = None
        with torch.random.fork_rng():  # the compiled call draws the same numbers
            try:
                eager, given, named = copy.deepcopy((plain, args, kwargs))
                expected = eager(*given, **named)
            except Exception as error:  # of the user's own code
                report.unchecked.append(f"the result of the whole: {type(error).__name__} in eager: {error}")
        watching = numerics.watching_passes(report, tuple(options.get("passes", ())),
                                            numerics.watching(report, gradients))
        settings = Settings(watching, options.get("fullgraph", False), options.get("dynamic"),
                                     options=arguments.all_options(options.get("mode"), options.get("options"))
                            | _IN_CALL)
        report.result = compiled_with(model, settings)(*args, **kwargs)
        if report.own_numbers:
            report.unchecked.append("the result of the whole: kernels draw other random numbers than eager. "
                                    "jit.config.fallback_random = True (JIT_FALLBACK_RANDOM=1) draws eager's")
        elif report.ok:
            numerics.compare_results(report, expected, report.result)
        return report

    return run


def minify(model: Callable[_P, Any], args: Sequence[object] = (), kwargs: dict[str, object] | None = None, *,
           isolated: bool = False, **options: Any) -> Minimal:
    """Cut a program that fails, or gives wrong results, down to the least graph that does.

    The graphs that a call captures are run by their kernels, each by itself, and compared with eager and float64 as in
    ``verify``, with their gradients. Of the first one that raises or is less exact than eager, operations are left out
    for as long as it still fails in the same way.

    Args:
        model: a function or module, compiled or not. It is called twice: in eager, on deep copies of it and of the
            arguments, and captured, its graphs run operation by operation.
        args: the positional arguments of the call.
        kwargs: its keyword arguments.
        isolated: run each graph in a process of its own (some seconds each), for programs that end the process or do
            not end; with the default backend, and without ``passes``.
        **options: as in ``compile``; ``backend`` and ``passes`` are what is looked at for the fault.

    Returns:
        ``failure`` ("" if nothing fails), ``graph`` as runnable Python, a ``script`` that runs it with its kernels and
            compares (``save(path)`` writes it), ``places`` in the program; printed, it says all that.

    Raises:
        ValueError: ``isolated`` with a backend or passes, or of a program with kernels of its own (Triton's, or those
            of operators in Python), which no other process has.
    """
    if isolated and (options.get("backend") is not None or options.get("passes")):
        raise ValueError("isolated=True runs graphs by jit's own kernels: leave out backend and passes, or isolated")
    more = arguments.all_options(options.get("mode"), options.get("options")) | _IN_CALL

    def compiled(backend: Callable) -> Callable:
        return compiled_with(model, Settings(backend, False, options.get("dynamic"), options=more))

    plain = dispatch.plain(getattr(type(model), "_jit_original_module", marks.innermost(model)))
    backend = _backend(options.get("backend"), options.get("passes", ()))
    return _reports().minimal.minify(compiled, plain, args, kwargs or {}, backend, isolated)


def explain(model: Callable[_P, Any], *, measure: bool = False, **options: Any) -> Callable[_P, Explanation]:
    """``jit.explain(fn)(*args)`` compiles afresh, runs once and says what happened: a generator to its hundredth yield
    at most, a coroutine with ``asyncio.run``. Of a function that is compiled already it also says which entries it has,
    what they differ in from this call, and why it was compiled again. Keyword arguments as in ``compile``.

    Args:
        measure: measure what each kernel and library call takes: the call is made eight more times, with its gradients,
            which are not added to the ``grad`` of anything. CUDA graphs are left out, so that each kernel is seen.

    Returns:
        A function of the arguments that gives an ``Explanation``: printed it is a report, and ``save("report.html")``
            writes one as a page.
    """

    def run(*args: _P.args, **kwargs: _P.kwargs) -> Explanation:
        gather = _reports().gather
        backend = _backend(options.get("backend"), options.get("passes", ()))
        captured: list[Captured] = []
        held = [gather.Entry(*row) for row in entries.held_by(model, args, kwargs)]
        settings = Settings(backend, False, options.get("dynamic"), on_capture=captured.append,
                            options=arguments.all_options(options.get("mode"), options.get("options")) | _IN_CALL
                            | (_EACH_KERNEL if measure else {}))
        compiled = compiled_with(model, settings)
        with observing.observed() as observer:
            made = compiled(*args, **kwargs)
            if type(made) is types.GeneratorType:
                for _ in itertools.islice(made, 100):
                    pass
            elif type(made) is types.CoroutineType:
                asyncio.run(made)
        # What another thread has compiled meanwhile, such as a hook of a backward, is captured here but not observed.
        plans = {c.graph: plan for c in captured if (plan := observer.plans.get(c.graph)) is not None}
        again = [gather.Recompile(name, *row) for name, row in entries.why_again(model)]
        title = getattr(dispatch.plain(marks.innermost(model)), "__qualname__", type(model).__name__)
        forward = getattr(type(model), "forward", None)  # of a module; a function is what was captured first
        code = forward and getattr(inspect.unwrap(forward), "__code__", None)
        graphs = [getattr(plans.get(c.graph), "graph", None) or c.graph for c in captured if c.graph is not None]
        graphs = [g for g in graphs if any(n.op != "input" for n in g.nodes)]
        breaks = [b for c in captured for b in c.breaks]
        kernels = [text for plan in plans.values() for _, text in plan.kernels]
        told = gather.report(title, captured, observer, again, code, held)
        if measure:
            told = _reports().measured.measured(told, lambda: compiled(*args, **kwargs))
        return Explanation(len(graphs), len(breaks), sum(info(n.op).kind not in ("input", "number")
                                                         for g in graphs for n in g.nodes),
                           breaks, [t for c in captured for t in c.guards.texts()],
                           kernels, [g.python() for g in graphs],
                           sum(getattr(plan, "launches", 0) for plan in plans.values()),
                           [f"{what}: {name.why_not()}" for c in captured if c.entry is not None
                            for what, name in c.entry.holds() if name.why_not()],
                           told)

    return run
