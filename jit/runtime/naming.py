"""Finding the names of objects (``names``): a ``Naming`` knows what an entry holds, and names it by what leads to
it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

import torch

from jit import torch_private, turns
from jit.by_class import by_class
from jit.runtime.extension import native
from jit.runtime.holding import behind, holding
from jit.runtime.names import (
    Given, Importable, Made, Name, Postponed, Reached, Unnameable, Value, calling, code_at, dict_of, digest,
    frozenset_of, full_name, importable, leads, list_of, operator_of, partial_of, rules, tuple_of)

_EXACT = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range,
          torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
# Of which equal ones of one type are the same constant.
_SHARED = (str, int, bool, type(None), torch.dtype, torch.device)
_IN_ORDER: dict[type, Callable] = {tuple: tuple_of, list: list_of, frozenset: frozenset_of}
_DESCRIPTORS = (classmethod, staticmethod, property, functools.cached_property)
# Where to look for what does not say where it is, such as the type of functions.
_HOMES = ("builtins", "types", "sys", "_collections_abc", "torch", "torch.nn.functional", "torch._C")
_WHAT_THEY_ARE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, tuple, frozenset)
_CODE_OF_RESUMED = ("_jit_resumed", "_jit_stands_for")  # attributes of functions that go on after a break
# Accessors whose result is made anew by each of them.
_MADE_ANEW = ("returned", "iterator_state", "generator_state", "context_value", "length")


class Naming:
    """How the objects of one entry are named.

    Args:
        given: what names may start from, see ``Given``.
        programs: guard programs, whose accessors lead to objects.
    """

    def __init__(self, given: Mapping[str, object] = types.MappingProxyType({}), programs: Iterable[Any] = ()) -> None:
        self.given = given
        # What paths lead to. A path that a guard program knows is made a name when somebody asks (``way``).
        self.known: dict[int, tuple[object, Name | tuple[Learned, int]]] = {}
        self.codes: dict[int, tuple[object, Name]] = {}  # of named functions, with the code objects inside them
        self.named_before: dict[int, tuple[object, Name]] | None = None
        self.places: dict[int, Name] = {}  # address of an object that is known by its place alone -> a path to it
        self.reasons: dict[int, tuple[Name, str]] = {}
        self.constants: dict[tuple[type, object], Value] = {}
        self.made: dict[tuple, tuple[Name, tuple[Name, ...]]] = {}  # what is made of which names -> its own, and those
        self.looked_in: dict[str, dict[int, tuple[object, Name]]] = {}  # a home -> what it has
        self.classes: dict[int, type] = {}  # those that are known by what they say of themselves
        self.more: dict[type, Callable | None] = {}  # class -> what its objects lead to besides (``_WITH_MORE``)
        self.of_fields: dict[type, bool] = {}  # see ``by_fields``
        self.starts: dict[int, Name] = {}
        for what, obj in given.items():
            self.starts.setdefault(id(obj), Given(what))
        self.of_native = {id(value): key for key, value in reversed(vars(native()).items())}
        for what, obj in given.items():
            self.know(obj, Given(what))
        for _ in range(2):  # the root of one path may be what another leads to
            for program in programs:
                self.learn(program)
        self.named_before = {}  # from here on one object has one name

    def know(self, obj: Any, name: Name | tuple[Learned, int]) -> None:
        """A path leads to an object."""
        cls = type(obj)
        if cls in _EXACT or id(obj) in self.known:
            return
        self.known[id(obj)] = obj, name
        if id(cls) not in self.classes and id(cls) not in self.known:
            if _imported(self, cls) is None:
                self.know(cls, then(_told(name), ("type", Value(None))))
            else:
                self.classes[id(cls)] = cls
        for way in leads.get(cls, ()):
            try:
                self.know(way(obj), calling(way, _told(name)))
            except (LookupError, StopIteration):
                pass
        if cls not in self.more:
            self.more[cls] = by_class(_WITH_MORE, obj)
        know_more = self.more[cls]
        if know_more is not None:
            know_more(self, obj, _told(name))

    def way(self, obj: object) -> Name | None:
        """A path that leads to an object."""
        return self.located_on_path(id(obj))

    def located_on_path(self, address: int) -> Name | None:
        found = self.known.get(address)
        return None if found is None else _told(found[1])

    def know_function(self, function: types.FunctionType, name: Name) -> None:
        name = self.name(function)
        self.know_code(function.__code__, then(name, ("function", Value("code"))))
        self.know(function.__globals__, then(name, ("getattr", Value("__globals__"))))
        for k, cell in enumerate(function.__closure__ or ()):
            self.know(cell, then(name, ("closure", Value(k))))
        for key in _CODE_OF_RESUMED:
            if key in function.__dict__:
                self.know_code(function.__dict__[key], then(name, ("getattr", Value(key))))

    def know_code(self, code: types.CodeType, name: Name) -> None:
        if id(code) not in self.codes:
            self.codes[id(code)] = code, name
            for k, constant in enumerate(code.co_consts):
                if isinstance(constant, types.CodeType):
                    self.know_code(constant, then(name, ("getattr", Value("co_consts")), ("item", Value(k))))

    def learn(self, program: Any) -> None:
        """What the accessors of a guard program lead to."""
        learned = Learned()
        from_arguments: list[Name | None] = []
        for k, (parent, kind, *rest) in enumerate(program.accessors):
            turns.point()
            step: tuple[int, str, Name] | Name | None = None
            from_argument: Name | None = None
            kind = kind.removeprefix("fresh_")
            payload: Any = rest[0] if rest else None
            if parent < 0:
                if kind == "local":
                    from_argument = Given(f"argument {payload}")
                else:
                    obj = payload() if kind == "weak" else payload
                    step = self.named(obj)
                    if step is not None:
                        self.know(obj, step)
            else:
                key = self.named(payload)
                local = from_arguments[parent]
                if local is not None and key is not None:
                    from_argument = then(local, (kind, key))
                if learned.steps[parent] is not None and key is not None and kind not in _MADE_ANEW:
                    try:
                        obj = program.value((), k)
                        step = parent, kind, key
                    except KeyError:
                        pass
            learned.steps.append(step)
            from_arguments.append(from_argument)
            if type(step) is tuple:
                self.know(obj, (learned, k))
        for at, kind, payload, *_ in program.checks:
            path = from_arguments[at] if at >= 0 else None
            if path is not None and kind in ("is", "at"):
                # What is known by where it lies may lie elsewhere: all else about it is a fact of its own. Of what
                # cannot change, being that object says what it is.
                if kind == "at":
                    self.places.setdefault(payload[0], path)
                elif _may_change(behind(payload)):
                    self.places.setdefault(id(behind(payload)), path)

    def named(self, obj: object) -> Name | None:
        """The name of an object if it has one."""
        name = self.name(obj)
        return None if self.why_not(name) else name

    def why_not(self, name: Name) -> str:
        """As ``Name.why_not``, of which each part is asked once."""
        cls = type(name)
        if cls is Value or cls is Importable:
            return ""
        known = self.reasons.get(id(name))
        if known is None:
            reason = (name.reason if isinstance(name, Unnameable)
                      else next(filter(None, map(self.why_not, name.parts())), ""))
            known = self.reasons[id(name)] = name, reason
        return known[1]

    def name(self, obj: object) -> Name:
        """The name of an object, by its identity unless it is a constant."""
        cls = type(obj)
        if cls in _SHARED:
            value = self.constants.get((cls, obj))
            if value is None:
                value = self.constants[cls, obj] = Value(obj)
            return value
        if cls in _EXACT:
            return Value(obj)
        if cls in (tuple, frozenset):
            return self.items(obj, self.name)
        if self.named_before is None:
            return self.found(obj)
        before = self.named_before.get(id(obj))
        if before is None:
            before = self.named_before[id(obj)] = obj, self.found(obj)
        return before[1]

    def found(self, obj: object) -> Name:
        """The name of an object that is no constant."""
        turns.point()
        for at in _ways[:1] if self.by_fields(type(obj)) else _ways:
            name = at(self, obj)
            if name is not None:
                return name
        known = self.way(obj)
        if known is not None:
            return known
        return (self.of_rule(obj) or self.home(obj) or (_may_change(obj) and self.places.get(id(obj)))
                or Unnameable(_reason(obj)))

    def located(self, address: int) -> Name | None:
        """A path to the object that lies at an address."""
        known = self.located_on_path(address)
        return self.places.get(address) if known is None else known

    def data(self, obj: object) -> Name:
        """The name of what may be made again, with lists, dicts and records of ours in it."""
        cls = type(obj)
        if cls in _SHARED:
            return self.name(obj)
        if cls in _IN_ORDER:
            return self.items(obj, self.data)
        if cls is dict:
            return calling(dict_of, *[self.data(part) for pair in obj.items() for part in pair])  # type: ignore
        return self.name(obj)

    def items(self, obj: Any, name: Callable[[object], Name]) -> Name:
        """The name of a tuple, list or frozenset, with that of each item as ``name`` gives it."""
        parts = tuple(map(name, obj))
        cls = type(obj)
        if cls is list:  # each is one of its own
            return calling(list_of, *parts)
        return self.once(cls, parts, lambda: Value(obj) if all(type(part) is Value for part in parts)
                         else calling(_IN_ORDER[cls], *parts))

    def once(self, what: object, parts: tuple[Name, ...], make: Callable[[], Name]) -> Name:
        """One name for all that is made of the same names."""
        key = (what, *map(id, parts))
        known = self.made.get(key)
        if known is None:
            known = self.made[key] = make(), parts
        return known[0]

    def by_fields(self, cls: Any) -> bool:
        """Whether objects of a class are named by what they are made of, and by nothing else: those of our frozen
        dataclasses that have no rule."""
        known = self.of_fields.get(cls)
        if known is None:
            parameters = vars(cls).get("__dataclass_params__")
            known = self.of_fields[cls] = (
                parameters is not None and parameters.frozen and cls.__module__.partition(".")[0] == "jit"
                and cls.__reduce__ is object.__reduce__ and full_name(cls) not in rules)
        return known

    def fields(self, record: Any) -> Name:
        """The name of an instance of a dataclass of ours."""
        cls: Any = type(record)
        names, same = _fields(cls)
        parts = tuple([self.data(getattr(record, name)) for name in names])
        return self.once(cls, parts, lambda: calling(cls, *parts)) if same else calling(cls, *parts)

    def of_rule(self, obj: object) -> Name | None:
        """What the rule for its class says."""
        if self.by_fields(type(obj)):
            return self.fields(obj)
        found = rules.get(full_name(type(obj)))
        if found is not None:
            return found(self, obj)
        number, maker, arguments = _attributes(obj).get("_jit_made", (None, None, ()))
        if number == id(obj):
            name = calling(maker, *map(self.data, arguments))
            return Postponed(name) if _attributes(obj).get("_jit_postponed") else name
        if type(obj).__module__.partition(".")[0] != "jit":
            return None
        if type(obj).__reduce__ is not object.__reduce__:
            reduced: Any = obj.__reduce__()
            if isinstance(reduced, str):  # it is a global of this name, or says so
                return None
            return calling(reduced[0], *map(self.data, reduced[1]))
        parameters = getattr(obj, "__dataclass_params__", None)
        return self.fields(obj) if parameters is not None and parameters.frozen else None

    def home(self, obj: object) -> Name | None:
        """What a module that is likely to have it has it under, or a class in that module, or the compiled function's
        namespace."""
        function = self.given.get("function")
        if isinstance(function, types.FunctionType):
            globals_ = self.name(function.__globals__)
            for key, value in function.__globals__.items():
                if value is obj:
                    return then(globals_, ("item", Value(key)))
        own = obj.__module__ if isinstance(obj, type) else type(obj).__module__
        for home in (*_HOMES, own):
            found = self.looked_in.get(home)
            if found is None:
                found = self.looked_in[home] = {}
                for where, namespace in _namespaces(sys.modules.get(home)):
                    for key, value in list(namespace.items()):
                        found.setdefault(id(value), (value, Importable(home, f"{where}{key}")))
            if id(obj) in found:
                return found[id(obj)][1]
        return None


class Learned:
    """The paths of one guard program. ``steps``: of each accessor (parent, kind, key), the name of a root, or None
    where none leads to what it reads."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, str, Name] | Name | None] = []
        self.names: dict[int, Name] = {}

    def name(self, k: int) -> Name:
        found = self.names.get(k)
        if found is None:
            steps: list[tuple[str, Name]] = []
            at: Any = self.steps[k]
            while type(at) is tuple:
                steps.append(at[1:])
                at = self.steps[at[0]]
            found = self.names[k] = then(at, *reversed(steps))
        return found


def name_of(obj: object, naming: Naming | None = None) -> Name:
    """The name of an object, among what ``naming`` knows."""
    return (naming or Naming()).name(obj)


def _told(name: Name | tuple[Learned, int]) -> Name:
    return name[0].name(name[1]) if type(name) is tuple else name  # type: ignore[return-value]


@functools.lru_cache(1024)
def _fields(cls: Any) -> tuple[tuple[str, ...], bool]:
    """What a dataclass of ours is made of, and whether one of equal ones may stand for the others."""
    fields = dataclasses.fields(cls)
    return (tuple(field.name for field in fields if field.init),
            cls.__dataclass_params__.eq and all(field.init for field in fields))


# What leads to other objects by more than accessors.
_WITH_MORE: dict[type, Callable[[Naming, Any, Name], None]] = {
    weakref.ReferenceType: lambda naming, reference, name: naming.know(reference(), Made(name)),
    types.CodeType: Naming.know_code, types.FunctionType: Naming.know_function,
}


def then(name: Name, *steps: tuple[str, Name]) -> Reached:
    """What steps from a named object lead to."""
    return name.then(*steps) if type(name) is Reached else Reached(name, steps)


def _namespaces(module: Any) -> Iterator[tuple[str, Mapping[str, object]]]:
    if module is None:
        return
    yield "", vars(module)
    if module.__name__ not in _HOMES:
        for key, value in list(vars(module).items()):
            if issubclass(type(value), type) and value.__module__ == module.__name__:  # some warn of their __class__
                yield f"{key}.", vars(value)


def _given(naming: Naming, obj: object) -> Name | None:
    return naming.starts.get(id(obj))


def _imported(naming: Naming, obj: Any) -> Name | None:
    """By what it says of itself, if it is there."""
    look = type.__getattribute__ if isinstance(obj, type) else object.__getattribute__
    try:
        home, paths = look(obj, "__module__"), [look(obj, "__qualname__")]
    except (AttributeError, TypeError):
        return None
    if isinstance(obj, types.BuiltinFunctionType):  # torch.add says that it is _VariableFunctionsClass.add
        paths.append(obj.__name__)
    module = sys.modules.get(home) if isinstance(home, str) else None
    for path in paths if module is not None else ():
        if isinstance(path, str):
            found, steps = _looked_up(module, path), 0
            if isinstance(found, _DESCRIPTORS):  # an attribute of the class gives another thing
                owner, _, attribute = path.rpartition(".")
                method = then(Importable(home, owner), ("dict_attr", Value(attribute)))
                if found is obj:
                    return method
                for field in ("__func__", "fget", "fset", "fdel", "func"):
                    if getattr(found, field, None) is obj:
                        return then(method, ("getattr", Value(field)))
            while found is not None and found is not obj and steps < 4:
                found, steps = _wrapped(found), steps + 1
            if found is obj and obj is not None:
                name = importable(home, path)
                return then(name, *[("getattr", Value("__wrapped__"))] * steps) if steps else name
    return None


def _wrapped(found: Any) -> Any:
    """What a decorator has replaced by ``found``."""
    if isinstance(found, native().Dispatcher):
        return found.__wrapped__
    return _attributes(found).get("__wrapped__")


def _attributes(obj: object) -> Mapping[str, Any]:
    """The ``__dict__`` of an object, whatever its class makes of attributes."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except (AttributeError, ReferenceError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _looked_up(module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    return found


def _of_native(naming: Naming, obj: object) -> Name | None:
    """What the extension has."""
    key = naming.of_native.get(id(obj))
    return None if key is None else Reached(calling(native), (("getattr", Value(key)),))


def _by_its_class(naming: Naming, obj: Any) -> Name | None:
    """As is usual for objects of its class."""
    name = by_class(_OF_CLASSES, obj)
    return None if name is None else name(naming, obj)


def _module(naming: Naming, module: types.ModuleType) -> Name | None:
    return Importable(module.__name__) if sys.modules.get(module.__name__) is module else None


def _module_dict(naming: Naming, found: dict) -> Name | None:
    home = dict.get(found, "__name__")
    module = sys.modules.get(home) if isinstance(home, str) else None
    return Importable(module.__name__, "__dict__") if module is not None and vars(module) is found else None


def _enum_member(naming: Naming, obj: enum.Enum) -> Name | None:
    cls, member = naming.name(type(obj)), str(obj.name)
    if type(cls) is Importable and getattr(type(obj), member, None) is obj:
        return Importable(cls.module, f"{cls.path}.{member}")
    # Several flags are found by their number.
    return Made(cls, (Value(obj.value),)) if isinstance(obj, enum.Flag) and type(obj)(obj.value) is obj else None


def _attribute(naming: Naming, owner: object, attribute: str) -> Name | None:
    if owner is None:
        return None
    name = naming.name(owner)
    return name if type(name) is Unnameable else then(name, ("getattr", Value(attribute)))


def _class(naming: Naming, cls: Any) -> Name | None:
    forward = getattr(cls, "_forward_cls", None)  # of an autograd Function
    return _attribute(naming, forward, "_backward_cls") if isinstance(forward, type) else None


def _partial(naming: Naming, obj: Any) -> Name | None:
    return (calling(partial_of, *map(naming.data, (obj.func, obj.args, obj.keywords)))
            if type(obj) is functools.partial else None)


def _overload(naming: Naming, overload: Any) -> Name:
    schema = torch_private.schema(overload)
    return calling(operator_of, Value(schema.name), Value(schema.overload_name))


def _code(naming: Naming, code: types.CodeType) -> Name:
    """By the function that it is of."""
    if id(code) not in naming.codes:
        outer = code.co_qualname.partition(".<locals>")[0]
        for module in list(sys.modules.values()):
            if _attributes(module).get("__file__") == code.co_filename:
                function = inspect.unwrap(_looked_up(module, outer) or _code)
                if isinstance(function, types.FunctionType):
                    name = naming.named(function)
                    if name is not None:
                        naming.know(function, name)
    known = naming.codes.get(id(code)) or next((known for known in naming.codes.values() if known[0] == code), None)
    if known is None:
        return Unnameable(f"the code of {code.co_qualname}, which no function with a name has")
    return calling(code_at, known[1], Value(digest(code)))


def _descriptor(naming: Naming, descriptor: Any) -> Name | None:
    """As the attribute of its class, or, where all classes that Python code makes share it (``__dict__`` and
    ``__weakref__``, from 3.15 on), of one of those."""
    attribute = descriptor.__name__
    for cls in (descriptor.__objclass__, Naming):
        if vars(cls).get(attribute) is descriptor:
            return then(naming.name(cls), ("dict_attr", Value(attribute)))
    return None


def _reduced(naming: Naming, obj: Any) -> Name:
    """As it is pickled."""
    function, arguments = obj.__reduce__()
    return Made(naming.name(function), tuple(map(naming.data, arguments)))


def _again(module: str, cls: str, name: Callable[[Naming, object], Name], *parts: str) -> Callable:
    """The function for a class of Python's that makes the object again of these attributes, each named by ``name``."""
    return lambda naming, obj: Made(Importable(module, cls), tuple(name(naming, getattr(obj, at)) for at in parts))


# Class -> function(naming, object) -> Name or None.
_OF_CLASSES: dict[type, Callable[[Naming, Any], Name | None]] = {
    types.ModuleType: _module, dict: _module_dict, enum.Enum: _enum_member, type: _class, types.CodeType: _code,
    functools.partial: _partial,
    **dict.fromkeys((types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
                     types.MemberDescriptorType, types.ClassMethodDescriptorType), _descriptor),
    **dict.fromkeys((types.BuiltinMethodType, types.MethodWrapperType), lambda naming, method:
        _attribute(naming, method.__self__, method.__name__)),
    types.MethodType: _again("types", "MethodType", Naming.name, "__func__", "__self__"),
    types.GenericAlias: lambda naming, alias: _reduced(naming, alias),
    slice: _again("builtins", "slice", Naming.data, "start", "stop", "step"),
    torch_private.OpOverloadPacket: lambda naming, packet:
        calling(operator_of, Value(str(packet).replace(".", "::", 1)), Value(None)),
    torch_private.OpOverload: _overload,
}
_ways = (_given, _of_native, _imported, _by_its_class)


def _may_change(obj: object) -> bool:
    """Whether an object is one that holds other things at other times, and not one that is what it does."""
    return holding(obj) in ("weak", "place") and not isinstance(obj, _WHAT_THEY_ARE)


def _reason(obj: object) -> str:
    """Why an object has no name."""
    cls = type(obj)
    what = cls.__qualname__ if cls.__module__ == "builtins" else full_name(cls)
    if isinstance(obj, (types.FunctionType, type)):
        return f"{obj.__module__}.{obj.__qualname__} is not what its module has under that name"
    return f"no name leads to this {what}"
