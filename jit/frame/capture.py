"""Capturing one call: execute the frame symbolically, then emit the rewritten function and its guards.

A step that cannot be captured ends the region there: what was captured is compiled, the step itself is run for real by
the rewritten bytecode, and a resume function, captured on its own when it is called, goes on from the next instruction.
Where the rest cannot be resumed that way it runs in eager from the step on, or the whole frame does; each is recorded.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable


from .. import failures, logs, torch_private
from ..errors import EagerRaises, NeedsEager, PassError, Unsupported
from ..graph import memory, results
from . import assumptions, breaks, guesses, library, opcodes  # noqa: F401  (the latter two fill the tables of rules)
from . import source as src
from .blocks import READ_BACK, WRITE_BACK, rewriting
from .break_code import BreakCode, Broken, Return
from .emit import Emitter
from .executor import Frame, Returned
from .states import attention
from .states.function_state import switched_off
from ..graph.backward import is_spent
from ..graph.passes.dce import eliminate_dead_nodes
from ..graph.passes.gradients import without_gradients
from ..graph.saved_tensors import keeps, refused
from ..graph.foreign import is_foreign
from ..runtime import facts, names, user_kernels
from .session import Session
from .values.base import Raised
from .values.functions import FunctionValue
from .values.objects import ModuleObject
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from .dispatch import Settings
    from .dynamic import Dynamic
    from .values.base import Value

bytecode_log = logs.channel("bytecode")


@dataclasses.dataclass
class Captured:
    """The outcome of a capture.

    Attributes:
        target: the rewritten function, called with the frame's bound locals by position; None: run the original.
        guards: the facts it relies on.
        graph: the captured Graph or None.
        plan: what the rewritten function calls.
        breaks: records of what could not be captured.
        inputs: sources of the graph inputs, in order.
        check: of the guesses that the rewritten function relies on, or None.
        sees_tensors: whether a tensor or a module was among what the frame looked at.
        doubt: of a graph with an assumption, what is called when it fails (``assumptions.Doubt``).
        learner: where it breaks at a branch on values, what learns which way the program goes (``ways.Learner``).
        told: places of branches on data that were told ahead (``varying.py``).
        failed: whether a rule of ours has failed.
        instructions: how many instructions were executed symbolically.
        seconds: CPU time of this process for all of it, kernels that were built in this process included.
        entry: the dispatcher's, that was made of it.
        code: of the function, as messages name it.
    """

    target: types.FunctionType | None
    guards: Any
    graph: Graph | None = None
    plan: Any = None
    breaks: list = dataclasses.field(default_factory=list)
    inputs: list = dataclasses.field(default_factory=list)
    sees_tensors: bool = False
    check: object = None
    doubt: object = None
    learner: object = None
    told: frozenset = frozenset()
    failed: bool = False
    instructions: int = 0
    seconds: float = 0.0
    entry: Any = None
    code: types.CodeType | None = None

    def summary(self) -> Captured:
        """What is remembered of it: nothing that refers to the program's objects."""
        return Captured(None, None, graph=self.graph is not None or None,
                        breaks=self.breaks, sees_tensors=self.sees_tensors, failed=self.failed)


def refuse_modes() -> None:
    """Raise NeedsEager while a mode or a transform of the program's sees every operation: compiled code would go past
    it, and what an operator makes, such as a random number, may be another one for each element of a map. The mode of a
    default device is known."""
    if torch_private.peek_transform() is not None:
        raise NeedsEager("a transform of torch.func is active", "compile the function that calls it", kind="functorch")
    modes = [m for m in torch_private.function_modes() if not isinstance(m, torch_private.DefaultDevice)]
    if modes or torch_private.dispatch_modes():
        name = type(modes[-1]).__name__ if modes else "a TorchDispatchMode"
        raise NeedsEager(f"{name} is active, which sees every operation", "compile without it", kind="torch-mode")
    if torch_private.peek_transform() is not None:
        raise NeedsEager("a call inside a torch.func transform, which sees every operation", kind="functorch")


class Capture:
    """One attempt at one frame.

    Args:
        fn: the function; ``values`` its bound locals in CPython's order.
        settings: ``jit.frame.dispatch.Settings``.
        bound: what the first argument is known to be, whatever the call (the module of a compiled module), or a weak
            reference to it, or None.
    """

    def __init__(self, fn: Callable, values: tuple[object, ...], settings: Settings, dynamic: Dynamic | None = None,
                 bound: object = None) -> None:
        self.fn, self.settings, self.values, self.bound = fn, settings, values, bound
        self.session = Session(dynamic)
        self.session.unsteady = None if settings.fullgraph else settings.unsteady
        self.session.unbroken = settings.fullgraph
        self.session.tracer.expects = getattr(settings.backend, "expects", self.session.tracer.expects)
        self.code = getattr(fn, "_jit_resumed", None) or fn.__code__
        self.arguments = len(values)
        self.frame = None
        self.breaks: list = []
        self.doubt = None

    def set_up(self) -> None:
        """The outermost frame, with the arguments as its locals."""
        s, fn, code = self.session, self.fn, self.code
        s.arguments = self.values
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise NeedsEager("the compiled function is an asynchronous generator",
                             "compile what it calls", kind="generator-target")
        if code is fn.__code__:
            first = 0
            function = s.wrap(fn, src.Const(fn, fn.__qualname__, owned=True))
        else:
            first = len(code.co_freevars)
            cells = [s.wrap_cell(cell, src.Local(i, name))
                     for i, (name, cell) in enumerate(zip(code.co_freevars, self.values))]
            function = FunctionValue(code=code, globals=fn._jit_namespace,
                                     closure=tuple(cells), qualname=fn.__qualname__)
        n = (code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS) +
             bool(code.co_flags & inspect.CO_VARKEYWORDS))
        locals_ = {}
        shown = getattr(fn, "_jit_shown", {})
        for i, (name, value) in enumerate(zip(code.co_varnames[:n], self.values[first:]), first):
            root = src.Local(i, shown.get(name, name))
            if self.bound is not None and i == first:
                root = (src.Weak(self.bound) if isinstance(self.bound, weakref.ref)
                        else src.Const(value, name, owned=True))
            locals_[name] = s.wrap(value, root)
        self.frame = Frame(s, function, locals_)

    def run(self) -> Captured:
        """Raises Unsupported when ``fullgraph`` is asked for and something cannot be captured."""
        s, settings, chain = self.session, self.settings, ()
        s.guards.add(src.Const(None, "torch"), s.guards.state)
        try:
            refuse_modes()
            self.set_up()
            outcome = self.execute()
            if outcome[0] == "returned":
                return self.finish_return(outcome[1])
            error, chain = outcome[1:]
            del outcome
            if s.levels:  # nothing can go on inside of a transform
                error = NeedsEager.of(error)
            if not settings.fullgraph:
                let_go(error)
            if settings.fullgraph or isinstance(error, NeedsEager):
                raise error
            return self.finish_break(error, chain)
        except Unsupported as error:
            if settings.fullgraph and error.kind not in ("raises", "gradient", "generator-target", "lazy-module"):
                raise
            if not settings.fullgraph:
                let_go(error)
            return self.eager(error)
        except (EagerRaises, PassError, assumptions.Reconsider, memory.SharedMemory):
            raise
        except Exception as error:  # a rule of ours has failed, which is told
            if settings.fullgraph:
                raise
            failures.report(error, self.where(), "it runs in eager for arguments like these")
            return self.failed(error)
        finally:
            s.close()
            for broken in chain:
                broken.stack = []
            for frame in (*(broken.frame for broken in chain), self.frame):
                for held in () if frame is None else (frame.stack, frame.kept, frame.locals, frame.cells):
                    held.clear()
            error = chain = None  # noqa: F841  the error's traceback leads here

    def eager(self, error: Unsupported) -> Captured:
        """The whole frame in eager, for as long as the facts that led to the decision hold."""
        self.breaks.append(breaks.record(error, self.where(), whole_frame=True))
        return Captured(None, self.session.guards, breaks=self.breaks, sees_tensors=self.sees_tensors())

    def failed(self, error: Exception) -> Captured:
        """As ``eager`` where a rule of ours has failed: for the facts so far, with all sizes as they are, so that other
        arguments are tried again."""
        env = self.session.tracer.env
        for name in list(self.session.varying.origins()):
            if name in env.symbols:
                env.specialize(env.symbols[name])
        text = f"the compiler failed: {type(error).__name__}: {error}"
        let_go(error)
        unsupported = Unsupported(text, kind="internal")
        unsupported.told = True
        captured = self.eager(unsupported)
        captured.failed = True
        return captured

    def sees_tensors(self) -> bool:
        return any(isinstance(v, (TensorValue, ModuleObject)) for v in self.session.heap.by_object.values())

    def where(self) -> tuple[str, int, str]:
        return self.frame.where() if self.frame is not None else (self.code.co_filename,
                                                                  self.code.co_firstlineno, self.code.co_qualname)

    def execute(self) -> tuple[object, ...]:
        """Run the outermost frame: ("returned", value) or ("broke", error, the frames at the break)."""
        frame, s = self.frame, self.session
        frame.spliceable = True
        s.frames.append(frame)
        try:
            return "returned", self.run_frame()
        except Raised as raised:
            raise self.escaping(raised) from None
        except RecursionError:
            raise NeedsEager("the capture is nested too deeply", kind="too-deep") from None
        except EagerRaises as raises:
            raise NeedsEager(f"the program raises {type(raises.error).__name__}", kind="raises") from None
        except Unsupported as error:
            chain = [Broken(f, f.mark, f.stack) for f in error.frames]
            if error.kind == "frame-inspection":
                del chain[1:]
            chain[-1].stack = chain[-1].frame.kept
            return "broke", error, chain
        finally:
            s.frames[:] = []

    def run_frame(self) -> Value:
        """Execute the frame to its end: what the rewritten function returns."""
        try:
            self.frame.loop()
        except Returned as done:
            return done.value

    def continuation(self) -> None:
        """None: the frame goes on in a resume function."""
        return None

    def escaping(self, raised: Raised) -> Unsupported:
        """An exception leaves the frame: eager code raises it, with the user's traceback."""
        cls = raised.value.cls.__name__
        args = raised.value.init_args
        text = ": " + ", ".join(str(a.value) for a in args if a.is_leaf) if args else ""
        return NeedsEager(f"the program raises {cls}{text}", kind="raises")

    # -- finishing ------------------------------------------------------------------------------------------------

    def emitter(self) -> Emitter:
        e = Emitter(self.session, self.code, self.arguments, eager_target(self.fn))
        e.code_globals = self.frame.globals
        return e

    def finish_return(self, value: Value) -> Captured:
        return self.assemble(Return(value))

    def assemble(self, ending: Return | BreakCode) -> Captured:
        """Compile what was captured, and write the function that runs it and ends so."""
        s, e = self.session, self.emitter()
        s.varying.foresee(s.effects.replaced())
        e.replay(s.effects.to_replay())
        ending.load(e)
        if any(g.left_inside_block() and not e.memoised(g) for g in s.generators):
            raise NeedsEager("a generator is left inside a try or with block, which runs on when the generator is "
                             "collected",
                             "run it to its end, or close() it", kind="iterator-escapes")
        check = guesses.require(e, s)
        recorded = results.recorded_writes(s.tracer)
        checked_behind = s.assumption is not None and not recorded and assumptions.runs_twice(s)
        if checked_behind:
            self.doubt = assumptions.Doubt(s.learned)
            e.require(s.assumption, self.doubt)
        elif s.assumption is not None:
            e.doubt = self.doubt = assumptions.Doubt(s.learned)
            assumptions.check_inside(s)
        unnoted = [h for h in s.tracer.inputs if h.base.mutated and not h.base.noted and h.base.region is None]
        for index, _ in recorded:
            s.guards.add(s.recording.inputs[index].source, facts.Writable())
        e.write_back(recorded, [m for r in s.tracer.regions for m in r.written], unnoted)
        for origin, offset in s.tracer.places:
            s.guards.add(src.Returned(src.GetAttr(origin, "storage_offset")), facts.Equals(offset))
        wanted, e.derived = results.derive(s.tracer, [t.handle(s) for t in e.outputs], ending.goes_on)
        e.outputs += [s.recording.tensor_of(h) for h in wanted[len(e.outputs):]]
        gradient = s.tracer.gradient(wanted)
        if gradient is not None:
            for h in unnoted:
                if keeps(s.tracer, h.base) or any(v.base is h.base and v.requires_grad for v in wanted if v.chain):
                    raise NeedsEager("a tensor of which autograd keeps the version is changed by way of .data",
                                     "change the tensor itself, under no_grad", kind="gradient")
            errors = refused(s.tracer, [wanted[i] for i in (*gradient.tangents, *gradient.views)])
            e.overwritten = tuple((i, why) for i, why in zip((*gradient.tangents, *gradient.views), errors) if why)
        e.spent = tuple(i for i, h in enumerate(wanted) if h.requires_grad and not h.is_input and is_spent(s.tracer, h))
        if any(wanted[i].chain for i in e.spent):
            raise NeedsEager("a result is a view of a tensor whose autograd graph was freed",
                             "return the tensor itself", kind="gradient")
        graph = s.tracer.finish(wanted, gradient is not None or s.tracer.inner_gradients)
        if s.tracer.inner_gradients:
            graph = self.with_gradients(graph, gradient is not None)
        if checked_behind:
            assumptions.check(graph, "learning" if s.learned else "assuming")
        repeatable = (not e.blocks[WRITE_BACK] and not any(o.mutates is not None for o in graph.outputs)
                      and all(n.repeatable for n in graph.nodes))
        # What they have done is not done again.
        repeatable &= not any(n.op == "aten_call" and is_foreign(n.attrs["target"]) for n in graph.nodes)
        e.operators = tuple(foreign_operators(graph))
        if READ_BACK in e.failing and not repeatable:
            # What raises behind the graph comes too late: the program has to be interrupted there, if it may be.
            if not self.settings.fullgraph:
                raise assumptions.Reconsider("uncertain")
            e.failing.discard(READ_BACK)
        if attention.is_read(graph):
            s.guards.state.read.add("attention")
        if s.varying.history is not None:
            s.varying.history.tried.settle(graph.nodes, s.tracer.env, s.varying.origins())
        plan, inputs = None, []
        needed = bool(graph.outputs) or any(node.attrs.get("impure") for node in graph.nodes)
        self.guard_aliases()
        if needed:
            plan, inputs = self.settings.compile_graph(graph, s.recording.inputs, s, gradient)
            if not graph.outputs:
                e.outputs = []
        target = e.finish(plan, inputs, self.code.co_name, repeatable, functools.partial(ending.leave, e))
        if bytecode_log:
            bytecode_log(rewriting(self.code, target))
        return Captured(target, s.guards, graph if needed else None, plan, self.breaks,
                        [v.source for v in s.recording.inputs], sees_tensors=self.sees_tensors(), check=check,
                        doubt=self.doubt, learner=getattr(ending, "learner", None))

    def with_gradients(self, graph: Graph, differentiated: bool) -> Graph:
        """The graph with the gradients that the program asks for. Raises Reconsider where they cannot be had."""
        from ..graph.autodiff.inner import expand_gradients  # late: autodiff's tables fill when they are first needed
        from ..graph.passes.attention import fuse_attention  # late, as that

        try:
            graph = expand_gradients(fuse_attention(graph, True))
        except Unsupported as error:
            breaks.log(f"gradients inside are left to eager: {error.why}")
            raise assumptions.Reconsider("inner_gradients") from None
        return eliminate_dead_nodes(graph if differentiated else without_gradients(graph))

    def guard_aliases(self) -> None:
        """An input that is changed must not share memory with another input on later calls, but for those of a region,
        whose places in it are guarded."""
        s = self.session
        changed, others, members = [], [], []
        for handle, value in zip(s.tracer.inputs, s.recording.inputs):
            region = handle.base.region
            if region is not None:
                sources = [s.recording.tensors[id(m)].source for m in region.members]
                members.append((region, sources))
            elif value.source is not None and value.source.guarded:  # else it is made for the call
                (changed if handle.base.mutated else others).append(value.source)
        around = [source for _, sources in members for source in sources]
        if changed and len(changed) + len(others) + len(around) > 1:
            s.guards.add(changed[0], facts.Apart(tuple(changed), (*others, *around)))
        for region, sources in members:
            apart = (*changed, *others, *(source for source in around if source not in sources))
            if region.base.mutated and apart:
                for source in sources:
                    s.guards.add(source, facts.Apart((source,), apart))

    # -- breaks -----------------------------------------------------------------------------------------------------

    def finish_break(self, error: Unsupported, chain: list[Broken]) -> Captured:
        """Compile what was captured up to the break, which is in the last frame of ``chain``; where that frame cannot
        be resumed, the call that entered it is the break."""
        s = self.session
        self.breaks.append(breaks.record(error, self.where()))
        while True:
            innermost = chain[-1]
            s.journal.rollback(innermost.mark)
            innermost.frame.stack = list(innermost.stack)
            code = None
            try:
                code = BreakCode(s, self.settings, chain, self.continuation(), error.kind == "data-dependent-shape")
                code.check()
                return self.assemble(code)
            except NeedsEager:
                raise
            except Unsupported as problem:
                if len(chain) == 1:
                    raise
                breaks.log(f"not resumed inside {innermost.frame.fn.qualname}: {problem.why}")
                chain = chain[:-1]
                chain[-1].stack = chain[-1].frame.kept
            finally:
                if code is not None:
                    code.frames.clear()  # they refer to it, and so to the program's objects


def foreign_operators(graph: Graph) -> Iterator[tuple[str, str, int]]:
    """(name, file, line) of each call of an operator that is not PyTorch's own, at the program's own line."""
    for n in graph.nodes:
        if n.op != "aten_call" or n.loc is None:
            continue
        target = n.attrs["target"]
        if target == user_kernels.OPERATOR:
            target = n.attrs["args"][0].rpartition(" ")[0]
        if is_foreign(target):
            yield (target, *(n.loc.user or n.loc)[:2])


def let_go(error: Exception | Unsupported | None) -> None:
    """Drop what led to an error: the frames that it went through hold the program's objects, in cycles."""
    error.frames = []
    while error is not None:
        error.__traceback__, error = None, error.__context__


def capture(fn: Callable, values: tuple[object, ...], settings: Settings, dynamic: Dynamic | None = None,
            bound: object = None, assuming: bool = True) -> Captured:
    """``Capture(...).run()``; again without assumptions where what was captured does not allow any, and again knowing
    that some inputs share memory. ``assuming``: whether to make any assumptions."""
    refused, shared, calls = set() if assuming else {"assuming"}, [], []
    start, attempts = time.process_time(), 0
    while True:
        attempt = getattr(fn, "_jit_capture", Capture)(fn, values, settings, dynamic, bound)
        attempt.session.tracer.regions = [memory.Region(tensors) for tensors in shared]
        attempt.session.calls_made, attempt.session.ways = calls, settings.ways
        for made in calls:
            made[2] = False
        for what in refused:
            setattr(attempt.session, what, False)
        if dynamic is not None:
            dynamic.tried.begin(again=attempts > 0)
        attempts += 1
        try:
            with switched_off():
                captured = attempt.run()
            captured.instructions, captured.seconds = attempt.session.steps, time.process_time() - start
            captured.told = frozenset(attempt.session.varying.asked)
            return captured
        except assumptions.Reconsider as reconsider:
            refused.update({reconsider.what} - {""})
        except Unsupported:
            if dynamic is None or not dynamic.tried.refuse():
                raise
        except memory.SharedMemory as found:
            shared = memory.join(shared, found.tensors)


def eager_target(fn: Callable) -> Callable:
    """A function of the bound locals that calls ``fn`` as the program did."""
    code = fn.__code__
    n_pos, n_kwonly = code.co_argcount, code.co_kwonlyargcount
    has_varargs, has_varkw = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
    if not (n_kwonly or has_varargs or has_varkw):
        return fn
    keywords = code.co_varnames[n_pos: n_pos + n_kwonly]

    def target(*values):
        kwonly = dict(zip(keywords, values[n_pos: n_pos + n_kwonly]))
        rest = values[n_pos + n_kwonly:]
        varargs = rest[0] if has_varargs else ()
        varkw = rest[-1] if has_varkw else {}
        return fn(*values[:n_pos], *varargs, **kwonly, **varkw)

    return names.made(target, eager_target, fn)
