"""Entries on disk: a later process that has the same sources captures and compiles nothing that an earlier one has.

What a function's entries are kept under says which function it is (its text and that of what it goes on in, by digest),
how it was asked to be compiled, the options, and an outline of the call: what its arguments are, without sizes, and
what the module that it belongs to is made of. Several entries may be kept under one such key; their guards say which
one a call is for. A file has two parts, so that those for other calls cost little: what has to hold of the arguments,
and the record of the entry (``jit/runtime/records.py``).

What an entry relies on and guards do not see is written beside it: the digests of the modules that its names start from
(``jit/runtime/sources.py``), and what its devices are. Where any of that differs, the entry is not used.

Entries are written by a thread, when nothing has been compiled for a moment, and at the end of the process. What cannot
be kept is told in the log channel ``cache``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import types
import weakref
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.nn.parameter import is_lazy

from .. import config, devices, logs, observing, torch_private
from ..runtime import cache, held, libraries, native, records, sources
from ..runtime import guards as native_guards
from ..runtime.guards import TensorSpec
from ..runtime.held import naming_of
from ..runtime.names import Binding, Importable, Later, Made, Name, Unbound, Unnameable, Value, bind, digest
from . import breaks, histories, writer
from .histories import History, adopt, history_of
from .resume import Resume, Resumed
from .watching import Watching

if TYPE_CHECKING:
    from .capture import Captured
    from .dispatch import Missed, Settings

log = logs.channel("cache")
# What is shown of a compilation is shown while something is compiled.
_SHOWN = tuple(map(logs.channel, ("graph", "guards", "passes", "kernels", "templates", "bytecode", "plan")))
_MOST = 32  # entries that are kept under one key
_FIRST = ("tensor", "eq", "len", "truth", "type_is")  # checks on arguments that are asked before all others
_ARGUMENTS = ("local", "item", "length", "type")
_KERNEL = Importable(libraries.kernel.__module__, libraries.kernel.__qualname__)
_off = [False]
_owners: weakref.WeakSet = weakref.WeakSet()  # dispatchers that have entries of which something is kept


@dataclasses.dataclass(frozen=True)
class Header:
    """What is known of a kept entry before its record is read.

    Attributes:
        name: of the function, for people.
        modules: name -> digest of what the module says.
        devices: device -> what code for it relies on (``Backend.facts``).
        first: some of its guards, on the arguments alone.
        graphs: how many there are in it.
        kernels: the keys of the libraries of its kernels.
    """

    name: str
    modules: dict[str, str]
    devices: dict[str, str]
    first: records.Program
    graphs: int
    kernels: tuple[str, ...]

    def differences(self) -> list[str]:
        """What it relies on besides guards that is not so here."""
        found = []
        for name, text in self.modules.items():
            try:
                if sources.of_module(name) != text:
                    found.append(f"the module {name} has changed")
            except sources.Unknown as error:
                found.append(str(error))
        return found + [f"{device} is another one: {text} there, {_facts(device)} here"
                        for device, text in self.devices.items() if _facts(device) != text]


@dataclasses.dataclass(frozen=True)
class Kept:
    """A kept entry: its record, what earlier captures have seen, and what is remembered of its own."""

    record: records.Record
    history: History
    summary: Any
    told: frozenset


class Candidate:
    """A file under the key of a call. ``fits`` and ``entry`` raise Unbound where it cannot be used here."""

    def __init__(self, key: str) -> None:
        self.key = key
        data = cache.entries.get(key)
        if data is None:
            raise Unbound("it is gone, or damaged")
        self.header = header_of(data)
        self.rest = data[8 + int.from_bytes(data[:8], "little"):]
        self.kept: Kept | None = None
        self.first: Any = None

    def fits(self, values: tuple[object, ...]) -> bool:
        """Whether a call with these locals may be one for the entry."""
        if self.first is None:
            self.first = self.header.first.bind(Binding({}))
        return self.first.check(values)

    def check_world(self) -> None:
        """Raise Unbound where what it relies on besides its guards is not so here."""
        for difference in self.header.differences():
            raise Unbound(difference)

    def read(self) -> Kept:
        if self.kept is None:
            self.kept = pickle.loads(zlib.decompress(self.rest))
            self.rest = b""
        return self.kept


def off() -> None:
    """Read nothing from disk any more in this process: what is compiled from here on is compiled."""
    _off[0] = True


def key_of(missed: Missed, fn: types.FunctionType, dispatcher: Any, values: tuple[object, ...]) -> str | None:
    """What the entries for a call are kept under; None where none are."""
    settings = missed.settings
    if settings.on_capture is not None or observing.observer() is not None:
        return None
    backend = _backend_name(settings)
    if backend is None:
        return None
    sources.note_script()
    try:
        versions = sources.versions()
    except (sources.Unknown, OSError) as error:
        log(f"nothing is kept: {error}")
        return None
    bound = missed.bound
    owner = bound() if callable(bound) and not isinstance(bound, torch.nn.Module) else bound
    names = type(owner)
    with torch_private.WithoutTorchFunction():  # nothing of the program's is asked
        outline = _structure(owner), repr([_outline(value) for value in values])
    return cache.key(
        versions, backend, repr((settings.fullgraph, settings.dynamic, settings.quiet, missed.dynamic.resumed)),
        repr(sorted((name, settings.option(name)) for name, option in config.OPTIONS.items() if option.compiled)),
        repr((fn.__module__, fn.__qualname__)), repr(_said(fn.__code__)),
        repr(_said(getattr(fn, "_jit_resumed", None))), repr(_said(getattr(dispatcher, "_jit_made", (0, 0, ()))[2:])),
        f"{names.__module__}.{names.__qualname__}", *outline, _state(), _group())


def _state() -> str:
    """The state of the thread, and switches of PyTorch that kernels are made for."""
    snapshot = list(native().global_state_snapshot())
    snapshot[native_guards.MODES_AT] = 0  # where classes lie, which differs from process to process
    return repr((snapshot, native_guards.function_modes(), torch.get_float32_matmul_precision()))


def _group() -> str:
    """Which of how many processes this is that work together."""
    group = torch.distributed
    if not group.is_available() or not group.is_initialized():
        return ""
    try:
        return f"{group.get_rank()} of {group.get_world_size()}, {group.get_backend()}"
    except ValueError:  # there is no group of all processes
        return "one of several"


def _backend_name(settings: Settings) -> str | None:
    """The name of the backend if that is one of ours, whose graphs are made of nothing but what it is given."""
    backend = settings.backend
    return backend.__qualname__ if backend.__module__ == "jit.backends" and "<" not in backend.__qualname__ else None


def _said(obj: Any) -> object:
    """What functions are told apart by."""
    if isinstance(obj, types.CodeType):
        return digest(obj)
    if isinstance(obj, tuple):
        return tuple(map(_said, obj))
    if isinstance(obj, Resume):
        return digest(obj.code), obj.params, obj.freevars
    if isinstance(obj, Resumed):
        return digest(obj.code), obj.qualname, obj.globals.get("__name__"), obj.closure is None
    return obj if isinstance(obj, (str, int, float, type(None))) else type(obj).__qualname__


def _structure(module: Any) -> str:
    """What a module is made of, in short."""
    if not isinstance(module, torch.nn.Module):
        return ""
    text, left = hashlib.sha256(), [module]
    while left:
        found = vars(left.pop())
        for table in ("_parameters", "_buffers"):
            for name, tensor in list((found.get(table) or {}).items()):
                shape = () if tensor is None or is_lazy(tensor) else tuple(tensor.shape)
                text.update(repr((name, _outline(tensor), shape)).encode())
        text.update(repr(found.get("training")).encode())
        for name, child in list((found.get("_modules") or {}).items()):
            text.update(f"{name} {type(child).__qualname__}\n".encode())
            if isinstance(child, torch.nn.Module):
                left.append(child)
    return text.hexdigest()


def _outline(value: object) -> object:
    """What entries for other values would be other ones for."""
    if isinstance(value, torch.Tensor) and not is_lazy(value):
        return type(value).__qualname__, str(value.dtype), value.device.type, value.dim(), value.requires_grad
    return type(value).__module__, type(value).__qualname__


def find(missed: Missed, dispatcher: Any, fn: types.FunctionType, values: tuple[object, ...], key: str) -> Any:
    """An entry for a call from what is kept on disk, which the dispatcher then has; None where there is none."""
    if _off[0] or any(_SHOWN):
        return None
    own = missed.settings.option("entry_cache")
    for name in cache.entries.group(key) if own else cache.entries.group(key, added_only=True):
        if name in missed.loaded:
            continue
        try:
            found = missed.candidates.get(name)
            if found is None:
                found = missed.candidates[name] = Candidate(name)
            if found.fits(values):
                entry = _entry(found, missed, dispatcher, fn, values)
                if entry is not None:
                    return entry
        except Unbound as error:
            log(f"{fn.__qualname__}: {name} is not used: {error}")
        except Exception as error:  # whatever is wrong with what lies there, the function can be compiled
            log(f"{fn.__qualname__}: {name} cannot be used: {type(error).__name__}: {error}")
            missed.loaded.add(name)
    return None


def _entry(found: Candidate, missed: Missed, dispatcher: Any, fn: types.FunctionType,
           values: tuple[object, ...]) -> Any:
    """The entry of a candidate if its guards hold."""
    found.check_world()
    kept = found.read()
    record = kept.record
    given = Binding(_given(missed, dispatcher, fn, values))
    program = record.guards.bind(given)
    if not program.check(values):
        if log:
            log(f"{fn.__qualname__}: {found.key} does not fit: {native_guards.explain(program, values)}")
        return None
    target = None if record.code is None else record.code.bind(given)
    region = None if record.region is None else bind(record.region, given)
    circumstances = record.circumstances.bind(given)
    if kept.history.captures >= len(missed.captures):
        adopt(kept.history, missed)
    for reason in kept.summary.breaks:
        breaks.log(reason)
    name = name_of(dispatcher)
    missed.loaded.add(found.key)
    del missed.candidates[found.key]
    entry = missed.add(dispatcher, program, target, region, circumstances, kept.summary, kept.told)
    entry.stored_as = found.key
    entry.to_keep = found.key.partition("/")[0], kept.summary, kept.told
    entry.tried_to_keep = True
    _owners.add(dispatcher)
    for obj in list(given.found.values()):
        if isinstance(obj, Watching):
            obj.watch(missed, dispatcher, entry)
    log(f"{name}: read from disk ({found.header.graphs} graphs, {len(record.guards.checks) // 8} guards)")
    return entry


def recall(missed: Missed, dispatcher: Any, fn: types.FunctionType, values: tuple[object, ...]) -> None:
    """Before a capture: know what those of other processes have seen."""
    if missed.to_recall:
        try:
            histories.recall(missed, _given(missed, dispatcher, fn, values))
        except Exception as error:  # nothing of it is relied on
            log(f"{fn.__qualname__}: what was seen earlier cannot be used: {type(error).__name__}: {error}")


def _given(missed: Missed, dispatcher: Any, fn: types.FunctionType, values: tuple[object, ...]) -> dict[str, object]:
    """What the names of an entry start from."""
    given: dict[str, object] = {f"argument {k}": value for k, value in enumerate(values)}
    given["function"], given["settings"] = fn, missed.settings
    bound = missed.bound
    if type(dispatcher) is native().BoundDispatcher:
        given["self"] = dispatcher.__self__
    elif bound is not None:
        given["self"] = bound() if callable(bound) and not isinstance(bound, torch.nn.Module) else bound
    return given


def keep(missed: Missed, dispatcher: Any, entry: Any, captured: Captured, key: str) -> None:
    """Have a new entry written to disk soon."""
    if captured.failed:
        return
    entry.to_keep = key, captured.summary(), captured.told
    _owners.add(dispatcher)
    if missed.settings.option("entry_cache"):
        writer.add(_write_new, dispatcher, name_of(dispatcher))


def _write_new(dispatcher: Any) -> None:
    """Write those entries of a dispatcher to disk of which that was not tried yet."""
    for entry in dispatcher.entries:
        if hasattr(entry, "to_keep") and not hasattr(entry, "tried_to_keep"):
            entry.tried_to_keep = True
            _write(dispatcher.on_miss, dispatcher, entry)


def _grown(function: Callable) -> None:
    """What a plan of an entry calls, such as its ``narrow``, can do more than when it was made: the entry is written to
    disk again."""
    for dispatcher in list(_owners):
        for entry in dispatcher.entries:
            if hasattr(entry, "to_keep") and any(fn is function for fn in _called_by(entry)):
                entry.grown = True
                if dispatcher.on_miss.settings.option("entry_cache"):
                    writer.add(_write_grown, dispatcher, name_of(dispatcher))
                return


held.when_grown.append(_grown)


def _called_by(entry: Any) -> Iterator[object]:
    """What the plans of an entry call while it is used."""
    for constant in getattr(getattr(entry.target, "__code__", None), "co_consts", ()):
        if type(constant) is native().Plan and constant.derivative is not None:
            spec = constant.derivative[-1].record()
            for fn in (spec.narrow, spec.second):
                yield fn.function if type(fn) is Later else fn


def _write_grown(dispatcher: Any) -> None:
    for entry in dispatcher.entries:
        if getattr(entry, "grown", False) and hasattr(entry, "tried_to_keep"):
            before, entry.grown, entry.stored_as = getattr(entry, "stored_as", None), False, None
            _write(dispatcher.on_miss, dispatcher, entry)
            if before is not None and entry.stored_as not in (None, before):
                cache.entries.remove(before)


def _write(missed: Missed, dispatcher: Any, entry: Any) -> None:
    """Write an entry to disk."""
    name = name_of(dispatcher)
    try:
        place, data = written(missed, entry)
        entry.stored_as = place
        missed.loaded.add(place)
        cache.entries.put_there(place, data)
        for old in cache.entries.group(place.partition("/")[0])[_MOST:]:
            cache.entries.remove(old)
    except (NotKept, OSError) as error:
        log(f"{name} is not kept: {error}")
    else:
        log(f"{name}: kept on disk ({len(data)} bytes)")


def name_of(dispatcher: Any) -> str:
    """What people call a compiled function: the class, where it is a module's call."""
    fn = dispatcher.__wrapped__
    return type(fn.__self__).__qualname__ if isinstance(fn, types.MethodType) else fn.__qualname__


class NotKept(Exception):
    """An entry cannot be kept; the text says why."""


def written(missed: Missed, entry: Any) -> tuple[str, bytes]:
    """What an entry is kept as: (its name in the store, the bytes). Raises NotKept."""
    key, summary, told = getattr(entry, "to_keep", (None, None, None))
    place = getattr(entry, "stored_as", None)
    found = None if place is None else cache.entries.get(place)
    if place is not None and found is not None and not getattr(entry, "grown", False):
        return place, found
    if key is None:
        raise NotKept("its backend or its passes are not ours, or it has failed")
    try:
        naming = naming_of(entry)
        record = records.record_of(entry, naming)
        names = list(record.all_names())
        for name in names:
            if type(name) is Unnameable:
                raise records.Unnamed(name.reason)
        header = Header(name_of(entry.owner), sources.of_modules(records.modules(names)),
                        {device: _facts(device) for device in sorted(_devices(names))}, _first(record.guards),
                        int(summary.graph is not None), tuple(sorted(_kernels(names))))
        kept = Kept(record, history_of(missed, naming), summary, told)
        start = pickle.dumps(header, pickle.HIGHEST_PROTOCOL)
        rest = zlib.compress(pickle.dumps(kept, pickle.HIGHEST_PROTOCOL), 1)
    except (records.Unnamed, sources.Unknown) as error:
        raise NotKept(str(error)) from None
    except Exception as error:  # an entry that is not kept is compiled again
        raise NotKept(f"{type(error).__name__}: {error}") from error
    return (f"{key}/{hashlib.sha256(rest).hexdigest()[:32]}", len(start).to_bytes(8, "little") + start + rest)


def header_of(data: bytes) -> Header:
    """The first part of a kept entry."""
    return pickle.loads(data[8:8 + int.from_bytes(data[:8], "little")])


def forget(entry: Any) -> None:
    """An entry has turned out to be of no use: later processes are not to have it."""
    name = getattr(entry, "stored_as", None)
    if name is not None:
        cache.entries.remove(name)


def _facts(device: str) -> str:
    found = torch.device(device)
    try:
        return devices.backend(found).facts(found)
    except Exception as error:  # there is none, whatever PyTorch calls that
        return f"none ({error})"


def _devices(names: list[Name]) -> set[str]:
    """The devices that a record speaks of, the host among them."""
    values = (name.value for name in names if type(name) is Value)
    return {"cpu", *(str(value) for value in values
                     if type(value) is torch.device and devices.backend(value).memory)}


def _kernels(names: list[Name]) -> set[str]:
    """The keys of the libraries of a record's kernels."""
    return {name.arguments[0].value for name in names  # type: ignore[attr-defined]
            if type(name) is Made and name.function == _KERNEL}


def _first(program: records.Program) -> records.Program:
    """The guards on arguments that name nothing but classes and constants."""
    accessors, checks = [], []
    places: list[int | None] = []  # of each accessor among those that are kept
    steps = [kind in _ARGUMENTS and _plain(payload) for kind, payload, *_ in program.steps]
    for parent, step in records.pairs(program.accessors):
        above = -1 if parent < 0 else places[parent]
        kept = above is not None and steps[step] and (parent >= 0) == (program.steps[step][0] != "local")
        places.append(len(accessors) // 2 if kept else None)
        if kept:
            accessors += [above, step]
    facts = [kind in _FIRST and _plain(payload) for kind, payload, *_ in program.facts]
    for at, fact in records.pairs(program.checks):
        place = places[at] if at >= 0 else None
        if facts[fact] and place is not None:
            checks += [place, fact]
    return records.part(program, accessors, checks)


def _plain(name: Name) -> bool:
    if type(name) is Made:
        return name.function == Importable(TensorSpec.__module__, TensorSpec.__qualname__) and all(
            map(_plain, name.arguments))
    return type(name) in (Value, Importable)
