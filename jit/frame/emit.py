"""From values back to bytecode: the rewritten function that runs the graph, replays the effects and rebuilds what is
live.

Commands are recorded first, because what the graph has to return is known only when everything that is rebuilt has been
seen; ``finish`` then puts the graph call in front and assembles.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Callable

import torch

from .. import torch_private
from ..errors import Unsupported
from ..graph.dim_trees import as_operations
from ..graph.results import Called, Detached, OneOfSeveral, Result, Shown
from ..runtime import facts, native
from ..runtime.holding import holding
from ..runtime.numbers import load_numbers
from ..runtime.spent import refuse_backward, spent
from . import source as src
from .assemble import Assembler, function_from
from .values.base import Value
from .values.constant import Constant
from .values.containers import ListValue, TupleValue
from .values.mappings import DictValue
from .values.functions import CellValue, ClassValue
from .values.objects import DELETED, ObjectValue

if TYPE_CHECKING:
    from ..graph.dims import Dim
    from ..graph.handles import TensorHandle
    from ..graph.results import Selected
    from .numbers import Integers
    from .session import Session
    from .source import Source
    from .values.functions import FunctionValue
    from .values.tensor import TensorValue


def _set_dict_entry(obj: object, name: str, value: object) -> None:
    """An attribute written past the class's own ``__setattr__``."""
    object.__setattr__(obj, name, value)


def write_recorded(target: torch.Tensor, value: torch.Tensor) -> None:
    """``target.copy_(value)``, recorded by autograd."""
    with torch.enable_grad():
        target.copy_(value)


def select(source: torch.Tensor, index: tuple, recorded: bool, view: tuple | None) -> torch.Tensor:
    """``source[index]``, or a view (sizes, strides, offset from its first element) of that; ``recorded``: in which grad
    mode."""
    with torch.set_grad_enabled(recorded):
        part = source[index]
        if view is None:
            return part
        sizes, strides, offset = view
        return part.as_strided(sizes, strides, part.storage_offset() + offset)


def shown(member: torch.Tensor, sizes: tuple, strides: tuple, offset: int, recorded: bool) -> torch.Tensor:
    """A view of the memory of ``member``; the offset counts from its first element. ``recorded``: in which grad
    mode."""
    with torch.set_grad_enabled(recorded and torch.is_grad_enabled()):
        return member.as_strided(sizes, strides, member.storage_offset() + offset)


def called(operator, source: torch.Tensor, arguments: tuple, index: int) -> torch.Tensor:
    """One of the results of ``operator(source, *arguments)``."""
    return operator(source, *arguments)[index]


def put_back_version(tensor: torch.Tensor) -> None:
    """Take back what the graph has added to a version counter."""
    if not tensor.is_inference():
        torch_private.set_version_counter((tensor,), (torch_private.version_of(tensor) - 1,))


class CyclicValue(Unsupported):
    """A value made while capturing contains itself."""

    def __init__(self, value: Value, key: tuple[str, int]) -> None:
        super().__init__(f"{value.describe()} that contains itself leaves the captured region", kind="rebuild")
        self.key = key


class Emitter:
    """Records the body of the rewritten function.

    Attributes:
        outputs: tensor values that the graph has to return, in order; they are unpacked into ``.out0`` and so on.
        original: the function that does what the rewritten one does, in eager, with the same arguments.
    """

    def __init__(self, session: Session, code: types.CodeType, arguments: int, original: Callable) -> None:
        self.session, self.code = session, code
        self.argnames = [f".a{i}" for i in range(arguments)]
        self.prelude: list[tuple] = []
        self.sources: dict = {}
        self.commands: list[tuple] = []
        self.outputs: list = []
        self.output_index: dict = {}
        self.memo: dict = {}
        self.building: set = set()
        self.temporaries = 0
        self.code_globals: dict | None = None
        self.unfilled: dict[tuple, list] = {}
        self.computed: dict[tuple, str] = {}
        self.original = original
        self.required: str | None = None
        self.after_graph: list[tuple] = []
        self.overwritten: tuple = ()  # (position among the outputs, why a backward from it raises)
        self.spent: tuple = ()  # positions among the outputs whose history a backward() of the program has freed
        self.written: list[tuple] = []
        self.derived: list = []  # how some of the outputs are made from others; see graph/results.py
        self.doubt = None
        self.uncertain = False  # whether a call that is made after the graph may raise

    # -- recording ------------------------------------------------------------------------------------------------

    def cmd(self, name: str, *args: object) -> None:
        self.commands.append((name, args))

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
        return self.key(value) in self.memo

    @staticmethod
    def key(value: Value) -> tuple:
        return value.identity() if not isinstance(value, Constant) else ("constant", id(value))

    def load(self, value: Value) -> None:
        """Emit bytecode that pushes the object of a value; a value that is rebuilt is built once."""
        if type(value) is Constant:
            self.load_known(value, value.value)
            return
        key = self.key(value)
        name = self.memo.get(key)
        if name is not None:
            self.cmd("load_fast", name)
            return
        if key in self.building:
            raise CyclicValue(value, key)
        self.building.add(key)
        start, known = len(self.commands), len(self.memo)
        try:
            value.emit(self)
        except CyclicValue as cycle:
            self.building.discard(key)
            if cycle.key != key or not isinstance(value, (ListValue, DictValue)) or value.cls not in (list, dict):
                raise
            del self.commands[start:]
            for name in list(self.memo)[known:]:
                del self.memo[name]
            self.build_in_steps(value, key)
            return
        self.building.discard(key)
        made = [name for name, _ in self.commands[start:]]
        if key not in self.memo and made not in (["load_fast"], ["load_const"]) and not value.is_const():
            self.remember(key)
            self.keep_alive(value)

    def build_in_steps(self, value: Value, key: tuple[str, int]) -> None:
        """A new list or dict that contains itself: made empty, then filled."""
        self.cmd("build_list" if value.cls is list else "build_dict", 0)
        self.remember(key)
        self.keep_alive(value)
        name = self.memo[key]
        rows = [(list.append, [v]) for v in value.elements] if value.cls is list else [
            (dict.__setitem__, [k, v]) for k, v in value.entries.values()]
        for method, arguments in rows:
            self.push_null()
            self.load_const(method)
            self.cmd("load_fast", name)
            for v in arguments:
                self.load(v)
            self.cmd("call", 1 + len(arguments), ())
            self.cmd("pop")

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

    def remember(self, key: tuple) -> None:
        """Store the top of the stack in a temporary for later loads, leaving it on the stack."""
        name = self.temporary()
        self.memo[key] = name
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
            body, self.commands = self.commands, []
            source.load(self)
            name = self.sources[source] = self.temporary()
            self.cmd("store_fast", name)
            self.prelude += self.commands
            self.commands = body
        self.cmd("load_fast", name)

    def load_base(self, source: Source) -> None:
        """Push the object that ``source`` is read from; where only the last step leads to what is replaced, that object
        is known."""
        holder = self.session.heap.by_source.get(source.base) if source.fresh else None
        if getattr(holder, "obj", None) is not None:
            self.load_source_or_const(holder)
        else:
            self.load_source(source.base)

    def call(self, fn: object, *arguments: object) -> None:
        """Push ``fn(*arguments)`` for constants, and functions that push what they stand for."""
        self.push_null()
        self.load_const(fn)
        for argument in arguments:
            argument() if isinstance(argument, types.FunctionType) else self.load_const(argument)
        self.cmd("call", len(arguments), ())

    def load_source_or_const(self, value: Value) -> None:
        """A real object: by its source, or itself where the guards pin its identity and the code may hold it
        (``holding``)."""
        source = value.source
        obj = value.real if isinstance(value, CellValue) else value.obj
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

    def require(self, tensor: torch.Tensor, doubt) -> None:
        """Do the call in eager where this result of the graph is false, and call ``doubt`` before."""
        self.required, self.doubt = self.graph_output(tensor), doubt

    def check_first(self, check, sources) -> None:
        """Do the call in eager where ``check`` of the objects at ``sources`` is false, before anything else is done."""
        body, self.commands = self.commands, []
        self.push_null()
        self.load_const(check)
        for source in sources:
            self.load_source(source)
        self.cmd("call", len(sources), ())
        self.cmd("branch", "POP_JUMP_IF_TRUE", "guessed")
        self.run_original()
        self.cmd("place", "guessed")
        self.prelude += self.commands
        self.commands = body

    def load_float(self, value: Value) -> None:
        """A symbolic float, computed at the start; where Python's arithmetic raises, the original function runs in its
        place."""
        if value.fn is None:
            self.load_source(value.source)
        else:
            self.load_or_give_up((value, "number"), *value.program())

    def load_plan_input(self, given: Integers | Source) -> None:
        """An argument of the plan: what is at a source, or all its integers."""
        if isinstance(given, src.Source):
            self.load_source(given)
        else:
            program = given.program
            self.load_or_give_up(given, program.arguments, load_numbers(len(program.arguments),
                                                                        program.rows, given.results))

    def load_or_give_up(self, key: Integers | tuple[Value, str], arguments: list[Source | Value], fn) -> None:
        """Push ``fn(*arguments)``, computed once at the start; if that is None, the original function is what runs."""
        name = self.computed.get(key)
        if name is None:
            name = self.computed[key] = self.temporary()
            body, self.commands = self.commands, []
            self.push_null()
            self.load_const(fn)
            for argument in arguments:
                self.load_source(argument) if isinstance(argument, src.Source) else argument.emit(self)
            self.cmd("call", len(arguments), ())
            self.cmd("copy", 1)
            self.cmd("store_fast", name)
            self.cmd("branch", "POP_JUMP_IF_NOT_NONE", name)
            self.run_original()
            self.cmd("place", name)
            self.prelude += self.commands
            self.commands = body
        self.cmd("load_fast", name)

    def load_after_graph(self, value: Value, fn: object, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Push ``fn(*args, **kwargs)``, called right after the graph has run and before any change of the program's is
        made."""
        name = self.computed.get(value)
        if name is None:
            name = self.computed[value] = self.temporary()
            body, self.commands = self.commands, []
            self.call_const(fn, args, kwargs)
            self.cmd("store_fast", name)
            self.after_graph += self.commands
            self.commands = body
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
            symbol, a, b = tree
            if symbol in ("max", "min"):
                self.push_null()
                self.load_const(max if symbol == "max" else min)
                self._dim_tree(a)
                self._dim_tree(b)
                self.cmd("call", 2, ())
                return
            self._dim_tree(a)
            self._dim_tree(b)
            self.cmd("binary_op", symbol)

    def load_symbol(self, name: str) -> None:
        origin, what, *dim = self.session.varying.origins()[name]
        if what == "int":
            self.load_source(origin)
            return
        self.push_null()
        self.load_const(torch.Tensor.size if what == "size" else torch.Tensor.stride)
        self.load_source(origin)
        self.load_const(dim[0])
        self.cmd("call", 2, ())

    def call_const(self, fn: object, args: list[Value], kwargs: dict | None = None) -> None:
        """Push ``fn(*args, **kwargs)`` for a constant callable and values."""
        self.push_null()
        self.load_const(fn)
        for a in args:
            self.load(a)
        kwargs = kwargs or {}
        for v in kwargs.values():
            self.load(v)
        self.cmd("call", len(args) + len(kwargs), tuple(kwargs))

    def class_value(self, cls) -> Value:
        return ClassValue(cls)

    def build_tuple(self, values: list[Value]) -> None:
        for v in values:
            self.load(v)
        self.cmd("build_tuple", len(values))

    def build_list(self, value: ListValue) -> None:
        for v in value.elements:
            self.load(v)
        self.cmd("build_list", len(value.elements))

    def build_dict(self, value: DictValue) -> None:
        for k, v in value.entries.values():
            self.load(k)
            self.load(v)
        self.cmd("build_dict", len(value.entries))

    def build_cell(self, value: CellValue) -> None:
        contents = value.contents
        if contents is CellValue.UNSET:
            self.call_const(types.CellType, [])
            return
        self.call_const(types.CellType, [])
        self.remember(self.key(value))
        if isinstance(contents, ClassValue) and self.key(contents) in self.building:
            self.unfilled.setdefault(self.key(contents), []).append(value)
            return
        self.cmd("copy", 1)
        self.load(contents)
        self.cmd("swap", 2)
        self.cmd("store_attr", "cell_contents")

    def fill_cells(self, value: Value) -> None:
        """The class on top of the stack goes into the cells that were made before it was."""
        for cell in self.unfilled.pop(self.key(value), ()):
            self.cmd("copy", 1)
            self.load(cell)
            self.cmd("store_attr", "cell_contents")

    def build_function(self, value: FunctionValue) -> None:
        """A function made while capturing: ``types.FunctionType`` with its cells, defaults and attributes."""
        closure = TupleValue(list(value._closure)) if value._closure else Constant(None)
        defaults = value._defaults or Constant(None)
        self.push_null()
        self.load_const(types.FunctionType)
        self.load_const(value.code)
        self.load_const(value.globals)
        self.load_const(value.code.co_name)
        self.load(defaults)
        self.load(closure)
        self.cmd("call", 5, ())
        self.remember(self.key(value))
        if value._kwdefaults is not None:
            self.attribute_of_top("__kwdefaults__", value._kwdefaults)
        if value.annotations is not None:
            self.attribute_of_top("__annotations__", value.annotations)
        for name, attr in value.attrs.items():
            if attr is not DELETED:
                self.attribute_of_top(name, attr)

    def attribute_of_top(self, name: str, value: Value) -> None:
        self.cmd("copy", 1)
        self.load(value)
        self.cmd("swap", 2)
        self.cmd("store_attr", name)

    def build_object(self, value: ObjectValue, fn: Callable, args: list[Value],
                     fill: tuple[object, list[Value] | None] | None = None) -> None:
        """Push ``fn(*args)``, then its contents through ``fill`` = (C method, elements | None for a dict) and its
        attributes."""
        self.call_const(fn, args)
        self.remember(self.key(value))
        name = self.memo[self.key(value)]
        if fill is not None:
            method, elements = fill
            self.push_null()
            self.load_const(method)
            self.cmd("load_fast", name)
            if elements is None:
                self.build_dict(value)
            else:
                self.build_tuple(elements)
            self.cmd("call", 2, ())
            self.cmd("pop")
        for attr, v in value.attrs.items():
            if v is not DELETED:
                self.push_null()
                self.load_const(_set_dict_entry)
                self.cmd("load_fast", name)
                self.load_const(attr)
                self.load(v)
                self.cmd("call", 3, ())
                self.cmd("pop")

    def run_on_top(self, fn: Callable) -> None:
        """``fn(top of the stack)``, for its effect."""
        self.cmd("copy", 1)
        self.load_const(fn)
        self.cmd("swap", 2)
        self.cmd("call_on_stack", 1)
        self.cmd("pop")

    def replay(self, effects: list[tuple[object, list]]) -> None:
        """Do the logged changes, in order; what one gives that the program has is kept (``fn.gives``)."""
        for fn, args in effects:
            gives = getattr(fn, "gives", None)
            self.call_const(fn if gives is None else fn.fn, args)
            if gives is not None:
                self.remember(self.key(gives))
                self.keep_alive(gives)
            self.cmd("pop")

    def write_back(self, changed: list[tuple[int, TensorHandle]], written: list[TensorHandle], unnoted: list) -> None:
        """Do, before anything else, what the graph leaves undone on changed inputs: write what those with a history
        hold now, ``changed`` being (index of the input, handle on its value) for each, advance the version counters of
        ``written``, which were changed through shared memory, and put back those of ``unnoted``, which were changed by
        way of ``data``."""
        recording = self.session.recording
        body, self.commands = self.commands, []
        for handle in unnoted:
            self.call_const(put_back_version, [recording.tensors[id(handle)]])
            self.cmd("pop")
        for handle in written:
            self.call_const(torch.autograd.graph.increment_version, [recording.tensors[id(handle)]])
            self.cmd("pop")
        for index, handle in changed:
            self.call_const(write_recorded, [recording.inputs[index], recording.tensor_of(handle)])
            self.cmd("pop")
        self.written, self.commands = self.commands, body

    def derivations(self) -> list:
        """The commands that make ``derived``."""
        before, self.commands = self.commands, []
        for recipe in self.derived:
            self.derive(recipe)
            self.cmd("store_fast", f".out{recipe.position}")
        made, self.commands = self.commands, before
        return made

    def derive(self, recipe: Detached | Selected | Shown | Called | OneOfSeveral) -> None:
        """Push a result that is made from others."""
        if type(recipe) is Detached and recipe.how == "data":
            self.cmd("load_fast", f".out{recipe.position}")
            self.load_attr("data")
            return
        self.push_null()
        if type(recipe) is Detached:
            self.load_const(torch.Tensor.detach)
            self.cmd("load_fast", f".out{recipe.position}")
            self.cmd("call", 1, ())
            return
        if type(recipe) is OneOfSeveral:
            self.load_const(torch_private.one_of_several)
            self.cmd("load_fast", f".out{recipe.position}")
            self.cmd("call", 1, ())
            return
        if type(recipe) is Called:
            self.load_const(called)
            self.load_const(recipe.operator)
            self.cmd("load_fast", f".out{recipe.position}")
            self.load_const(recipe.arguments)
            self.load_const(recipe.index)
            self.cmd("call", 4, ())
            return
        if type(recipe) is Shown:
            self.load_const(shown)
            if recipe.member is None:
                self.cmd("load_fast", f".out{recipe.position}")
            else:
                self.load(self.session.recording.tensors[id(recipe.member)])
            for part in (recipe.sizes, recipe.strides, recipe.offset, recipe.recorded):
                self.load_const(part)
            self.cmd("call", 5, ())
            return
        self.load_const(select)
        self.cmd("load_fast", f".out{recipe.source}")
        for part in recipe.index:
            if type(part) is Result:
                self.cmd("load_fast", f".out{part.position}")
            else:
                self.load_const(part)
        self.cmd("build_tuple", len(recipe.index))
        self.load_const(recipe.recorded)
        self.load_const(recipe.view)
        self.cmd("call", 4, ())

    # -- assembling -----------------------------------------------------------------------------------------------

    def check_required(self) -> None:
        """Leave by a call of the original function where the required result is false."""
        self.cmd("load_fast", self.required)
        self.cmd("branch", "POP_JUMP_IF_TRUE", "holds")
        self.push_null()
        self.load_const(native().Unhooked(self.doubt))
        self.cmd("call", 0, ())
        self.cmd("pop")
        self.run_original()
        self.cmd("place", "holds")

    def run_original(self) -> None:
        """Leave the rewritten function; the original one is called in its place, and is the only one of them in
        tracebacks."""
        self.push_null()
        self.load_const(native().TailCall)
        self.load_const(self.original)
        for name in self.argnames:
            self.cmd("load_fast", name)
        self.cmd("call", 1 + len(self.argnames), ())
        self.cmd("return_value")

    def finish(self, plan, plan_inputs: list[Integers | Source], name: str, eager: Callable | None = None,
               repeatable: bool = True) -> Callable:
        """-> the rewritten function. ``plan`` is called with the objects at the sources ``plan_inputs`` and gives the
        tensors of ``outputs``; None when there is no graph. Where the plan raises (an index that is out of range, say)
        ``eager`` is called with the arguments: nothing has been changed yet, and what the program does before and about
        the exception is its own business. Only where the plan had begun to write when it failed, the exception is
        passed on. The same holds for calls that are made after the graph, if running it twice is as running it once
        (``repeatable``)."""
        asm = Assembler(name, self.code.co_filename, self.argnames, first_line=self.code.co_firstlineno)
        body, self.commands = self.commands, []
        asm_globals = self.code_globals or {}
        if self.required is not None:
            self.check_required()
            body, self.commands = self.commands + body, []
        if plan is not None:
            self.push_null()
            self.load_const(plan)
            for source in plan_inputs:
                self.load_plan_input(source)
            self.cmd("call", len(plan_inputs), ())
            if len(self.outputs):
                self.cmd("unpack_sequence", len(self.outputs))
                for i in range(len(self.outputs)):
                    self.cmd("store_fast", f".out{i}")
                for i in self.spent:
                    self.call(spent, lambda: self.cmd("load_fast", f".out{i}"))
                    self.cmd("store_fast", f".out{i}")
                for i, why in self.overwritten:
                    self.call(refuse_backward, lambda: self.cmd("load_fast", f".out{i}"), why)
                    self.cmd("pop")
            else:
                self.cmd("pop")
            self.after_graph = self.written + self.derivations() + self.after_graph
        labels: dict = {}

        def write(commands: list[tuple[str, tuple[object, ...]]]) -> None:
            for command, args in commands:
                if command == "branch":
                    labels[args[1]] = asm.new_label(args[1])
                    asm.emit(args[0], target=labels[args[1]])
                elif command == "defer":
                    args[0](asm)
                elif command == "place":
                    asm.place(labels[args[0]])
                else:
                    getattr(asm, command)(*args)

        write(self.prelude)
        if plan is None or eager is None:
            write(self.commands + self.after_graph + body)
            return function_from(asm.finish(), asm_globals, name)
        failed, other = asm.new_label("failed"), asm.new_label("other")
        with asm.handler(failed):
            write(self.commands + (self.after_graph if repeatable else []))
        write(body if repeatable else self.after_graph + body)
        asm.place(failed)
        asm.load_const(Exception)
        asm.emit("CHECK_EXC_MATCH")
        asm.pop_jump_if_false(other)
        asm.load_const(native().failed)
        asm.swap(2)
        asm.load_const(repeatable)
        asm.call_on_stack(2)
        asm.store_fast(".again")
        with asm.calling():
            asm.load_fast(".again")
            asm.load_const(eager)
            for argument in self.argnames:
                asm.load_fast(argument)
        asm.return_value()
        asm.place(other)
        asm.emit("RERAISE", 0)
        return function_from(asm.finish(), asm_globals, name)
