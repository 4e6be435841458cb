"""Where a value came from: a chain from a root (a local of the frame, or an object known by identity) to the object.

A source says all of itself: how a guard reaches the object again on the next call (``step``: a native accessor, of
which ``runtime/native/guard_accessors.h`` has the table), how emitted bytecode loads it (``load``), and what it is
called in messages (``str``). Sources are interned by equality, so equal chains are one dictionary key. A new kind is a
class here and an entry in that table.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import operator
import types
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ..errors import Unsupported
from ..graph.memory import flat_memory, gradient_of
from ..runtime import native
from ..runtime.array_memory import memory_of
from ..runtime.holding import behind, holding, lightly
from ..runtime.naming import Naming
from ..runtime.names import Importable, Made, Name, Value, calling, rule

if TYPE_CHECKING:
    from .emit import Emitter

_Kind = TypeVar("_Kind", bound="Source")
_UNNAMED = ("__main__", "builtins")  # modules of which a program writes the names alone


@dataclasses.dataclass(frozen=True)
class Source:
    """Base class.

    Attributes:
        base: the source of the object that this one is read from, None for a root.
        fresh: what it gives has been seen to be replaced, so that each call reads it anew.
        stays: what it gives is expected to stay from call to call.
        slot: a program may replace what is there.
        rereadable: a number there may be another one on the next call, and can be loaded again.
        loadable: bytecode can load it without a lookup that runs descriptors.
        guarded: guards can reach it.
        immediate: loading it is no work, so that it is loaded wherever it is used.
        owned: it is always the same object, which the entry keeps alive.
        drawn: it is another random number at each call.
    """

    fresh = slot = rereadable = immediate = owned = drawn = False
    stays = loadable = guarded = True

    @property
    def base(self) -> Source | None:
        return None

    def step(self) -> tuple:
        """The native accessor (kind, payload) from ``base`` to this object."""
        raise NotImplementedError

    def load(self, e: Emitter) -> None:
        """Have the emitter ``e`` push the object (``jit.frame.emit.Emitter``)."""
        raise Unsupported(f"{self} would have to be made again after the graph", kind="rebuild")

    def emit(self, e: Emitter) -> None:
        """Have the emitter push the object, which it reads once."""
        e.load_source(self)

    def chain(self) -> Iterator[Source]:
        """This source, the one that it is read from, and so on to the root."""
        node: Source | None = self
        while node is not None:
            yield node
            node = node.base

    @property
    def root(self) -> Source:
        base = self.base
        if base is None:
            return self
        known = self.__dict__.get("_root")  # not of a root, which would hold itself
        if known is None:
            known = self.__dict__["_root"] = base.root
        return known

    @property
    def watched(self) -> bool:
        """True when the chain starts at an object known by identity, so that no call argument is involved, and what it
        passes is expected to stay."""
        known = self.__dict__.get("_watched")
        if known is None:
            base = self.base
            known = self.__dict__["_watched"] = not self.fresh and self.stays and (
                isinstance(self, (Const, Weak)) if base is None else base.watched)
        return known


def _hashed_once(cls: type[_Kind]) -> type[_Kind]:
    """A class of sources with its hash kept: that of a chain asks all of it, and chains are looked up all the time."""
    compute = cls.__hash__

    def __hash__(self: Source) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = compute(self)
        return known

    cls.__hash__ = __hash__  # type: ignore[assignment]
    return cls


@dataclasses.dataclass(frozen=True)
class Local(Source):
    """An argument of the captured frame: the ``index``-th of its bound parameters."""

    index: int
    name: str

    rereadable = immediate = True

    def step(self) -> tuple[str, int]:
        return ("local", self.index)

    def load(self, e: Emitter) -> None:
        e.cmd("load_fast", e.argnames[self.index])

    def __str__(self) -> str:
        return self.name


class Const(Source):
    """An object known by identity (a function's globals, a bound module). The entry keeps it alive where that harms
    nothing (``holding``), or where it is ``owned``: made while capturing, or the compiled function's own. Else the
    guards fail once it is gone."""

    rereadable = True
    reference: Callable[[], object] | None
    held: Any
    text: str
    number: int

    def __init__(self, obj: object, text: str = "", owned: bool = False, made: bool = False) -> None:
        owned |= made  # while capturing, as each call of the program makes it: nothing of it has to be checked
        reference = native().Weak(obj) if not owned and holding(obj) == "weak" else None
        # Made all the time, and by assignments, which a frozen dataclass checks, it would take twice as long.
        self.__dict__.update(
            reference=reference, held=obj if reference is None else None, owned=owned, made=made,
            number=hash((Const, id(obj))),
            text=text or (obj.__qualname__ if isinstance(obj, (types.FunctionType, type))
                          else f"<{type(obj).__name__}>"))

    @property
    def obj(self) -> Any:
        return self.held if self.reference is None else self.reference()

    @property
    def immediate(self) -> bool:  # type: ignore[override]
        return self.reference is None

    @property
    def is_namespace(self) -> bool:
        """Whether it is the dict of a module's globals, under the module's name."""
        obj = self.obj
        return type(obj) is dict and obj.get("__name__") == self.text

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return type(other) is Const and (other is self or other.number == self.number and other.obj is self.obj)

    def step(self) -> tuple[str, object]:
        return ("const", self.held) if self.reference is None else ("weak", self.reference)

    def load(self, e: Emitter) -> None:
        if self.reference is None:
            e.load_const(self.held)
        else:
            e.call(self.reference)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, eq=False)
class Weak(Source):
    """The target of a weak reference that is known by identity; the guards fail once it is gone."""

    reference: Callable[[], object]

    rereadable = True

    def __hash__(self) -> int:
        return hash((Weak, id(self.reference)))

    def __eq__(self, other: object) -> bool:
        return type(other) is Weak and other.reference is self.reference

    def step(self) -> tuple[str, object]:
        return ("weak", self.reference())

    def load(self, e: Emitter) -> None:
        e.call(self.reference)

    def __str__(self) -> str:
        return "<weakly referenced>"


@rule(Const)
def _name_of_const(naming: Naming, source: Const) -> Name:
    return calling(Const, naming.name(source.obj), Value(source.text), Value(source.owned))


@rule(Weak)
def _name_of_weakly(naming: Naming, source: Weak) -> Name:
    return calling(Weak, Made(Importable("weakref", "ref"), (naming.name(source.reference()),)))


@dataclasses.dataclass(frozen=True)
class _Derived(Source):
    of: Source

    @property
    def base(self) -> Source:
        return self.of


@_hashed_once
@dataclasses.dataclass(frozen=True)
class DictAttr(_Derived):
    """``of.__dict__[name]``: an attribute found in the instance dictionary. ``hidden``: the class makes another thing
    of ``of.name``."""

    name: str
    hidden: bool = False
    fresh: bool = dataclasses.field(default=False, compare=False)

    slot = rereadable = True

    def step(self) -> tuple[str, ...]:
        return ("dict_attr", self.name)

    def load(self, e: Emitter) -> None:
        if self.hidden:
            e.call(entry_of, lambda: e.load_base(self), e.const(self.name))
        else:
            e.load_base(self)
            e.load_attr(self.name)

    def __str__(self) -> str:
        return f"{self.of}.{self.name}"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class GetAttr(_Derived):
    """``getattr(of, name)`` for slots and attributes of C objects."""

    name: str
    fresh: bool = dataclasses.field(default=False, compare=False)

    slot = rereadable = True

    def step(self) -> tuple[str, ...]:
        return ("getattr", self.name)

    def load(self, e: Emitter) -> None:
        e.load_base(self)
        e.load_attr(self.name)

    def __str__(self) -> str:
        return f"{self.of}.{self.name}"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class ThreadAttr(_Derived):
    """``getattr(of, name)`` for what each thread has for itself."""

    name: str

    rereadable, stays = True, False

    step, load, __str__ = GetAttr.step, GetAttr.load, GetAttr.__str__


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Grad(_Derived):
    """``of.grad`` of a tensor: another one after each backward."""

    stays = False

    def step(self) -> tuple[str, None]:
        return ("grad", None)

    def load(self, e: Emitter) -> None:
        tensor = e.session.heap.by_source[self.of]
        if tensor.overrides_functions(e.session):  # it has been asked while capturing
            e.call(gradient_of, lambda: e.load_source_or_const(tensor))
        else:
            e.load_source_or_const(tensor)
            e.load_attr("grad")

    def __str__(self) -> str:
        return f"{self.of}.grad"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class FlatMemory(_Derived):
    """A stretch of the memory of the tensor ``of``: ``count`` elements from ``back`` elements before its first one. No
    guard reads it."""

    back: int
    count: int

    stays = guarded = False

    def load(self, e: Emitter) -> None:
        e.call(flat_memory, lambda: e.load_source_or_const(e.session.heap.by_source[self.of]), e.const(self.back),
               e.const(self.count))

    def __str__(self) -> str:
        return f"the memory of {self.of}"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class ArrayMemory(_Derived):
    """The memory of the NumPy array ``of``, as a tensor."""

    stays = False

    def step(self) -> tuple[str, Callable]:
        return ("array_memory", memory_of)

    def load(self, e: Emitter) -> None:
        e.call(memory_of, lambda: e.load_source_or_const(e.session.heap.by_source[self.of]))

    def __str__(self) -> str:
        return f"torch.from_numpy({self.of})"


def dict_behind(proxy: types.MappingProxyType) -> dict:
    """The dict that a read-only view shows. Raises TypeError where it shows another mapping."""
    (found,) = gc.get_referents(proxy)
    if not isinstance(found, dict):
        raise TypeError(f"a view of {type(found).__name__}")
    return found


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Behind(_Derived):
    """The dict that the read-only view ``of`` shows, read at each call."""

    def step(self) -> tuple[str, Callable]:
        return ("array_memory", dict_behind)

    def load(self, e: Emitter) -> None:
        e.call(dict_behind, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"the dict behind {self.of}"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Draws(_Derived):
    """All random numbers that a capture draws from the generator ``of``, see ``values.drawn``."""

    stays = guarded = False

    def load(self, e: Emitter) -> None:
        generator = e.session.heap.by_source[self.of]
        e.call(generator.draws, lambda: e.load_source_or_const(generator), e.const(generator.program))

    def __str__(self) -> str:
        return f"what {self.of} draws"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Drawn(_Derived):
    """One of them."""

    index: int

    stays = guarded = False
    drawn = True

    def load(self, e: Emitter) -> None:
        e.call(operator.getitem, lambda: e.load_source(self.of), e.const(self.index))

    def __str__(self) -> str:
        return f"{self.of}[{self.index}]"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Computed(_Derived):
    """What ``maker(*arguments)``, a function of the object at ``of``, gives: numbers that are read before the graph
    runs, see ``values.first_reads``."""

    maker: Callable
    arguments: tuple

    stays = False
    rereadable = True

    def read(self) -> Callable:
        return _computing(self.maker, self.arguments)

    def step(self) -> tuple[str, Callable]:
        return ("array_memory", self.read())

    def load(self, e: Emitter) -> None:
        e.call(self.read(), lambda: e.load_source_or_const(e.session.heap.by_source[self.of]))

    def __str__(self) -> str:
        return f"a number read off {self.of}"


@functools.lru_cache(1024)
def _computing(maker: Callable, arguments: tuple) -> Callable:
    return maker(*arguments)


@_hashed_once
@dataclasses.dataclass(frozen=True)
class TypeAttr(_Derived):
    """What a lookup of ``name`` along the MRO of ``type(of)`` gives, unbound."""

    name: str

    loadable = False

    def step(self) -> tuple:
        return ("type_attr", self.name)

    def __str__(self) -> str:
        return f"type({self.of}).{self.name}"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class ClassAttr(_Derived):
    """What a lookup of ``name`` along the MRO of the class ``of`` gives, unbound."""

    name: str
    fresh: bool = dataclasses.field(default=False, compare=False)

    slot = rereadable = True

    def step(self) -> tuple[str, ...]:
        return ("class_attr", self.name)

    def load(self, e: Emitter) -> None:
        e.call(class_entry, lambda: e.load_source(self.of), e.const(self.name))

    def __str__(self) -> str:
        return f"{self.of}.{self.name}"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class TypeOf(_Derived):
    """``type(of)``."""

    def step(self) -> tuple:
        return ("type", None)

    def load(self, e: Emitter) -> None:
        e.call(type, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"type({self.of})"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Mro(_Derived):
    """``of.__mro__`` of a class, whatever its metaclass makes of the name."""

    def step(self) -> tuple[str, None]:
        return ("mro", None)

    def load(self, e: Emitter) -> None:
        e.call(type.__dict__["__mro__"].__get__, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"{self.of}.__mro__"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class CacheLink(_Derived):
    """What ``of``, an element of a bounded ``functools.lru_cache``, holds."""

    def step(self) -> tuple[str, None]:
        return ("cache_link", None)

    def load(self, e: Emitter) -> None:
        e.call(native().cache_link_result, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"result({self.of})"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class IteratorState(_Derived):
    """What an iterator of a builtin type reduces to, as one tuple: its arguments and its position (see
    ``state_of``)."""

    def step(self) -> tuple[str, None]:
        return ("iterator_state", None)

    def load(self, e: Emitter) -> None:
        e.call(state_of, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"state({self.of})"


class _Unset:
    def __repr__(self) -> str:
        return "nothing"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class ContextValue(_Derived):
    """What the ContextVar ``of`` holds in the context of the call, whatever its default; ``UNSET`` where it was not
    set."""

    UNSET = _Unset()
    fresh = True

    def step(self) -> tuple[str, _Unset]:
        return ("context_value", self.UNSET)

    def load(self, e: Emitter) -> None:
        e.call(ContextVar.get, lambda: e.load_source(self.of), e.const(self.UNSET))

    def __str__(self) -> str:
        return f"{self.of}.get()"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Returned(_Derived):
    """``of()`` of a function that only answers a question about the state of the process."""

    fresh = True

    def step(self) -> tuple:
        return ("returned", None)

    def load(self, e: Emitter) -> None:
        e.load_source(self.of)
        e.cmd("call", 0, ())

    def __str__(self) -> str:
        return f"{self.of}()"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class GeneratorState(_Derived):
    """``native().generator_state(of)``: code, globals, position, handled exception, variables and stack of a suspended
    generator."""

    rereadable = True

    def step(self) -> tuple[str, None]:
        return ("generator_state", None)

    def load(self, e: Emitter) -> None:
        e.call(native().generator_state, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"state({self.of})"


_CONTAINERS = (list, tuple, set, frozenset, collections.OrderedDict, dict, collections.deque)


def raw_elements(container: Any) -> list:
    """What a builtin container or an instance of a subclass holds, in order; the keys of a dict. Never runs the
    subclass's own code."""
    return list(_builtin_base(container).__iter__(container))


def raw_subscript(container: Any) -> Any:
    """The builtin's ``__getitem__`` for a container whose class has its own, else None."""
    base = _builtin_base(container)
    return None if type(container).__getitem__ is base.__getitem__ else base.__getitem__


def _builtin_base(container: object) -> Any:
    return next(base for base in _CONTAINERS if isinstance(container, base))


def entry_of(obj: object, name: str) -> Any:
    """The entry of an object's ``__dict__``, whatever its class makes of the attribute."""
    return object.__getattribute__(obj, "__dict__")[name]


def class_entry(cls: type, name: str) -> Any:
    """What the MRO of a class has under a name, whatever a lookup on the class makes of it."""
    return next(c.__dict__[name] for c in cls.__mro__ if name in c.__dict__)


def state_of(iterator: Any) -> tuple:
    """The arguments and the position that ``iterator.__reduce__`` gives."""
    reduced = iterator.__reduce__()
    return reduced[1] + reduced[2:]


@_hashed_once
@dataclasses.dataclass(frozen=True)
class InstanceDict(_Derived):
    """``of.__dict__``."""

    rereadable = True

    def step(self) -> tuple[str, None]:
        return ("dict", None)

    def load(self, e: Emitter) -> None:
        e.load_source(self.of)
        e.load_attr("__dict__")

    def __str__(self) -> str:
        return f"{self.of}.__dict__"


def _told_by(key: object) -> object:
    """What two keys of one type have in common that are the same: a tuple of names is made anew at each call."""
    if type(key) is tuple:
        return tuple([(type(part), _told_by(part)) for part in key])
    return key if isinstance(key, (str, int, bytes, type(None))) else id(key)


@dataclasses.dataclass(frozen=True, eq=False)
class Item(_Derived):
    """What a dict, list or tuple holds at a key or index, which is a plain constant (or an object known by identity).
    ``subscript``: the builtin's, where the class has its own; it is read past that."""

    key: Any  # what ``lightly`` makes of it
    subscript: object = None
    fresh: bool = False

    slot = rereadable = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", lightly(self.key))
        object.__setattr__(self, "number", hash(self._id()))  # which it keeps when the object is gone

    def real_key(self) -> Any:
        return behind(self.key)

    def _id(self) -> tuple:
        key = self.real_key()
        return (self.of, type(key), _told_by(key))

    def __hash__(self) -> int:
        return self.number  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return type(other) is Item and (other is self or other.number == self.number  # type: ignore[attr-defined]
                                        and self._id() == other._id())

    def step(self) -> tuple[str, object]:
        return ("item", self.key)

    def load(self, e: Emitter) -> None:
        if self.subscript is not None:
            e.call(self.subscript, lambda: e.load_base(self), lambda: self.load_key(e))
        else:
            e.load_base(self)
            self.load_key(e)
            e.cmd("subscript")

    def load_key(self, e: Emitter) -> None:
        """Have the emitter push the key."""
        e.load_source(Const(self.key())) if type(self.key) is native().Weak else e.load_const(self.key)

    def __str__(self) -> str:
        key = self.real_key()
        if type(self.of) is Const and self.of.is_namespace and isinstance(key, str) and key.isidentifier():
            return key if self.of.text in _UNNAMED else f"{self.of.text}.{key}"
        key = (repr(key) if isinstance(key, (str, int, float, bytes, tuple, type(None)))
               else f"{type(key).__name__} at {id(key):#x}")
        return f"{self.of}[{key}]"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class CellContents(_Derived):
    """The contents of a cell."""

    fresh: bool = dataclasses.field(default=False, compare=False)

    slot = rereadable = True

    def step(self) -> tuple[str, None]:
        return ("cell", None)

    def load(self, e: Emitter) -> None:
        e.load_source(self.of)
        e.load_attr("cell_contents")

    def __str__(self) -> str:
        return f"{self.of}.cell_contents"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class ClosureCell(_Derived):
    """``of.__closure__[index]``, the cell itself."""

    index: int

    rereadable = True

    def step(self) -> tuple[str, int]:
        return ("closure", self.index)

    def load(self, e: Emitter) -> None:
        e.load_source(self.of)
        e.load_attr("__closure__")
        e.load_const(self.index)
        e.cmd("subscript")

    def __str__(self) -> str:
        return f"{self.of}.__closure__[{self.index}]"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class Length(_Derived):
    """``len(of)`` of a builtin container."""

    def step(self) -> tuple[str, None]:
        return ("length", None)

    def load(self, e: Emitter) -> None:
        e.call(len, lambda: e.load_source(self.of))

    def __str__(self) -> str:
        return f"len({self.of})"


@_hashed_once
@dataclasses.dataclass(frozen=True)
class FunctionField(_Derived):
    """A field of a Python function: ``code``, ``defaults``, ``kwdefaults`` or ``dict``."""

    field: str

    def step(self) -> tuple[str, ...]:
        return ("function", self.field)

    def load(self, e: Emitter) -> None:
        e.load_source(self.of)
        e.load_attr(f"__{self.field}__")

    def __str__(self) -> str:
        return f"{self.of}.__{self.field}__"


def step_of(source: Source) -> Callable[[Source], Source]:
    """What makes the same step from another object, of a source that is read from one (``_Derived``)."""
    cls: Any = type(source)
    fields = [getattr(source, field.name) for field in dataclasses.fields(source)[1:]]  # the first one is ``of``
    return lambda base: cls(base, *fields)


def changeable(source: Source | None) -> bool:
    """Whether a number at this source may be another one on the next call and can be loaded again: it is an argument,
    an attribute, an item, what a cell holds, or computed from what may be another object."""
    for step in source.chain() if source is not None else ():
        if not step.rereadable or type(step) is Computed:
            return step.rereadable
    return source is not None


def loadable(source: Source) -> bool:
    """Whether bytecode can load the object without a descriptor lookup."""
    return all(step.loadable for step in source.chain())
