"""Capturing one call: execute the frame symbolically, then emit the rewritten function and its guards.

A step that cannot be captured ends the region there: what was captured is compiled, the step itself is run for real by the
rewritten bytecode, and a resume function, captured on its own when it is called, goes on from the next instruction. Where the
rest cannot be resumed that way it runs in eager from the step on, or the whole frame does; each is recorded.
"""

from __future__ import annotations

import dataclasses
import inspect
import types

import torch

from .. import logs
from ..errors import EagerRaises, NeedsEager, Unsupported
from . import breaks, library  # noqa: F401
from . import source as src
from .canonical import NEXT, OPS
from .decode import decode
from .emit import Emitter
from .executor import HANDLERS, NULL, Frame, Returned, Yielded
from .resume import make_resume
from .session import Session
from .values.base import Raised
from .values.constant import Constant, DimValue
from .values.functions import CellValue, FunctionValue

bytecode_log = logs.channel("bytecode")

# Instructions that the rewritten bytecode may run itself at a break, with its stack restored.
RUNNABLE = frozenset(
    "CALL CALL_FUNCTION_EX BINARY_OP UNARY_NEGATIVE UNARY_POSITIVE UNARY_NOT UNARY_INVERT COMPARE_OP CONTAINS_OP IS_OP BINARY_SUBSCR "
    "STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE LOAD_ATTR LOAD_METHOD STORE_ATTR DELETE_ATTR LOAD_GLOBAL STORE_GLOBAL GET_ITER "
    "FORMAT_VALUE BUILD_STRING BUILD_MAP BUILD_SET LIST_EXTEND DICT_UPDATE DICT_MERGE UNPACK_SEQUENCE UNPACK_EX IMPORT_NAME IMPORT_FROM "
    "BEFORE_WITH".split())
BRANCHES = frozenset("POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE".split())


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
        predicates: facts on symbolic sizes; ``origins`` says what each symbol stands for.
    """

    target: types.FunctionType | None
    guards: object
    graph: object = None
    plan: object = None
    breaks: list = dataclasses.field(default_factory=list)
    inputs: list = dataclasses.field(default_factory=list)
    predicates: list = dataclasses.field(default_factory=list)
    origins: dict = dataclasses.field(default_factory=dict)


class Capture:
    """One attempt at one frame.

    Args:
        fn: the function; ``values`` its bound locals in CPython's order.
        settings: ``jit.frame.dispatch.Settings``.
        bound: what local 0 is known to be, whatever the call (the module of a compiled module), or None.
    """

    def __init__(self, fn, values, settings, dynamic=None, bound=None):
        self.fn, self.settings = fn, settings
        self.session = Session(dynamic)
        code = fn.code if isinstance(fn, FunctionValue) else fn.__code__
        self.code = code
        n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.names = code.co_varnames[:n]
        locals_ = {}
        for i, (name, value) in enumerate(zip(self.names, values)):
            if bound is not None and i == 0:
                locals_[name] = self.session.wrap(value, src.Const(value, name))
            else:
                locals_[name] = self.session.wrap(value, src.Local(i, name))
        function = self.session.wrap(fn, src.Const(fn, fn.__qualname__))
        self.frame = Frame(self.session, function, locals_)
        self.breaks: list = []

    def run(self) -> Captured:
        """Raises Unsupported when ``fullgraph`` is asked for and something cannot be captured."""
        s, settings = self.session, self.settings
        s.guards.add(src.Const(None, "torch"), "global_state", None)
        try:
            if self.code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
                raise NeedsEager("a generator or coroutine function as the compiled function", "compile what it calls", kind="generator-target")
            outcome = self.execute()
            if outcome[0] == "returned":
                return self.finish_return(outcome[1])
            error, mark, stack = outcome[1:]
            if isinstance(error, NeedsEager):
                raise error
            if settings.fullgraph:
                raise error
            return self.finish_break(error, mark, stack)
        except Unsupported as error:
            if settings.fullgraph and error.kind not in ("raises", "gradient", "generator-target"):
                raise
            return self.eager(error)

    def eager(self, error) -> Captured:
        """The whole frame in eager, for as long as the facts that led to the decision hold."""
        self.breaks.append(breaks.record(error, self.where(), whole_frame=True))
        return Captured(None, self.session.guards, breaks=self.breaks, predicates=list(self.session.tracer.env.guards),
                        origins=dict(self.session.tracer.env.origins))

    def where(self):
        return self.frame.where()

    def execute(self):
        """Run the outermost frame, with a checkpoint before each instruction."""
        frame, s = self.frame, self.session
        s.frames.append(frame)
        instructions = frame.instructions
        try:
            while True:
                instr = instructions[frame.pc]
                mark, stack = s.checkpoint(), list(frame.stack)
                try:
                    handler = HANDLERS.get(instr.op)
                    if handler is None:
                        raise Unsupported(f"bytecode instruction {instr.op}", kind="opcode")
                    following = handler(frame, instr)
                except Raised as raised:
                    try:
                        frame.pc = frame.unwind(instr, raised)
                    except Raised:
                        raise self.escaping(raised) from None
                    continue
                except RecursionError:
                    error = Unsupported("the capture is nested too deeply", kind="too-deep")
                    return "broke", error, mark, stack
                except EagerRaises as raises:
                    error = NeedsEager(f"the program raises {type(raises.error).__name__}", kind="raises")
                    return "broke", error, mark, stack
                except Unsupported as error:
                    if error.where is None:
                        error.where = frame.where()
                    return "broke", error, mark, stack
                frame.pc = frame.pc + 1 if following is None else following
        except Returned as done:
            return "returned", done.value
        finally:
            s.frames[:] = []

    def escaping(self, raised) -> Unsupported:
        """An exception leaves the frame: eager code raises it, with the user's traceback."""
        cls = raised.value.cls.__name__
        args = getattr(raised.value, "init_args", ())
        text = ": " + ", ".join(str(a.value) for a in args if isinstance(a, Constant)) if args else ""
        return NeedsEager(f"the program raises {cls}{text}", kind="raises")

    # -- finishing ------------------------------------------------------------------------------------------------

    def emitter(self) -> Emitter:
        e = Emitter(self.session, self.code, self.names)
        e.code_globals = self.fn.__globals__
        return e

    def effects(self):
        """The effect log, with the changes of grad mode reduced to the last one, if it differs from the first."""
        s = self.session
        kept = [e for e in s.effects if e[0] is not torch._C._set_grad_enabled]
        if s.grad_mode != torch.is_grad_enabled():
            kept.append((torch._C._set_grad_enabled, [Constant(s.grad_mode)]))
        return kept

    def finish_return(self, value) -> Captured:
        e = self.emitter()
        e.replay(self.effects())
        e.load(value)
        e.cmd("return_value")
        return self.assemble(e)

    def assemble(self, e: Emitter) -> Captured:
        s = self.session
        if s.tracer.needs_grad:
            raise NeedsEager("gradients are needed", "call it under torch.no_grad(), or wait for training support", kind="gradient")
        graph = s.tracer.finish([t.handle(s) for t in e.outputs])
        plan, inputs = None, []
        needed = bool(graph.outputs) or any(node.attrs.get("impure") for node in graph.nodes)
        self.guard_aliases(graph)
        if needed:
            plan, inputs = self.settings.compile_graph(graph, s.inputs, s)
            if not graph.outputs:
                e.outputs = []
        target = e.finish(plan, inputs, self.code.co_name)
        if bytecode_log:
            import dis

            bytecode_log(f"original {self.code.co_qualname}:\n{dis.Bytecode(self.code).dis()}\nrewritten:\n{dis.Bytecode(target.__code__).dis()}")
        return Captured(target, s.guards, graph if needed else None, plan, self.breaks, [v.source for v in s.inputs],
                        list(s.tracer.env.guards), dict(s.tracer.env.origins))

    def guard_aliases(self, graph):
        """An input that is changed must not share memory with another input on later calls."""
        s = self.session
        for output in graph.outputs:
            if output.mutates is not None:
                changed = s.inputs[output.mutates]
                for other in s.inputs:
                    if other is not changed and changed.source is not None and other.source is not None:
                        s.guards.add(changed.source, "no_alias", other.source)

    # -- breaks -----------------------------------------------------------------------------------------------------

    def finish_break(self, error, mark, stack) -> Captured:
        s, frame = self.session, self.frame
        s.rollback(mark)
        frame.stack = stack
        self.breaks.append(breaks.record(error, frame.where()))
        e = self.emitter()
        e.replay(self.effects())
        self.emit_break(e)
        return self.assemble(e)

    def live_values(self, index) -> dict:
        """The frame's locals and cells that the code from ``index`` on may read."""
        live = self.frame.code.live_locals(index)
        return {n: v for n, v in self.frame.locals.items() if n in live}

    def emit_break(self, e: Emitter):
        frame, k = self.frame, self.frame.pc
        instr = frame.instructions[k]
        if any(type(v).__name__ == "Previous" for v in frame.stack):
            raise NeedsEager("a break inside an exception handler", kind="break-in-handler")
        for i, v in enumerate(frame.stack):
            if v is not NULL:
                e.load(v)
                e.cmd("store_fast", f".s{i}")
        plain = instr.handler is None and not self.code.co_cellvars and not self.reads_frame(instr)
        if plain and instr.op in BRANCHES:
            self.load_locals(e, k, instr.target, k + 1)
            self.push_stack(e)
            e.cmd("branch", instr.op, "jump")
            depth = len(frame.stack) - 1
            self.call_resume(e, k + 1, depth, compiled=True)
            e.cmd("place", "jump")
            self.call_resume(e, instr.target, depth, compiled=True)
            return
        if plain and instr.op in RUNNABLE and OPS[instr.op].flow == NEXT:
            self.load_locals(e, k, k + 1)
            self.push_stack(e)
            pops, pushes = OPS[instr.op].effect(instr.arg)
            nulls = [v is NULL for v in frame.stack[: len(frame.stack) - pops]]
            if instr.op == "LOAD_METHOD":
                e.cmd("push_null")
                e.cmd("swap", 2)
                e.cmd("emit", "LOAD_ATTR", instr.arg)
                nulls += [True, False]
            else:
                e.cmd("emit", instr.op, instr.arg)
                nulls += [False] * pushes
            for i in reversed(range(len(nulls))):
                e.cmd("store_fast", f".s{i}")
            frame.stack = [NULL if null else None for null in nulls]
            self.call_resume(e, k + 1, len(nulls), compiled=True)
            return
        self.load_locals(e, k, k)
        self.call_resume(e, k, len(frame.stack), compiled=False)

    def reads_frame(self, instr) -> bool:
        """A zero-argument ``super()`` finds its arguments in the frame that calls it."""
        if instr.op != "CALL" or instr.arg[0]:
            return False
        callee = self.frame.stack[-1]
        return getattr(callee, "obj", None) is super

    def load_locals(self, e, k, *indices):
        """Put the live locals under their own names."""
        names = sorted(set().union(*(self.frame.code.live_locals(i) for i in indices)))
        first = self.code.co_varnames[0] if self.code.co_argcount else None
        for name, value in self.frame.locals.items():
            if name in names or name == first:
                e.load(value)
                e.cmd("store_fast", name)

    def push_stack(self, e):
        for i, v in enumerate(self.frame.stack):
            e.cmd("push_null") if v is NULL else e.cmd("load_fast", f".s{i}")

    def call_resume(self, e, index, depth, compiled):
        """Call the function that goes on at ``index``, and return what it returns."""
        frame = self.frame
        available = {n for n in frame.locals}
        live = [n for n in sorted(frame.code.live_locals(index)) if n in available and n not in self.code.co_cellvars + self.code.co_freevars]
        nulls = tuple(v is NULL for v in frame.stack[:depth])
        resume = make_resume(self.code, index, live, depth, nulls)
        e.push_null()
        own_cells = bool(self.code.co_cellvars)
        if own_cells:
            cells = [frame.cells.get(n) or CellValue() for n in resume.freevars]
            e.push_null()
            e.load_const(types.FunctionType)
            e.load_const(resume.code)
            e.load_const(self.fn.__globals__)
            e.load_const(resume.code.co_name)
            e.load_const(None)
            for cell in cells:
                e.load(cell)
            e.cmd("build_tuple", len(cells))
            e.cmd("call", 5, ())
        else:
            e.load_const(self.settings.resume_function(self.fn, resume, index, nulls, compiled))
        for kind, what in resume.params:
            if kind == "local":
                e.cmd("load_fast", what)
            elif kind == "stack":
                e.cmd("load_fast", f".s{what}")
            else:
                e.load(frame.cells[what].get(self.session))
        e.cmd("call", len(resume.params), ())
        e.cmd("return_value")
