"""From values back to bytecode: the rewritten function that runs the graph, replays the effects and rebuilds what is
live.

Commands are recorded first, each in its block (``jit.frame.blocks``), because what the graph has to return is known
only when everything that is rebuilt has been seen; ``finish`` then writes the blocks in order.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Callable

import torch

from .. import torch_private
from ..errors import Unsupported
from ..graph.dim_trees import as_operations
from ..graph.handles import TensorHandle
from ..graph.recipes import Result, unasked
from ..runtime import facts, happened, native
from ..runtime.holding import holding
from ..runtime.spent import refuse_backward, spent
from . import blocks
from . import source as src
from .assemble import Assembler, function_from
from .blocks import ARGUMENTS, ASSUMPTION, COMPUTE, DERIVE, EFFECTS, HISTORY, READ_BACK, REBUILD, RESULTS, WRITE_BACK
from .states.function_state import calls_torch
from .states.index_modes import function_modes
from .values.base import Value
from .values.constant import Constant
from .values.containers import ListValue, TupleValue
from .values.mappings import DictValue
from .values.functions import CellValue, ClassValue
from .values.objects import ObjectValue
from .values.overlays import DELETED

if TYPE_CHECKING:
    from ..graph.dims import Dim
    from .assemble import Label
    from .numbers import Integers
    from .session import Session
    from .source import Source
    from .values.deferred import Deferred
    from .values.functions import FunctionValue
    from .values.numbers import FloatValue
    from .values.tensor import TensorValue


def _set_dict_entry(obj: object, name: str, value: object) -> None:
    """An attribute written past the class's own ``__setattr__``."""
    object.__setattr__(obj, name, value)


def write_recorded(target: torch.Tensor, value: torch.Tensor) -> None:
    """``target.copy_(value)``, recorded by autograd. The class of the target has been asked while capturing."""
    with torch.enable_grad(), torch_private.WithoutTorchFunction():
        target.copy_(value)


def put_back_version(tensor: torch.Tensor) -> None:
    """Take back what the graph has added to a version counter."""
    if not tensor.is_inference():
        torch_private.set_version_counter((tensor,), (torch_private.version_of(tensor) - 1,))


class CyclicValue(Unsupported):
    """A value made while capturing contains itself."""

    def __init__(self, value: Value, key: tuple[str, int]) -> None:
        super().__init__(f"{value.describe()} that contains itself leaves the captured region", kind="rebuild")
        self.value, self.key = value, key


class Emitter:
    """Records the blocks of the rewritten function.

    Between two blocks the stack is empty, but for the plan's results behind COMPUTE, and for what REBUILD leaves to the
    end of the function. All else that a block leaves to others is in locals: the arguments in ``.a0`` and so on, the
    results of the graph in ``.out0`` and so on, the rest in ``.t1`` and so on.

    Attributes:
        blocks: the commands of each block.
        block: the one that commands go into, and ``commands`` its newest ones; REBUILD if not said otherwise.
        failing: blocks in which something is called that may raise by what data say.
        outputs: tensor values that the graph has to return, in order; they are unpacked into ``.out0`` and so on.
        doubt: what hears of exceptions of the plan, of which a failed assumption is one (``assumptions.Doubt``).
        original: the function that does what the rewritten one does, in eager, with the same arguments.
        memo: key of a value -> the local that holds its object once it is made.
        computed: what is computed once, in ARGUMENTS or READ_BACK -> its local.
        overwritten, spent: see ``set_histories``; ``derived``: how some outputs are made, see graph/results.py.
    """

    def __init__(self, session: Session, code: types.CodeType, arguments: int, original: Callable) -> None:
        self.session, self.code = session, code
        self.argnames = [f".a{i}" for i in range(arguments)]
        self.blocks: dict[blocks.Block, list[tuple]] = {block: [] for block in blocks.ORDER}
        self.block, self.commands = REBUILD, self.blocks[REBUILD]
        self.failing: set[blocks.Block] = set()
        self.operators: tuple[tuple[str, str, int], ...] = ()  # that are not PyTorch's own: name, file, line
        self.sources: dict = {}
        self.outputs: list = []
        self.output_index: dict = {}
        self.memo: dict = {}
        self.building: set = set()
        self.temporaries = 0
        self.code_globals: dict | None = None
        self.unfilled: dict[tuple, list] = {}
        self.computed: dict[object, str] = {}
        self.original, self.doubt = original, None
        self.overwritten: tuple = ()  # (position among the outputs, why a backward from it raises)
        self.spent: tuple = ()  # positions among the outputs whose history a backward() of the program has freed
        self.derived: list = []

    # -- recording ------------------------------------------------------------------------------------------------

    def cmd(self, name: str, *args: object) -> None:
        if name in blocks.CHANGES:
            raise blocks.BlockError(f"{name} changes what may have been there before the call")
        self.commands.append((name, args))

    @contextlib.contextmanager
    def into(self, block: blocks.Block, fails: bool = False) -> Iterator[None]:
        """What is emitted inside goes to the end of a block, behind what it needs there itself. ``fails``: it may
        raise, or leave for the original function."""
        if fails and not block.fails:
            raise blocks.BlockError(f"what may fail is called in the block {block.name!r}")
        kept, self.block, self.commands = (self.block, self.commands), block, []
        try:
            yield
            self.blocks[block] += self.commands
        finally:
            self.block, self.commands = kept
        if fails:
            self.failing.add(block)

    def load_const(self, obj: object) -> None:
        self.cmd("load_const", obj)

    def load_attr(self, name: str) -> None:
        self.cmd("load_attr", name)

    def build_slice(self, n: int) -> None:
        self.cmd("build_slice", n)

    def push_null(self) -> None:
        self.cmd("push_null")

    def temporary(self) -> str:
        self.temporaries += 1
        return f".t{self.temporaries}"

    def memoised(self, value: Value) -> bool:
        return value.memo_key() in self.memo

    def load(self, value: Value) -> None:
        """Emit bytecode that pushes the object of a value; a value that is rebuilt is built once."""
        if type(value) is Constant:
            self.load_known(value, value.value)
            return
        key = value.memo_key()
        if key in self.memo:
            self.cmd("load_fast", self.memo[key])
            return
        if key in self.building:
            raise CyclicValue(value, key)
        self.building.add(key)
        start, known = len(self.commands), len(self.memo)
        try:
            value.emit(self)
        except CyclicValue as cycle:
            self.building.discard(key)
            steps = value.steps() if cycle.key == key else None
            if steps is None:
                raise
            self.drop(start, known)
            self.build_in_steps(value, *steps)
            return
        self.building.discard(key)
        made = [name for name, _ in self.commands[start:]]
        if key not in self.memo and made not in (["load_fast"], ["load_const"]) and not value.is_const():
            self.remember(value)
            self.keep_alive(value)

    def drop(self, start: int, known: int) -> None:
        """Take back what was emitted since there were so many commands and objects in temporaries."""
        del self.commands[start:]
        for name in list(self.memo)[known:]:
            del self.memo[name]

    def build_in_steps(self, value: Value, empty: str, rows: list[tuple]) -> None:
        """A new list or dict that contains itself: made empty, then filled."""
        self.cmd(empty, 0)
        self.remember(value)
        self.keep_alive(value)
        for method, arguments in rows:
            self.fill(method, value, *(functools.partial(self.load, v) for v in arguments))

    def load_known(self, value: Value, obj: object) -> None:
        """The object of a value that code may hold, such as a number, a class or a function: itself where it is known
        or guarded already, else from where it came, without a guard on which it is."""
        source = value.source
        if source is None or type(source) is src.Const or self.session.guards.has(source, facts.Equals, facts.Is):
            self.load_const(obj)
        elif src.loadable(source):
            self.load_source(source)
        else:
            value.const(self.session)
            self.load_const(obj)

    def keep_alive(self, value: Value) -> None:
        self.session.heap.keep(value)

    def remember(self, value: Value) -> None:
        """Store the top of the stack, which is the object of a value, in a temporary for later loads, leaving it on the
        stack."""
        name = self.memo[value.memo_key()] = self.temporary()
        self.cmd("copy", 1)
        self.cmd("store_fast", name)

    # -- values -----------------------------------------------------------------------------------------------------

    def load_source(self, source: Source) -> None:
        """Push the object at a source. What is read from another object is read at the start, before anything
        changes."""
        if source.immediate:
            source.load(self)
            return
        name = self.sources.get(source)
        if name is None:
            if source.base is not None and source.guarded and not self.session.guards.reaches(source):
                self.session.guards.add(source, facts.Present())  # what is read without a fact has to be there
            with self.into(ARGUMENTS):
                source.load(self)
                name = self.sources[source] = self.temporary()
                self.cmd("store_fast", name)
        self.cmd("load_fast", name)

    def load_base(self, source: Source) -> None:
        """Push the object that ``source`` is read from; where only the last step leads to what is replaced, that object
        is known."""
        holder = self.session.heap.by_source.get(source.base) if source.fresh else None
        if getattr(holder, "obj", None) is not None:
            self.load_source_or_const(holder)
        else:
            self.load_source(source.base)

    def const(self, obj: object) -> Callable[[], None]:
        """An argument of ``call``."""
        return functools.partial(self.load_const, obj)

    def local(self, name: str) -> Callable[[], None]:
        return functools.partial(self.cmd, "load_fast", name)

    def call(self, fn: object, *arguments: Callable[[], None], kwnames: tuple = ()) -> None:
        """Push ``fn(*arguments)``: a function that changes nothing that was there before the call, of what each of
        ``arguments`` pushes when it is called, the last ones by their names."""
        if blocks.changes(fn):
            raise blocks.BlockError(f"{fn} changes what may have been there before the call")
        self.call_any(fn, arguments, kwnames)

    def call_any(self, fn: object, arguments: Sequence[Callable[[], None]], kwnames: tuple = ()) -> None:
        """The same of any function. A mode that the program is in where the rewritten function ends has been asked
        while capturing."""
        self.load_const(unasked(fn) if calls_torch(fn) and function_modes(self.session) else fn)
        for push in arguments:
            push()
        self.cmd("call", len(arguments), kwnames)

    def call_const(self, fn: object, args: list[Value], kwargs: dict | None = None) -> None:
        """Push ``fn(*args, **kwargs)`` of values."""
        kwargs = kwargs or {}
        self.call(fn, *(functools.partial(self.load, v) for v in (*args, *kwargs.values())), kwnames=tuple(kwargs))

    def change(self, fn: object, args: list[Value]) -> None:
        """Push ``fn(*args)``, which changes objects that may have been there before the call."""
        if not self.block.changes:
            raise blocks.BlockError(f"{fn} is called in the block {self.block.name!r}, which changes nothing")
        self.call_any(fn, [functools.partial(self.load, v) for v in args])

    def fill(self, fn: object, made: Value, *arguments: Callable[[], None]) -> None:
        """``fn(made, *arguments)``, which puts something into an object that the rewritten function has made."""
        self.call_any(fn, [self.local(self.memo[made.memo_key()]), *arguments])
        self.cmd("pop")

    def load_source_or_const(self, value: Value, real: object = None) -> None:
        """A real object (``value.obj`` if it is not given): by its source, or itself where the guards pin its identity
        and the code may hold it (``holding``)."""
        source = value.source
        obj = value.obj if real is None else real
        if source is None:
            self.load_const(obj)
        elif not (isinstance(source.root, src.Const) and source.watched):
            self.load_source(source)
        elif (isinstance(obj, torch.Tensor) or holding(obj) ==
              "place") and source.base is not None and src.loadable(source):
            self.session.guards.add(source, facts.At(obj))
            self.load_source(source)
        else:
            self.session.guards.add(source, facts.identity(obj))
            root = src.Const(obj)
            self.load_const(obj) if root.reference is None else self.load_source(root)

    def load_graph_output(self, tensor: Value) -> None:
        self.cmd("load_fast", self.graph_output(tensor))

    def graph_output(self, tensor: TensorValue) -> str:
        """The local that holds a tensor that the graph returns."""
        index = self.output_index.get(id(tensor._handle))
        if index is None:
            index = self.output_index[id(tensor._handle)] = len(self.outputs)
            self.outputs.append(tensor)
        return f".out{index}"

    def require(self, tensor: TensorValue, doubt: Callable) -> None:
        """Do the call in eager where this result of the graph is false, and call ``doubt`` before."""
        required = self.graph_output(tensor)
        with self.into(ASSUMPTION, fails=True):
            self.cmd("load_fast", required)
            self.cmd("branch", "POP_JUMP_IF_TRUE", "holds")
            self.call(native().Unhooked(doubt))
            self.cmd("pop")
            self.run_original()
            self.cmd("place", "holds")

    def check_first(self, check: Callable, sources: list[Source]) -> None:
        """Do the call in eager where ``check`` of the objects at ``sources`` is false, before anything else is done."""
        with self.into(ARGUMENTS, fails=True):
            self.call(check, *(functools.partial(self.load_source, source) for source in sources))
            self.cmd("branch", "POP_JUMP_IF_TRUE", "guessed")
            self.run_original()
            self.cmd("place", "guessed")

    def load_float(self, value: FloatValue) -> None:
        """A symbolic float, computed at the start; where Python's arithmetic raises, the original function runs in its
        place."""
        if value.fn is None:
            self.load_source(value.source)
        else:
            arguments, fn = value.program()
            self.load_or_give_up((value, "number"), fn, [functools.partial(v.emit, self) for v in arguments])

    def load_or_give_up(self, key: object, fn: Callable, arguments: list[Callable[[], None]]) -> None:
        """Push ``fn(*arguments)``, computed once at the start; if that is None, the original function is what runs."""
        name = self.computed.get(key)
        if name is None:
            name = self.computed[key] = self.temporary()
            with self.into(ARGUMENTS, fails=True):
                self.call(fn, *arguments)
                self.cmd("copy", 1)
                self.cmd("store_fast", name)
                self.cmd("branch", "POP_JUMP_IF_NOT_NONE", name)
                self.run_original()
                self.cmd("place", name)
        self.cmd("load_fast", name)

    def load_after_graph(self, value: Deferred, fn: object, args: list[Value], kwargs: dict[str, Value],
                         may_raise: bool) -> None:
        """Push ``fn(*args, **kwargs)``, called right after the graph has run and before any change of the program's is
        made."""
        name = self.computed.get(value)
        if name is None:
            name = self.computed[value] = self.temporary()
            with self.into(READ_BACK, fails=may_raise):
                self.call_const(fn, args, kwargs)
                self.cmd("store_fast", name)
        self.cmd("load_fast", name)

    def load_dim(self, dim: Dim) -> None:
        """A symbolic integer: arithmetic on the sizes that its symbols stand for."""
        self._dim_tree(as_operations(dim))

    def _dim_tree(self, tree: int | str | tuple[str, str, int]) -> None:
        if isinstance(tree, int):
            self.load_const(tree)
        elif isinstance(tree, str):
            self.load_symbol(tree)
        else:
            symbol, *operands = tree
            pushes = [functools.partial(self._dim_tree, operand) for operand in operands]
            if symbol in ("max", "min"):
                self.call(max if symbol == "max" else min, *pushes)
                return
            for push in pushes:
                push()
            self.cmd("binary_op", symbol)

    def load_symbol(self, name: str) -> None:
        origin, what, *dim = self.session.varying.origins()[name]
        if what == "int":
            self.load_source(origin)
        else:
            self.load_size(origin, what, *dim)

    def load_size(self, source: Source, what: str, dim: int) -> None:
        """The size or stride of a tensor in a dimension, which no class or mode of the program's is asked about."""
        fn = torch.Tensor.size if what == "size" else torch.Tensor.stride
        self.call(unasked(fn) if self.session.asker.seen else fn, functools.partial(self.load_source, source),
                  self.const(dim))

    def class_value(self, cls) -> Value:
        return ClassValue(cls)

    def build_tuple(self, values: list[Value]) -> None:
        for v in values:
            self.load(v)
        self.cmd("build_tuple", len(values))

    def build_list(self, value: ListValue) -> None:
        value.not_shared()
        for v in value.elements:
            self.load(v)
        self.cmd("build_list", len(value.elements))

    def build_dict(self, value: DictValue) -> None:
        value.not_shared()
        for k, v in value.entries.values():
            self.load(k)
            self.load(v)
        self.cmd("build_dict", len(value.entries))

    def build_cell(self, value: CellValue) -> None:
        contents = value.contents
        self.call(types.CellType)
        if contents is CellValue.UNSET:
            return
        self.remember(value)
        start, known = len(self.commands), len(self.memo)
        try:
            self.attribute_of_top("cell_contents", contents)
        except CyclicValue as cycle:
            if not cycle.value.fills_cells:
                raise
            self.drop(start, known)
            self.unfilled.setdefault(cycle.key, []).append(value)

    def fill_cells(self, value: Value) -> None:
        """What lies in cells that had to be made before the class or function on top of the stack, since it is part of
        their contents."""
        for cell in self.unfilled.pop(value.memo_key(), ()):
            self.load(cell.contents)
            self.load(cell)
            self.store_attr("cell_contents")

    def build_function(self, value: FunctionValue) -> None:
        """A function made while capturing: ``types.FunctionType`` with its cells, defaults and attributes."""
        closure = TupleValue(list(value._closure)) if value._closure else Constant(None)
        defaults = value._defaults or Constant(None)
        self.call(types.FunctionType, self.const(value.code), self.const(value.globals),
                  self.const(value.code.co_name), *(functools.partial(self.load, v) for v in (defaults, closure)))
        self.remember(value)
        self.fill_cells(value)
        if value._kwdefaults is not None:
            self.attribute_of_top("__kwdefaults__", value._kwdefaults)
        for name, attr in value.attrs.items():
            if attr is not DELETED:
                self.attribute_of_top(name, attr)
        if value.annotations is not None:
            self.attribute_of_top("__annotations__", value.annotations)

    def attribute_of_top(self, name: str, value: Value) -> None:
        """Set an attribute of the object on top of the stack, which the rewritten function has made."""
        self.cmd("copy", 1)
        self.load(value)
        self.cmd("swap", 2)
        self.store_attr(name)

    def store_attr(self, name: str) -> None:
        """value obj -> : an attribute of an object that the rewritten function has made."""
        self.commands.append(("store_attr", (name,)))

    def build_object(self, value: ObjectValue, fn: Callable, args: list[Value],
                     fill: tuple[object, list[Value] | None] | None = None) -> None:
        """Push ``fn(*args)``, then its contents through ``fill`` = (C method, elements | None for a dict) and its
        attributes."""
        self.call_const(fn, args)
        self.remember(value)
        if fill is not None:
            method, elements = fill
            self.fill(method, value, functools.partial(self.build_dict, value) if elements is None
                      else functools.partial(self.build_tuple, elements))
        for attr, v in value.attrs.items():
            if v is not DELETED:
                self.fill(_set_dict_entry, value, self.const(attr), functools.partial(self.load, v))

    def run_on_top(self, fn: Callable) -> None:
        """``fn(top of the stack)``, for its effect."""
        self.cmd("copy", 1)
        self.load_const(fn)
        self.cmd("swap", 2)
        self.cmd("call", 1)
        self.cmd("pop")

    # -- blocks -----------------------------------------------------------------------------------------------------

    def replay(self, effects: list[tuple[object, list]]) -> None:
        """EFFECTS: the logged changes, in order; what one gives that the program has is kept (``fn.gives``). Of their
        arguments, what the program has made is made in between, when it is first needed: an iterator over what was
        changed before, for example. None of it runs code of the program's that could raise, but for what the program
        itself calls here (a cached function, a logger's handlers)."""
        with self.into(EFFECTS):
            for fn, args in effects:
                gives = getattr(fn, "gives", None)
                self.change(fn if gives is None else fn.fn, args)
                if gives is not None:
                    self.remember(gives)
                    self.keep_alive(gives)
                self.cmd("pop")

    def write_back(self, changed: list[tuple[int, TensorHandle]], written: list[TensorHandle],
                   unnoted: list[TensorHandle]) -> None:
        """WRITE_BACK, before any other change: write what inputs with a history hold now, ``changed`` being (index of
        the input, handle on its value) for each, advance the version counters of ``written``, which were changed
        through shared memory, and put back those of ``unnoted``, which were changed by way of ``data``."""
        recording = self.session.recording
        rows = [(write_recorded, [recording.inputs[index], recording.tensor_of(handle)]) for index, handle in changed]
        rows += [(torch.autograd.graph.increment_version, [recording.tensors[id(h)]]) for h in written]
        rows += [(put_back_version, [recording.tensors[id(h)]]) for h in unnoted]
        with self.into(WRITE_BACK):
            for fn, args in rows:
                self.change(fn, args)
                self.cmd("pop")

    def compute(self, plan: Callable, inputs: list[Integers | Source]) -> None:
        """COMPUTE and RESULTS: the plan's results into ``.out0`` and so on. Where the plan raises, it has changed
        nothing, or says that it has (``native().failed``)."""
        with self.into(COMPUTE, fails=True):
            self.call_any(plan, [functools.partial(given.emit, self) for given in inputs])
        with self.into(RESULTS):
            if self.outputs:
                self.cmd("unpack_sequence", len(self.outputs))
                for i in range(len(self.outputs)):
                    self.cmd("store_fast", f".out{i}")
            else:
                self.cmd("pop")

    def set_histories(self) -> None:
        """HISTORY: results from which a backward raises, since their history was freed (``spent``), or since what it
        needs was overwritten (``overwritten``)."""
        with self.into(HISTORY):
            for i in self.spent:
                self.call(spent, self.local(f".out{i}"))
                self.cmd("store_fast", f".out{i}")
            for i, why in self.overwritten:
                self.call(refuse_backward, self.local(f".out{i}"), self.const(why))
                self.cmd("pop")

    def derive(self) -> None:
        """DERIVE: results that are made from others, and from inputs as they are behind WRITE_BACK."""
        with self.into(DERIVE):
            for recipe in self.derived:
                fn, arguments = recipe.call()
                fn = unasked(fn) if self.session.asker.seen else fn
                self.call(fn, *(functools.partial(self.load_operand, v) for v in arguments))
                self.cmd("store_fast", f".out{recipe.position}")

    # -- assembling -----------------------------------------------------------------------------------------------

    def load_operand(self, operand: object) -> None:
        """Push what a recipe's operand stands for."""
        _OPERANDS.get(type(operand), Emitter.load_const)(self, operand)

    def run_original(self) -> None:
        """Leave the rewritten function; the original one is called in its place, and is the only one of them in
        tracebacks."""
        self.call(native().TailCall, self.const(self.original), *map(self.local, self.argnames))
        self.cmd("return_value")

    def finish(self, plan: Callable | None, plan_inputs: list[Integers | Source], name: str, repeatable: bool,
               leave: Callable[[Assembler], None]) -> types.FunctionType:
        """-> the rewritten function: the blocks in order, and then what ``leave`` writes, with the stack as REBUILD
        leaves it. ``plan`` is called with the objects at the sources ``plan_inputs`` and gives the tensors of
        ``outputs``; None when there is no graph. Where a block before the commit point raises (an index that is out of
        range, say) the original function is called: nothing has been changed yet, and what the program does before and
        about the exception is its own business. ``repeatable``: see ``blocks.before_commit``."""
        if plan is not None:
            self.compute(plan, plan_inputs)
            self.set_histories()
            self.derive()
        else:
            self.blocks[WRITE_BACK].clear()
        before = blocks.before_commit(repeatable)
        blocks.check(self.blocks, self.argnames, self.failing, before)
        protected = before if self.failing else ()
        asm = Assembler(name, self.code.co_filename, self.argnames, first_line=self.code.co_firstlineno)
        labels: dict = {}
        failed = asm.new_label("failed")
        for block in blocks.ORDER:
            if self.blocks[block]:
                asm.block(block.name)
                with asm.handler(failed, depth=0) if block in protected else contextlib.nullcontext():
                    write(asm, self.blocks[block], labels)
        leave(asm)
        if protected:
            asm.block(blocks.FAILED)
            self.call_original(asm, failed, repeatable)
        made = function_from(asm.finish(), self.code_globals or {}, name)
        made._jit_blocks = asm.blocks
        return made

    def call_original(self, asm: Assembler, failed: Label, repeatable: bool) -> None:
        """The handler of a block before the commit point."""
        other = asm.new_label("other")
        asm.place(failed)
        asm.load_const(Exception)
        asm.emit("CHECK_EXC_MATCH")
        asm.pop_jump_if_false(other)
        if self.doubt is not None:
            asm.copy(1)
            asm.load_const(self.doubt)
            asm.swap(2)
            asm.call(1)
            asm.pop()
        if self.operators:
            asm.copy(1)
            asm.load_const(happened.tell_of_prediction)
            asm.swap(2)
            asm.load_const(self.operators)
            asm.call(2)
            asm.pop()
        asm.load_const(native().failed)
        asm.swap(2)
        asm.load_const(repeatable)
        asm.call(2)
        asm.store_fast(".again")
        with asm.calling():
            asm.load_fast(".again")
            asm.load_const(self.original)
            for argument in self.argnames:
                asm.load_fast(argument)
        asm.return_value()
        asm.place(other)
        asm.emit("RERAISE", 0)


_OPERANDS = {Result: lambda e, result: e.cmd("load_fast", f".out{result.position}"),
             TensorHandle: lambda e, handle: e.load(e.session.recording.tensors[id(handle)])}


def write(asm: Assembler, commands: list[tuple[str, tuple]], labels: dict[str, Label]) -> None:
    """Recorded commands; ``labels``: of the places that they name."""
    for command, args in commands:
        if command == "branch":
            labels[args[1]] = asm.new_label(args[1])
            asm.emit(args[0], target=labels[args[1]])
        elif command == "place":
            asm.place(labels[args[0]])
        else:
            getattr(asm, command)(*args)
