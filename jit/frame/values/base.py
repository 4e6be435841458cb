"""The protocol that every symbolic value answers, and the two signals that leave an operation early.

A value stands for a Python object during symbolic execution. Operations take the ``Session`` as ``s``: they record
guards for the facts they use, effects for what they change, and raise ``Raised`` for an exception of the program or
``Unsupported`` for a step that is not captured. The defaults here are those of a value that supports nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Unsupported

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session
    from ..source import Source

# Where a type object keeps its name: after the head of a variable-size object.
_TP_NAME = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)


HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE
TUPLE_ITERATOR = type(iter(()))


def is_made_by_program(cls: type) -> bool:
    """Whether a class was made by a class statement: it has all the slots of a sequence. Since 3.12 classes of modules
    written in C, such as ``deque``, are heap types too, but immutable ones."""
    return cls.__flags__ & (HEAP_TYPE | IMMUTABLE_TYPE) == HEAP_TYPE


def type_name(cls: type) -> str:
    """The name of a type in CPython's own errors (``tp_name``): that of one implemented in C may come with its
    module."""
    return ctypes.c_char_p.from_address(id(cls) + _TP_NAME).value.decode()  # type: ignore[union-attr]


_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # between those of a class's name


class Raised(Exception):
    """An exception of the captured program on its way to a handler. ``value`` is the exception's symbolic value."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


_births = itertools.count()


def births() -> int:
    """A number that is greater than ``born`` of all values so far, and less than that of later ones."""
    return next(_births)


class Value:
    """Base of all symbolic values. ``source`` says where it came from; None for a value made while capturing."""

    source: Source | None = None
    quiet = False  # of an iterator: going on does nothing else
    is_plain = False  # a constant with which Python itself computes
    is_data = True  # what a class attribute may be set to: no object of the program's own, and no code
    is_set = is_mapping = False  # what operators of sets, and of dicts, take
    handled: Value | None = None  # of what PUSH_EXC_INFO has left on a stack: the exception handled from there on
    is_numeric = False  # a number or a tensor: what PyTorch's operators take beside a tensor
    is_tensor = False
    is_read = False  # a number that is read off a tensor after the graph has run
    is_array = False  # a NumPy array, or a NumPy scalar that is computed
    is_spread = False  # a tensor of which processes have parts: see ``dtensors``
    symbolic: type | None = None  # of a number that changes between calls: int or float
    can_wait = False  # as an argument of a call that is made after the graph has run, it is what it was
    is_none = False  # not yet a fact of a value from outside
    builtin: type | None = None  # of a container: the type that its class is, or is derived from
    is_sequence = is_slice = is_cell = False  # a sequence: a list, tuple, deque or bytearray
    is_leaf = False  # what ``is_leaf`` says of the object: a Constant
    is_object = False  # what answers as its class says, which is known
    as_class: type | None = None  # of a class: what it is
    fills_cells = False  # cells that it is in may be made before it: where it is made, ``Emitter.fill_cells`` is called
    is_function = False  # a function in Python
    is_code = False  # a function, class or module, of which globals and caches ask which one it is
    dispatches = False  # of a tensor: whether its class has a ``__torch_dispatch__``
    init_args: tuple = ()  # of an exception that is made while capturing
    result: Value | None = None  # of an iterator at its end: what StopIteration comes with
    born: int  # a number that later ones exceed

    def __new__(cls, *args: Any, **kwargs: Any) -> Value:
        self = object.__new__(cls)
        self.born = next(_births)
        return self

    def pytype(self, s: Session) -> type:
        """The exact Python type, guarded if the value came from outside."""
        raise Unsupported(f"type of {self!r}", kind="internal")

    def is_const(self) -> bool:
        """True if ``const`` can give a Python object without tensors or mutable parts."""
        return False

    def const(self, s: Session) -> Any:
        """The Python object itself, guarded to be equal on later calls."""
        raise Unsupported(f"{self.describe()} is needed as a plain Python value", kind="not-constant")

    def getattr(self, s: Session, name: str) -> Value:
        raise Unsupported(f"attribute {name!r} of {self.describe()} is read", kind="attribute")

    def is_exception(self, cls: type) -> bool:
        """Whether it is an exception of a class."""
        return False

    def real(self, s: Session) -> object:
        """The object itself, which becomes a fact, where it may stand for a class or a type; None for all else."""
        return None

    def setattr(self, s: Session, name: str, value: Value) -> None:
        raise Unsupported(f"attribute {name!r} of {self.describe()} is set", kind="attribute")

    def delattr(self, s: Session, name: str) -> None:
        raise Unsupported(f"attribute {name!r} of {self.describe()} is deleted", kind="attribute")

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported(f"call of {self.describe()}", kind="call")

    def call_method(self, s: Session, name: str, args: Sequence[Value] = (),
                    kwargs: dict[str, Value] | None = None) -> Value:
        return self.getattr(s, name).call(s, list(args), dict(kwargs or {}))

    def getitem(self, s: Session, key: Value) -> Value:
        return self.call_special(s, "__getitem__", [key])

    def setitem(self, s: Session, key: Value, value: Value) -> None:
        self.call_special(s, "__setitem__", [key, value])

    def delitem(self, s: Session, key: Value) -> None:
        cls = self.pytype(s)
        if not lookup(cls, "__delitem__")[0]:
            if type(lookup(cls, "__setitem__")[1]) is types.FunctionType:  # one slot serves both
                raise Raised(s.exception(AttributeError("__delitem__")))
            as_sequence = cls.__flags__ & HEAP_TYPE or lookup(cls, "__len__")[0]
            verb = "doesn't" if as_sequence and key.has_index(s) else "does not"
            raise Raised(s.exception(TypeError(f"'{type_name(cls)}' object {verb} support item deletion")))
        self.call_special(s, "__delitem__", [key])

    def iter(self, s: Session) -> Value:
        """An iterator over the value; every iterator value has ``next(s)`` giving a value, or None when it is
        exhausted."""
        raise Unsupported(f"iteration over {self.describe()}", kind="iterate")

    def next(self, s: Session) -> Value | None:
        raise Unsupported(f"next() of {self.describe()}", kind="iterate")

    def backwards(self, s: Session) -> Value:
        """``reversed(self)``."""
        cls = self.pytype(s)
        if not (lookup(cls, "__reversed__")[0] or lookup(cls, "__getitem__")[0]):
            raise Raised(s.exception(TypeError(f"'{type_name(cls)}' object is not reversible")))
        raise Unsupported(f"reversed() of {self.describe()}", kind="iterate")

    def length(self, s: Session) -> IntExpr:
        """``len`` as an int or a Dim."""
        cls = self.pytype(s)
        if not lookup(cls, "__len__")[0]:
            raise Raised(s.exception(TypeError(special_error(cls, "__len__"))))
        raise Unsupported(f"len() of {self.describe()}", kind="special-method")

    def truth(self, s: Session) -> bool:
        return True

    def asked_truth(self, s: Session) -> Value:
        """What stands for its truth where a mode or a class of the program's is asked for that; else itself."""
        return self

    # -- what a ``yield from`` or an ``await`` goes through

    def awaited(self, s: Session) -> Value | None:
        """The iterator that ``await self`` sends to, where no ``__await__`` is asked for it."""
        return None

    def is_nothing(self, s: Session) -> bool:
        """``self is None``, which is a fact of a value from outside."""
        if self.source is not None:
            self.pytype(s)
        return self.is_none

    def send(self, s: Session, sent: Value) -> tuple[Value | None, Value]:
        """``self.send(sent)``, or ``next(self)`` for None -> (what comes, anything), or (None, result) at the end."""
        try:
            if sent.is_nothing(s):
                return self.call_special(s, "__next__", []), sent
            return self.call_method(s, "send", [sent]), sent
        except Raised as raised:
            if not s.is_exception(raised.value, StopIteration):
                raise
            return None, next(iter(raised.value.init_args), s.from_python(None))

    def throw_into(self, s: Session, error: Value) -> Value:
        """``self.throw(error)``; without ``throw`` the exception is raised where it is delegated from."""
        if not self.has_method(s, "throw"):
            raise Raised(error)
        return self.call_method(s, "throw", [error])

    def close_delegate(self, s: Session) -> None:
        """A GeneratorExit closes it, and is then raised where it is delegated from."""
        if self.has_method(s, "close"):
            self.call_method(s, "close", [])

    def has_method(self, s: Session, name: str) -> bool:
        try:
            self.getattr(s, name)
        except Raised as raised:
            if s.is_exception(raised.value, AttributeError):
                return False
            raise
        return True

    def is_callable(self, s: Session) -> bool:
        return lookup(self.pytype(s), "__call__")[0]

    def contains(self, s: Session, item: Value) -> bool | None:
        """``item in self``; None where only a walk over the elements tells."""
        return None

    # -- slots of operators, which ``protocols.py`` calls; None is NotImplemented

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        """``a op b``, as the type of this one of the two operands computes it."""
        return s.fold(op.fn, [a, b], {}) if a.is_plain and b.is_plain else None

    def by_class(self, s: Session, method: str) -> bool:
        """Whether a subclass of a container has a special method of its own, in Python, in the container's place."""
        return False

    def inplace(self, s: Session, op: Binary, other: Value) -> Value | None:
        """``self op= other`` by a method of its own."""
        return None

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        """``self + other`` of a sequence."""
        return None

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        """``self * times`` of a sequence."""
        return None

    def unary(self, s: Session, op: Unary) -> Value | None:
        """None: it is left to Python, with a constant."""
        return None

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        """``self op other``."""
        return s.method_of_constants(op.method, self, other) if self.is_plain and other.is_plain else None

    def overrides(self, s: Session, method: str, left: Value) -> bool:
        """Whether, as the right operand, it is of a subclass of the left one's class with a method of its own."""
        return False

    def derives(self, s: Session, other: Value) -> bool:
        """Whether its class is a proper subclass of the other's."""
        return False

    # -- conversions, of which builtin functions are made: what Python itself does with a constant

    def truth_value(self, s: Session) -> Value:
        """``bool(self)``, which a branch does not need yet."""
        return s.from_python(self.truth(s))

    def to_int(self, s: Session) -> Value:
        return s.fold(int, [self], {})

    def to_float(self, s: Session) -> Value:
        return s.fold(float, [self], {})

    def absolute(self, s: Session) -> Value:
        return s.fold(abs, [self], {})

    def rounded(self, s: Session, digits: list[Value]) -> Value:
        """``round(self, *digits)``."""
        return s.fold(round, [self, *digits], {})

    def integral(self, s: Session, fn: Callable) -> Value:
        """``math.floor``, ``ceil`` or ``trunc``, ``fn``."""
        return s.fold(fn, [self], {})

    def hashed(self, s: Session) -> Value:
        """``hash(self)``."""
        return s.fold(hash, [self], {})

    def text(self, s: Session, method: str) -> Value:
        """``str`` or ``repr`` by the name of the method."""
        if self.is_const():
            return s.fold(str if method == "__str__" else repr, [self], {})
        raise Unsupported(f"{self.describe()} is turned into text", kind="format")

    def text_parts(self, s: Session) -> tuple[Sequence, Sequence[Value]]:
        """Of a text: what it is made of, as ``TensorText`` has it."""
        return (self.const(s),), ()

    def behind(self, s: Session, text: Value) -> Value | None:
        """``text + self`` where this is a text that is not known; None for all else."""
        return None

    def escaped(self, s: Session) -> Value:
        """What ``ascii`` makes of a text."""
        return s.from_python(self.const(s).encode("ascii", "backslashreplace").decode())

    def formatted(self, s: Session, spec: Value) -> Value:
        """``format(self, spec)``."""
        if not spec.const(s):
            return self.text(s, "__str__")
        if self.is_const():
            return s.fold(format, [self, spec], {})
        raise Unsupported(f"{self.describe()} is formatted", kind="format")

    def attribute_names(self, s: Session) -> Value:
        """``dir(self)``."""
        raise Unsupported("dir() of an object is called", kind="attribute")

    # -- numbers

    def at_hand(self, s: Session) -> Any:
        """The number that it is in this call, as an operand of a symbolic float; None where it cannot be one."""
        return None

    def has_index(self, s: Session) -> bool:
        """Whether it can be the index of a sequence: it has ``__index__``."""
        if issubclass(self.pytype(s), int):
            raise Unsupported("an index is read from a tensor", "index with an int", kind="data-dependent-value")
        return False

    def index(self, s: Session) -> int:
        """The value as an exact int (``operator.index``)."""
        number = self.const(s)
        try:
            return number.__index__()
        except AttributeError:
            raise Raised(s.exception(TypeError(
                f"'{type_name(type(number))}' object cannot be interpreted as an integer"))) from None

    def exact_int(self) -> None:
        """The int or Dim that it is, or None."""
        return None

    def extreme(self, s: Session, fn: Callable, a: Value, b: Value) -> Value | None:
        """``max(a, b)`` or ``min(a, b)``, of which this is one, without a look at which of them it is; None where that
        cannot be."""
        return None

    def told_apart(self, s: Session, other: Value) -> None:
        """Guard what it takes that ``self is other`` is false on later calls too."""

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        """Call a special method, looked up on the type."""
        raise Unsupported(f"{name} of {self.describe()}", kind="special-method")

    def special(self, s: Session, name: str) -> Value:
        """A special method that its type has, bound to it."""
        return self.getattr(s, name)

    def bound_builtin(self, s: Session, raw: object) -> Value:
        """A method that is implemented in C, by its descriptor."""
        raise Unsupported(f"a method of {self.describe()} through super()", kind="super")

    def slot(self, s: Session, raw: object, name: str) -> Value:
        """What is in a slot, a member of its C structure."""
        raise Unsupported(f"attribute {name!r} of {self.describe()} is read through super()", kind="super")

    getset = slot  # what a property in C gives

    def has_slot(self, s: Session, name: str) -> bool:
        """Whether its class has a special method, or has it set to None."""
        return s.class_lookup(self.pytype(s), name)[0]

    def has_special(self, s: Session, name: str) -> bool:
        found, raw, owner = s.class_lookup(self.pytype(s), name)
        return found and raw is not None

    def items_list(self, s: Session) -> list[Value]:
        """All elements in iteration order, as a Python list."""
        return [element for chunk in self.chunks(s) for element in chunk]

    def chunks(self, s: Session) -> Iterator[list[Value]]:
        """The elements in iteration order, in lists between which the iterator may do other things: of one, or of all
        for a ``quiet`` one."""
        yield from through(s, self.iter(s))

    def listed(self, s: Session) -> list[Value]:
        """All elements as ``list``, ``tuple`` and what is made of them take them: a length is asked for first, to
        reserve memory."""
        return [element for chunk in self.listed_chunks(s) for element in chunk]

    def listed_chunks(self, s: Session) -> Iterator[list[Value]]:
        if not self.tells_length(s):
            yield from self.chunks(s)
            return
        it = self.iter(s)
        self.tell_length(s)
        yield from through(s, it)

    def tells_length(self, s: Session) -> bool:
        """Whether code of the program's runs when Python asks how long the object may be."""
        return False

    def tell_length(self, s: Session) -> None:
        """Have that code run."""

    def reads_caller(self, count: int | None) -> bool:
        """Whether a call with so many arguments (None: not known) looks into the frame that makes it."""
        return False

    def left_inside_block(self) -> bool:
        """Whether code of the program runs when Python lets go of the object: see ``GeneratorValue``."""
        return False

    may_run_on = left_inside_block

    def identity(self) -> tuple[str, int]:
        """What ``is`` compares: two values are the same object iff these are equal and not None."""
        return ("value", id(self))

    def memo_key(self) -> tuple:
        """Under which the emitter finds the object again that it has made."""
        return self.identity()

    @property
    def stands_for_itself(self) -> bool:
        """Whether, as a key, it is an object from outside, and equal to no other one."""
        return False

    def hash_key(self, s: Session) -> Any:
        """A hashable Python object standing for the value as a dict key or set element."""
        raise Unsupported(f"{self.describe()} is used as a dict key or set element", kind="unhashable")

    def instance_key(self, s: Session) -> tuple | tuple[str, int]:
        """What stands for this very object in keys, as in that of a bound method: equal to another's iff ``is`` holds,
        whatever its class hashes."""
        obj = getattr(self, "obj", None)
        if obj is None:
            return ("new", id(self), self)
        if self.source is not None:
            s.guards.pin(self.source, obj)
        return ("object", id(obj))

    def several(self, s: Session) -> list[Value]:
        """The elements of a tuple, or this alone."""
        return [self]

    def nested(self, s: Session) -> list[Value] | None:
        """The values that it is made of as an argument of a tensor operation: of a list, a tuple or a slice."""
        return None

    def overrides_functions(self, s: Session) -> bool:
        """Whether PyTorch asks its class about calls, by ``__torch_function__``."""
        return False

    def holds_tensor(self) -> bool:
        """Whether it is a tensor, or has one among its elements."""
        return self.is_tensor

    def with_nested(self, values: list[Value]) -> Value:
        """The same of other values."""
        raise NotImplementedError

    def probed(self, s: Session) -> Any:
        """The value as an argument of a shape probe."""
        return self.const(s)

    def lower(self, s: Session) -> Any:
        """The value as an argument of a tensor operation: what the tracer takes."""
        if self.is_const():
            return self.const(s)
        raise Unsupported(f"a torch function is given {self.describe()}", kind="torch-argument")

    def emit(self, e: Emitter) -> None:
        """Emit bytecode that pushes the object (see ``jit.frame.emit``)."""
        raise Unsupported(f"{self.describe()} would have to be made again after the graph", kind="rebuild")

    def steps(self) -> tuple[str, list[tuple]] | None:
        """How emitted bytecode makes an object that contains itself: the command for an empty one, and calls
        (function, values) that fill it; None where that is not possible."""
        return None

    def describe(self) -> str:
        """The value in words for messages: here those of its class's name, as "a list iterator" of a ListIterator."""
        words = _WORDS.sub(" ", type(self).__name__.removesuffix("Value").removesuffix("Object")).lower()
        article = "an" if words[:1] in "aeiou" else "a"
        return f"{article} {words}" + (f" ({self.source})" if self.source is not None else "")

    def __repr__(self) -> str:
        return self.describe()


def lookup(cls: type, name: str) -> tuple[bool, object, type | None]:
    """-> (found, raw attribute, owner class) along the MRO, without calling descriptors."""
    for c in cls.__mro__:
        if name in c.__dict__:
            return True, c.__dict__[name], c
    return False, None, None


def is_sequence(cls: type) -> bool:
    """``PySequence_Check``: whether it has ``__getitem__``, and that is not a mapping's alone."""
    return lookup(cls, "__getitem__")[0] and (is_made_by_program(cls) or lookup(cls, "__len__")[0])


def special_error(cls: type, name: str) -> str:
    """The text of Python's TypeError when a type lacks a special method."""
    text = {"__getitem__": "object is not subscriptable", "__setitem__": "object does not support item assignment",
            "__delitem__": "object doesn't support item deletion", "__len__": "has no len()",
            "__next__": "object is not an iterator"}
    if name == "__abs__":
        return f"bad operand type for abs(): '{type_name(cls)}'"
    if name == "__round__":
        return f"type {type_name(cls)} doesn't define __round__ method"
    if name == "__len__":
        return f"object of type '{type_name(cls)}' has no len()"
    return f"'{type_name(cls)}' {text.get(name, 'object has no ' + name)}"


def through(s: Session, it: Value) -> Iterator[list[Value]]:
    """What is left of an iterator, as ``chunks`` gives it."""
    quiet, count = [], 0
    while (element := it.next(s)) is not None:
        if it.quiet:
            quiet.append(element)
        else:
            yield [element]
        count += 1
        if count > 100_000:
            raise Unsupported("an iterator of more than 100000 elements is unrolled", kind="long-loop")
    if quiet:
        yield quiet
