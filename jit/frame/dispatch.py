"""From a function to its dispatcher: what happens on a miss, entry by entry, and the resume functions of its breaks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from .. import config, failures, logs, meanwhile, observing, progress, shown, telling, torch_private, turns
from ..collecting import uncollected
from ..errors import PassError, RecompileError, Unsupported
from ..runtime import cures
from ..runtime import guards as native_guards
from ..runtime import names, native
from ..runtime.naming import Naming
from ..runtime.numbers import unpack
from . import background, stance, stored, titles, traced_lines, trial
from .capture import Captured, capture
from .circumstances import MOST, Limits, circumstances
from .dynamic import Dynamic, Told
from .numbers import Integers, integer_of, is_half
from .places import shown_code
from .ways import Known

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from ..graph.recording import Gradient
    from .resume import Resume, Resumed
    from .session import Session
    from .values.base import Value

recompiles_log, timing_log = logs.channel("recompiles"), logs.channel("timing")
_lock = threading.RLock()
_dispatchers: weakref.WeakSet = weakref.WeakSet()
_missed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # dispatcher -> weakly, its ``on_miss``
_counts = {"graphs": 0, "captures": 0}
_MOST_AGAIN = 20  # times that a function was compiled again that are remembered
_MOST_FAILURES = 4  # of our rules in one function, until it runs in eager for good
# Frames that run in eager for what they do, not for what they call.
_EAGER_RAISES = ("raises", "gradient", "lazy-module")


# What makes the callables of which this module knows no more than that: "region" and "step", for ``Settings``.
MAKERS: dict[str, Callable] = {}


@dataclasses.dataclass(eq=False)
class Settings:
    """What ``jit.compile`` was asked for.

    Attributes:
        backend: ``fn(graph, example_inputs, gradient) -> callable``: tensors (graph inputs, then symbolic ints) to a
            tuple of tensors; ``gradient`` is None or the ``jit.graph.recording.Gradient`` that its results have to
            carry.
        fullgraph, dynamic: as in ``jit.compile``.
        on_capture: called with each Captured, for ``jit.explain``.
        unsteady: places where a value was guessed that has changed since (guesses.py).
        ways: which way the program goes at branches on values (ways.py).
        lengths: (file, qualified name) of functions where lengths are others at each call (``Dynamic.stepwise``).
        told: branches on data that were told ahead (varying.py).
        sizes_vary: sizes were others at a later call: what goes on after breaks tries symbols at once (tried.py).
        forward: the code of a compiled module's ``forward``, by which messages name it.
        quiet: for functions that the user did not ask to be compiled: reaching ``config.cache_limit`` is logged only.
    """

    backend: Callable
    fullgraph: bool = False
    dynamic: bool | None = None
    on_capture: Callable | None = None
    options: dict = dataclasses.field(default_factory=dict)
    mode: str | None = None
    resumes: dict = dataclasses.field(default_factory=dict)
    regions: list = dataclasses.field(default_factory=list)
    quiet: bool = False
    unsteady: set = dataclasses.field(default_factory=set)
    ways: Known = dataclasses.field(default_factory=Known)
    lengths: set = dataclasses.field(default_factory=set)
    sizes_vary: bool = False
    told: Told = dataclasses.field(default_factory=Told)
    forward: types.CodeType | None = None

    def option(self, name: str) -> Any:
        """The value of an option of ``jit.config`` for this function."""
        return self.options.get(name, getattr(config, name))

    def region(self):
        """What the frame hook serves at this function's breaks: a native Region, or None without the hook."""
        if not self.regions:
            made = MAKERS["region"](self)
            if made is None:
                return None
            self.regions.append(made)
        return self.regions[0]

    def compile_graph(self, graph: Graph, inputs: list[Value], session: Session,
                      gradient: Gradient | None = None) -> tuple:
        """-> (plan callable, sources of its arguments). Inputs that the guards pin are bound to the plan once."""
        count_graph()
        with meanwhile.scope():
            meanwhile.soon(session.guards.prepare)
            tensors = [v.obj for v in inputs]
            if (observer := observing.observer()) is not None:
                observer.begins(graph, tensors, gradient)
            plan = self.backend(graph, tensors, gradient)
        if observer is not None:
            observer.plans[graph] = plan
        binding = getattr(plan, "int_symbols", ())
        sources = [v.source for v in inputs]
        pinned = {i: v.obj for i, v in enumerate(inputs) if v.source.watched}
        bind = getattr(plan, "bind", None)
        if bind is not None and pinned:
            plan = bind(pinned)
            sources = [x for i, x in enumerate(sources) if i not in pinned]
        call = getattr(plan, "native", plan)
        origins = [session.tracer.env.origins[name] for name in binding]
        floats = any(is_half(origin[1]) for origin in origins)
        if not isinstance(call, native().Plan):
            call = native().Unhooked(unpacked(call) if floats else call)  # a backend's Python is not the program's
        return call, sources + ([Integers(origins)] if floats else [integer_of(*origin) for origin in origins])

    def resume_function(self, fn: Resumed, resume: Resume, compiled: bool):
        """The function that goes on after a break in ``fn``; one per place, captured on its own if ``compiled``."""
        def make():
            skip_code(resume.code)
            made = fn.sign(types.FunctionType(resume.code, fn.globals, fn.code.co_name, None, fn.closure))
            return make_dispatcher(made, self, resumed=True) if compiled else made

        return self.resuming((fn.key, resume.key, compiled), make, Settings.resume_function, fn, resume,
                             compiled)

    def resume_with_cells(self, fn: Resumed, resume: Resume, compiled: bool):
        """As ``resume_function`` for a frame with cells of its own: these are its first parameters."""
        def make():
            skip_code(resume.code)
            made = fn.sign(function_of_cells(resume.code, fn.globals))
            return make_dispatcher(made, self, resumed=True) if compiled else made

        return self.resuming(("cells", fn.key, resume.key, compiled), make, Settings.resume_with_cells, fn,
                             resume, compiled)

    def resume_chain(self, *parts: tuple):
        """One function that goes on in several frames, the innermost first: each (Resumed, resume, whether its cells
        are given, the parameter that is the result of the frame before). Its parameters are all the cells, then the
        parameters of each resume."""
        key = ("chain", *((fn.key, resume.key, given, result) for fn, resume, given, result in parts))
        return self.resuming(key, lambda: make_dispatcher(chain_function(self, parts), self, resumed=True),
                             Settings.resume_chain, *parts)

    def step(self, code: types.CodeType, position: int, parked: bool):
        """The compiled step of a real generator of ``code`` from the byte offset where it stands (see
        ``jit.frame.steps``)."""
        key = ("step", code, position, parked)
        return self.resumes.get(key) or self.resuming(key, lambda: MAKERS["step"](self, code, position, parked),
                                                      Settings.step, code, position, parked)

    def resuming(self, key: tuple, make: Callable, method: Callable, *arguments: object):
        """What ``make()`` gives, once for each key; ``method`` gives it for these arguments."""
        found = self.resumes.get(key)
        if found is None:
            found = self.resumes[key] = names.made(make(), method, self, *arguments)
        return found


@names.rule("jit.runtime.native.Region")
def _name_of_region(naming: Naming, region: object) -> names.Name:
    settings = naming.given.get("settings")
    if settings is not None and region in settings.regions:
        return names.calling(Settings.region, names.Given("settings"))
    return names.Unnameable("a region of other settings than those of the entry")


def unpacked(call: Callable) -> Callable:
    """``call`` with its integers given as what a program of numbers gives."""
    return names.made(lambda *args: call(*args[:-1], *unpack(args[-1])), unpacked, call)


def torch_skip(below: str = "DEFAULT") -> Callable | None:
    """A function of a code object that keeps the frame hook of PyTorch's compiler off its frames, and with
    ``below="SKIP"`` off all that these call; None where this torch has none that is known. Without it that compiler
    looks at code of ours when both are at work, which costs it time."""
    try:
        hook = torch_private.frame_actions
        strategy = hook._FrameExecStrategy(hook._FrameAction.SKIP, getattr(hook._FrameAction, below))
        hook.set_code_exec_strategy(torch_skip.__code__, strategy)
    except (AttributeError, TypeError):
        return None
    return lambda code: hook.set_code_exec_strategy(code, strategy)


_skip_in_torch, _hide_in_torch = torch_skip(), torch_skip("SKIP")


def skip_code(code: types.CodeType) -> None:
    """Have neither our frame hook nor that of PyTorch's compiler look at the frames of code that we made."""
    native().skip_code(code)
    if _skip_in_torch is not None:
        _skip_in_torch(code)


def chain_function(settings: Settings, parts: tuple[tuple, ...]) -> types.FunctionType:
    """The plain function behind ``Settings.resume_chain``. The k-th part is called in its line k + 2."""
    namespace = {"function": types.FunctionType}
    cell_names, parameters, lines = [], [], []
    shown: dict[str, str] = {}  # a parameter -> what messages call it
    for k, (fn, resume, closure, result) in enumerate(parts):
        skip_code(resume.code)
        if closure:
            cells = [f"c{k}_{i}" for i in range(len(resume.freevars))]
            cell_names += cells
            shown.update(zip(cells, resume.freevars))
            namespace[f"code{k}"], namespace[f"globals{k}"] = resume.code, fn.globals
            callee = f"function(code{k}, globals{k}, {resume.code.co_name!r}, None, ({', '.join(cells)},))"
        else:
            namespace[f"f{k}"] = settings.resume_function(fn, resume, compiled=False)
            callee = f"f{k}"
        given = ["r" if what == result else f"a{k}_{i}" for i, what in enumerate(resume.params)]
        shown.update((name, f".stack{what}" if kind == "stack" else what)
                     for name, (kind, what) in zip(given, resume.params))
        parameters += [name for name in given if name != "r"]
        lines.append(f"    r = {callee}({', '.join(given)})")
    text = f"def go_on({', '.join(cell_names + parameters)}):\n" + "\n".join(lines) + "\n    return r"
    exec(compile(text, telling.BEHIND, "exec"), namespace)
    made = namespace["go_on"]
    made._jit_stands_for, made._jit_chain = parts[-1][0].code, parts
    made._jit_shown = shown
    skip_code(made.__code__)
    return parts[-1][0].sign(made)


def function_of_cells(code: types.CodeType, namespace: dict) -> types.FunctionType:
    """A function (cells..., arguments...) that calls ``code`` over these cells with these arguments."""
    cells = [f"c{i}" for i in range(len(code.co_freevars))]
    rest = [f"a{i}" for i in range(code.co_argcount)]
    given = list(rest)
    if rest:  # it lets go of the arguments before the call: a generator among them is closed when the program drops it
        given[-1] = f"({rest[-1]}, {', '.join(f'({a} := None)' for a in rest)})[0]"
    text = (
        f"lambda {', '.join(cells + rest)}: function(code, namespace, name, None, "
        f"({', '.join(cells)},))({', '.join(given)})")
    call = eval(text, {"function": types.FunctionType, "code": code, "namespace": namespace, "name": code.co_name})
    call._jit_resumed, call._jit_namespace = code, namespace
    return call


def user_code(fn: Callable) -> types.CodeType:
    """The program's code behind a function: what a function of cells or of several frames calls, or its own."""
    return getattr(fn, "_jit_resumed", None) or getattr(fn, "_jit_stands_for", fn.__code__)


class Again(NamedTuple):
    """Why a function was compiled for the ``number``-th time: what differed from the entry that is nearest, and what to
    write to avoid it ("": nothing)."""

    number: int
    differed: str
    cure: str


class Missed:
    """``on_miss`` of one dispatcher: captures, adds an entry, and gives up after ``config.cache_limit`` entries of one
    kind (``circumstances.py``)."""

    ends_are_told = True  # by the dispatcher, which calls the original

    def __init__(self, settings: Settings, bound: object = None, resumed: bool | str = False) -> None:
        self.settings, self.bound = settings, bound
        self.renew(resumed)
        self.captures: list[Captured] = []  # their summaries
        # What is kept on disk, by its name there: looked at; and in use, or of none.
        self.candidates: dict[str, stored.Candidate] = {}
        self.loaded: set[str] = set()
        self.to_recall: list[bytes] = []  # what other processes have seen, until something is captured (histories.py)
        self.limits = Limits()
        self.given_up = False
        self.failures = 0
        self.assuming = True
        self.retired = None  # an entry that is to be captured again, while it was not yet (ways.py)
        self.taken_back: tuple[str, str] | None = None  # why the last entry was, and what to write to avoid it
        self.again: list[Again] = []  # why it was compiled again, the last times
        self.waiting = background.Waiting()

    def renew(self, resumed: bool | str | None = None) -> None:
        """Know nothing of what varies."""
        settings = self.settings
        resumed = self.dynamic.resumed if resumed is None else resumed
        self.dynamic = Dynamic(settings.dynamic, resumed, settings.fullgraph)
        self.dynamic.told = settings.told

    def sizes_vary(self) -> None:
        """Sizes are known to vary before it is called again: they depend on data."""
        if self.settings.dynamic is None:
            self.dynamic.tried.vary = self.dynamic.behind_data = True

    def __call__(self, dispatcher, values: tuple[object, ...]):
        if self.given_up or self.limits.is_full(values):
            return None
        if stance.now() != "default":
            if self.retired is not None and self.retired.guards.check(values):
                return self.retired
            return self.not_now(dispatcher, values)
        if self.settings.option("compile_in") == "background" and self.may_wait():
            taken = background.take(self.waiting, dispatcher, values, self.compile_behind, self.ends_are_told)
            if taken is not background.IN_CALL:
                return taken
        followed = observing.Lines() if traced_lines.wanted() else None
        entry = self.entry_for(dispatcher, values, followed)
        if followed is not None:
            traced_lines.tell(followed)
        return entry

    def entry_for(self, dispatcher, values: tuple[object, ...], followed: observing.Lines | None):
        """An entry for a call, or None. ``followed``: whom the lines are told that are captured for it; then none is
        taken from disk."""
        with turns.hurried(), _lock, observing.following(followed):
            if self.given_up or self.limits.is_full(values):
                return None
            for entry in dispatcher.entries:  # another thread may have compiled the same meanwhile
                if entry.guards.check(values):
                    return entry
            fn = wrapped_function(dispatcher)
            code = self.code_shown(fn)
            with (uncollected(), self.named(dispatcher), observing.recorded(code.co_qualname),
                  progress.compiling(code.co_qualname, code.co_filename, code.co_firstlineno,
                                     self.settings.option("progress"))):
                key = None if followed is not None else stored.key_of(self, fn, dispatcher, values)
                before = dispatcher.entries
                found = self.stored(dispatcher, fn, values, key)
                if found is None:
                    return self.compile(dispatcher, values, key)
                if before:
                    self.explain_miss(fn, before, self.limits.competing(before, values), values, len(self.captures),
                                      "takes another entry from disk")
                return found

    @contextlib.contextmanager
    def named(self, dispatcher) -> Iterator[None]:
        """What is compiled in the block is named after the function, and a profiler is told of it."""
        title = self.shown(dispatcher)
        with shown.compiling(title), torch_private.recorded(f"jit: compiling {title}"):
            yield

    def shown(self, dispatcher) -> str:
        """What profilers call the function; the native dispatcher asks."""
        fn = wrapped_function(dispatcher)
        return titles.title(fn, user_code(fn), self.bound, self.dynamic.resumed)

    def told(self, dispatcher) -> str:
        """The ``repr`` of the dispatcher, which asks."""
        fn = wrapped_function(dispatcher)
        alike = [m for m in (ref() for ref in list(_missed.values())) if m and m.settings is self.settings]
        return titles.told(user_code(fn), self.bound, len(dispatcher.entries),
                           [c for m in alike for c in m.captures], self.given_up)

    def stored(self, dispatcher, fn: types.FunctionType, values: tuple[object, ...], key: str | None):
        """An entry for the call that another process has made, if there is one."""
        if key is None or len(dispatcher.entries) >= MOST * self.settings.option("cache_limit"):
            return None
        capturing = native().set_capturing(True)
        try:
            return stored.find(self, dispatcher, fn, values, key)
        finally:
            native().set_capturing(capturing)

    def add(self, dispatcher, program: object, target: Callable | None, region: object, circumstances: object,
            summary: Captured, told: frozenset):
        """A new entry of the dispatcher, captured here or in another process."""
        if target is not None:
            skip_code(target.__code__)
        entry = dispatcher.add_entry(program, target, region=region)
        entry.circumstances, entry.told = circumstances, told
        self.captures.append(summary)
        if self.may_be_slower(summary, target):
            code = self.code_shown(wrapped_function(dispatcher))
            name = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
            entry.trial = trial.Trial(entry, name, len(summary.breaks), captures_so_far)
        return entry

    def code_shown(self, fn: Callable) -> types.CodeType:
        """The code that messages name: of a module its ``forward``, of what goes on in several frames behind a break
        the innermost one of the program's own."""
        if isinstance(self.bound, torch.nn.Module):
            code = titles.forward_of(self.bound)
            if code is not None:
                return code
        code = shown_code(fn) or user_code(fn)
        whole = self.settings.forward
        return whole if whole is not None and telling.is_library(code.co_filename) else code

    def may_wait(self) -> bool:
        """Whether a call may run in eager until an entry for it is there."""
        settings = self.settings
        return (settings.on_capture is None and observing.observer() is None and self.dynamic.resumed != "step"
                and not (self.captures and settings.option("error_on_recompile"))
                and not (settings.option("bucket_collectives") and background.in_several_processes()))

    def compile_behind(self, dispatcher, values: tuple[object, ...], known: tuple) -> bool:
        """As a call that misses, in the thread in the background. Whether there is an entry for these values now, if
        there should be one. ``known``: the entries that did not fit when the call was made; where one does now, the
        call has changed what it was given, and the entry is none for calls like it."""
        fn = wrapped_function(dispatcher)
        with _lock, self.named(dispatcher), turns.working(lambda: (background.shared_state(), fn.__code__)):
            if self.given_up or self.limits.is_full(values) or not self.may_wait():
                return True
            fitting = [entry for entry in dispatcher.entries if entry.guards.check(values)]
            if fitting:
                return not any(entry in known for entry in fitting)
            with observing.recorded(user_code(fn).co_qualname):
                key = stored.key_of(self, fn, dispatcher, values)
                entry = self.stored(dispatcher, fn, values, key)
                if entry is None:
                    entry = self.compile(dispatcher, values, key)
            return entry is None or entry.guards.check(values)

    def may_take_back(self) -> bool:
        """Whether an entry may be taken back, so that the next call captures it again."""
        return stance.now() == "default" and not self.settings.option("error_on_recompile")

    def takes_back(self, why: str, cure: str) -> None:
        """An entry goes, so that the next call is captured: what that will be said to be for."""
        self.taken_back = why, cure

    def not_now(self, dispatcher, values: tuple[object, ...]) -> None:
        """Nothing is compiled in the present stance (see ``stance.py``)."""
        if stance.now() == "fail_on_recompile":
            raise self.refusal(dispatcher, values, "the stance is \"fail_on_recompile\"",
                               "call it with arguments like earlier ones, or under jit.set_stance(\"default\")")

    def refusal(self, dispatcher, values: tuple[object, ...], reason: str, cure: str) -> RecompileError:
        """The error of a call for which nothing may be compiled; it says what differs from each entry."""
        code = self.code_shown(wrapped_function(dispatcher))
        differs = "".join(f"\n  entry {i}: {text}" for i, text in enumerate(differences(dispatcher.entries, values)))
        again = "compiled again" if dispatcher.entries else "compiled"
        return RecompileError(f"jit: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) would be {again} "
                              f"for these arguments, and {reason}; {cure}{differs}")

    def compile(self, dispatcher, values: tuple[object, ...], key: str | None = None):
        """A new entry. ``key``: what it is kept under on disk, if it is."""
        fn = wrapped_function(dispatcher)
        entries = dispatcher.entries
        competing, limit = self.limits.competing(entries, values), self.settings.option("cache_limit")
        if self.captures:
            if self.settings.option("error_on_recompile"):
                raise self.refusal(dispatcher, values, "error_on_recompile is set", "call it with arguments like "
                                   "earlier ones, or set jit.config.error_on_recompile to False")
            self.explain_miss(fn, entries, competing, values, len(self.captures) + 1)
            if len(competing) >= limit or len(entries) >= MOST * limit:
                return self.give_up(fn, entries, competing)
        capturing = native().set_capturing(True)
        _counts["captures"] += 1
        stored.recall(self, dispatcher, fn, values)
        self.dynamic.captures, self.dynamic.limit = len(competing), limit
        code = user_code(fn)
        place = code.co_filename, code.co_qualname
        self.dynamic.stepwise = self.dynamic.resumed and place in self.settings.lengths
        self.dynamic.quiet = self.settings.quiet
        self.dynamic.lengths_known = bool(self.settings.lengths) and len(self.captures) > 1
        self.dynamic.tried.vary |= self.settings.sizes_vary and bool(self.dynamic.resumed)
        start = time.perf_counter()
        try:
            if (observer := observing.observer()) is not None:
                observer.follows(code, False)
            with logs.timed("capture"), config.overlaid(**self.settings.options):  # some options are read there
                captured = capture(fn, values, self.settings, self.dynamic, self.bound, self.assuming)
            captured.code = code
            program = self.guard_program(captured)
            target = captured.target if self.worth_calling(captured) else None
            turns.check_state()
            number = len(self.captures)
            entry = self.add(dispatcher, program, target, self.region_of(captured), circumstances(captured.guards),
                             captured.summary(), captured.told)
        except (PassError, Unsupported) as error:
            # Where in the compiler it was seen is no news to the user, whose line the message has.
            raise error if config.strict else error.with_traceback(None)
        except Exception as error:  # a rule of ours has failed, which is told
            return self.failed(fn, error)
        finally:
            native().set_capturing(capturing)
        self.retired = None
        for known in dispatcher.entries:  # those that tell ahead what is told no more hold for few calls, and ask long
            if not self.settings.fullgraph and any(map(self.settings.told.turns, getattr(known, "told", ()))):
                dispatcher.remove_entry(known)
        for watching in (captured.doubt, captured.learner, captured.check):
            if watching is not None:
                watching.watch(self, dispatcher, entry)
        self.settings.sizes_vary |= self.dynamic.tried.vary
        if self.dynamic.lengths_differ:
            self.settings.lengths.update([place, *((b.file, b.function) for b in captured.breaks)])
        if timing_log:
            timing_log(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}): entry {number} in "
                       f"{time.perf_counter() - start:.3f} s; of these {logs.stages()}")
        if captured.failed:
            self.count_failure()
        captured.entry = entry
        if key is not None:
            stored.keep(self, dispatcher, entry, captured, key)
        if self.settings.on_capture is not None:
            self.settings.on_capture(captured)
        if observer is not None:
            observer.ends(captured, self.settings)
        return entry

    def may_be_slower(self, captured: Captured, target: Callable | None) -> bool:
        """Whether eager is tried too: what the user has asked to be compiled breaks its graph."""
        left = [b for b in captured.breaks if b.kind not in _EAGER_RAISES]
        return (config.eager_where_faster and bool(left) and target is not None
                and not self.settings.quiet and not self.dynamic.resumed)

    def worth_calling(self, captured: Captured) -> bool:
        """Whether the rewritten function is run rather than the original."""
        return True

    def region_of(self, captured: Captured):
        """The region to serve while the entry's target runs: where something was left to the interpreter."""
        left = [b for b in captured.breaks if b.kind not in _EAGER_RAISES]
        return self.settings.region() if left else None

    def guard_program(self, captured: Captured):
        return native_guards.program(*captured.guards.program())

    def explain_miss(self, fn: Callable, entries: tuple, competing: list, values: tuple[object, ...], number: int,
                     what: str = "is compiled again") -> None:
        """Note, and log, what differs in a call from the entries that there are: it gets its ``number``-th."""
        why = differences(entries, values)
        taken_back, self.taken_back = self.taken_back, None
        nearest = max((k for k, entry in enumerate(entries) if entry in competing or not competing),
                      key=lambda k: (cures.held(entries[k].guards, values), k), default=-1)
        cure = cures.cure(entries[nearest].guards, values, self.settings.dynamic is not False) if entries else ""
        if taken_back is not None:
            why, nearest, cure = [*why, taken_back[0]], len(why), taken_back[1]
        again = Again(number, why[nearest] if why else "not known", cure)
        self.again = [*self.again, again][-_MOST_AGAIN:]
        if recompiles_log:
            code = self.code_shown(fn)
            lines = "\n".join(f"  entry {i}: {text}" if i < len(entries) else f"  {text}" for i, text in enumerate(why))
            recompiles_log(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) {what}:\n{lines}"
                           + (f"\n  to avoid it: {cure}" if cure else ""))

    def give_up(self, fn: Callable, entries: tuple, competing: list) -> None:
        """Calls like this one run in eager from now on; all do once there are too many entries."""
        kind = len(competing) >= self.settings.option("cache_limit")
        if kind:
            self.limits.give_up(competing)
        else:
            self.given_up = True
        code = self.code_shown(fn)
        text = (f"jit: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) was compiled "
                f"{len(competing) if kind else len(entries)} times and runs in "
                f"eager from now on. What kept changing: {self.again[-1].differed if self.again else 'not known'}")
        if self.again and self.again[-1].cure:
            text += f". To avoid it: {self.again[-1].cure}"
        else:
            text += (". If it has to be so many, raise the limit: jit.config.cache_limit, or recompile_limit= of "
                     "jit.compile")
        recompiles_log(text)
        if not self.settings.quiet:
            telling.warn(text, otherwise=(code.co_filename, code.co_firstlineno))
        return None

    def failed(self, fn: Callable, error: Exception) -> None:
        """A failure for which there is no entry: one warning, and this call runs in eager, or the error itself with
        ``fullgraph`` or ``config.strict``."""
        if (observer := observing.observer()) is not None:
            observer.errors.append(error)
        if self.settings.fullgraph:
            raise error
        code = self.code_shown(fn)
        failures.report(error, (code.co_filename, code.co_firstlineno, code.co_qualname), "it runs in eager")
        self.count_failure()
        return None

    def count_failure(self) -> None:
        """What fails for whatever arguments is not tried for ever."""
        self.failures += 1
        self.given_up = self.given_up or self.failures >= _MOST_FAILURES


if _hide_in_torch is not None:  # a function of ours may be called in one that torch.compile has compiled
    _hide_in_torch(Missed.__call__.__code__)


def differences(entries: tuple, values: tuple[object, ...]) -> list[str]:
    """For each entry, what differs in a call with these arguments."""
    why = []
    for entry in entries:
        try:
            why.append(native_guards.explain(entry.guards, values) or "it fits now")
        except Exception as error:  # a log line must not stop the program
            why.append(f"not known ({error})")
    return why


def _after_in_child() -> None:
    """What held the lock is not there in a child that was forked meanwhile."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_in_child)


def wrapped_function(dispatcher) -> types.FunctionType:
    """The plain function behind a dispatcher."""
    fn = dispatcher.__wrapped__
    return fn.__func__ if isinstance(fn, types.MethodType) else fn


def plain(fn: Any) -> Any:
    """The function behind a compiled one; anything else as it is."""
    return fn.__wrapped__ if isinstance(fn, native().Dispatcher) else fn


def make_dispatcher(fn: Callable, settings: Settings, bound: object = None, resumed: bool | str = False):
    """The native callable of a function. ``bound``: the object that local 0 always is; ``resumed``: it goes on after a
    break; "step": it is a step of a generator."""
    missed = Missed(settings, bound, resumed)
    if isinstance(bound, torch.nn.Module) and settings.forward is None:
        settings.forward = titles.forward_of(bound)
    made = native().Dispatcher(fn, missed) if bound is None else native().Dispatcher(fn, missed, bound)
    _missed[made] = weakref.ref(missed)
    return track(made)


def track(dispatcher):
    """Have ``reset`` know of a dispatcher; gives it back."""
    _dispatchers.add(dispatcher)
    return dispatcher


def known(fn: Any) -> tuple[Any, Missed | None]:
    """The dispatcher of a compiled function or module, and what it has; None where nothing is compiled."""
    dispatcher = getattr(type(fn), "_jit_dispatcher", fn)
    dispatcher = getattr(dispatcher, "__func__", dispatcher)  # of a method
    known = _missed.get(dispatcher) if isinstance(dispatcher, native().Dispatcher) else None
    return dispatcher, known and known()


def under(settings: Settings) -> list[tuple[Any, Missed]]:
    """All that is compiled with these settings: a function, and what goes on behind its graph breaks."""
    return [(d, m) for d, m in ((d, ref()) for d, ref in list(_missed.items())) if m and m.settings is settings]


def dispatchers() -> list:
    """All that there are."""
    return list(_dispatchers)


def count_graph() -> None:
    _counts["graphs"] += 1
    progress.graph()


def compile_count() -> int:
    """Graphs compiled so far in this process."""
    return _counts["graphs"]


def captures_so_far() -> int:
    """Frames captured so far in this process."""
    return _counts["captures"]


def reset() -> None:
    """Forget every entry of every dispatcher; those on disk are not looked at any more."""
    stored.off()
    background.cancel()
    for dispatcher in list(_dispatchers):
        dispatcher.clear()
        missed = dispatcher.on_miss
        if isinstance(missed, Missed):
            missed.captures.clear()
            missed.candidates.clear()
            missed.given_up, missed.failures, missed.assuming, missed.limits = False, 0, True, Limits()
            missed.waiting = background.Waiting()
            missed.settings.told = Told()
            missed.renew()
            missed.settings.resumes.clear()
            missed.settings.unsteady.clear()
            missed.settings.lengths.clear()
            missed.settings.ways, missed.settings.sizes_vary, missed.retired = Known(), False, None
            for region in missed.settings.regions:
                region.forget()
    failures.forget()
    native().release_pool()
