"""Modules that are alike are followed once: the layers of a network.

What following a call of a module does is known from the call of its sibling, an instance of the same class, where the
two cannot be told apart by anything that was looked at: the arguments are alike, everything that was asked of the
first module holds of the second one (``Heard``), and the objects behind it are the same or others in the same pattern.
Then the same is recorded: the facts, about the second module's sources; the nodes, with its parameters and its
arguments in the place of the first one's (``jit/graph/stretch.py``).

That is only so where following a call has done nothing else. The journal tells: a call that has changed anything that
was there before it, an effect, a guess, a state, a write to memory, is followed each time. Where anything that such a
call may read has been changed since, it is followed anew.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Callable

import torch

from .. import config
from ..graph import stretch
from ..runtime import facts
from ..runtime import guards as native_guards
from . import source as src
from .executor import Frame
from .values.base import Value, births
from .values.constant import Constant, is_leaf
from .values.containers import ListValue, TupleValue
from .values.mappings import DictValue
from .values.numbers import DimValue, FloatValue
from .values.objects import ModuleObject
from .values.overlays import Overlay
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from ..graph.handles import TensorHandle
    from ..graph.ir import Loc
    from ..runtime.facts import Fact
    from .session import Session
    from .source import Source
    from .values.functions import FunctionValue

_MOST = 100  # values that the program has made where a call may find them
_KEPT = 4  # calls that are remembered of one function and class
_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What is filled in when it is first asked for, of values from outside; a change of their objects is told otherwise.
_FILLED_IN = frozenset(("_handle", "_entries", "_elements", "loaded"))
_FIXED = frozenset((Constant, DimValue, FloatValue, TensorValue))  # but for the memory of tensors, which is watched


class Differs(Exception):
    """A call cannot be told by another one."""


@dataclasses.dataclass
class Given:
    """The arguments of a call: what they look like, and what stands in them."""

    looks: tuple
    values: list[Value]
    tensors: list[TensorHandle]
    places: dict[int, int] = dataclasses.field(default_factory=dict)

    def place(self, v: Value) -> int:
        """Which of the values it is: the first one is 0."""
        at = self.places.setdefault(id(v), len(self.values))
        if at == len(self.values):
            self.values.append(v)
        return at


def _is_plain(v: TensorValue) -> bool:
    """Whether a tensor was made while capturing, and is nothing but what its handle says."""
    return v.obj is None and v.cls is torch.Tensor and not v.elsewhere and v.grad is None


def given(args: list[Value], kwargs: dict[str, Value]) -> Given | None:
    """The arguments behind the first one; None where they are more than plain data and tensors."""
    found = Given((), [], [])
    looks = []
    for v in (*args[1:], *kwargs.values()):
        look = _look(v, found)
        if look is None:
            return None
        looks.append(look)
    found.looks = (*looks, tuple(kwargs))
    return found


def _look(v: Value, found: Given) -> object:
    at = found.place(v)
    if v.source is not None or type(v) in (DimValue, FloatValue):
        return ("known", id(v))  # the same one for both
    if type(v) is TensorValue:
        if not _is_plain(v) or v._handle is None:
            return ("known", id(v))
        if not stretch.is_plain(v._handle):
            return ("known", id(v)) if v._handle.base.input is not None else None
        bases = [h.base for h in found.tensors]
        first = bases.index(v._handle.base) if v._handle.base in bases else len(bases)
        found.tensors.append(v._handle)
        return ("tensor", at, first, stretch.outline(v._handle))
    if type(v) is Constant:
        plain = v.value is None or isinstance(v.value, (bool, int, float, str))
        return ("constant", at, type(v.value), repr(v.value) if plain else id(v.value))
    if type(v) in (TupleValue, ListValue) and v.obj is None and v.cls is v.builtin and v._elements is not None:
        return _container(v, at, (), v._elements, found)
    if type(v) is DictValue and v.obj is None and v.cls is dict and v._entries is not None and not v.written:
        if all(key.is_leaf and key.source is None and type(key.value) is str for key, _ in v._entries.values()):
            return _container(v, at, tuple(v._entries), [value for _, value in v._entries.values()], found)
    return None


def _container(v: Value, at: int, names: tuple, elements: list[Value], found: Given) -> tuple | None:
    looks = [_look(e, found) for e in elements]
    return None if None in looks else (type(v), at, names, *looks)


def _reach(value: object, found: dict[int, Value]) -> bool:
    """Add what may change of what a made value leads to. False where that is not known."""
    if isinstance(value, (list, tuple)):
        return all(_reach(v, found) for v in value)
    if not isinstance(value, Value) or value.source is not None or type(value) in _FIXED or id(value) in found:
        return True
    if len(found) >= _MOST or not (type(value) in (TupleValue, ListValue) or type(value) is DictValue):
        return False
    found[id(value)] = value
    if type(value) is DictValue:
        return (value._entries is not None and not value.written and not value.unsettled
                and all(_reach(pair, found) for pair in value._entries.values()))
    return value._elements is not None and not value.tail and _reach(value._elements, found)


def state_of(s: Session) -> list:
    """What following a call depends on, beside its arguments and what it finds outside."""
    r = s.recording
    return [s.levels, s.maps, s.scalars_index, s.guesses, s.assumption, s.ways, s.learned, s.trial, s.joined,
            s.differentiated, r._regions, r.new_leaves, r.leaves_used, len(r.copied), len(s.effects.log),
            len(s.effects.recorders), len(s.real_generators), len(s.calls_made), len(s.current_exception),
            s.varying.asked.total(), *(part for key, value in s.states.now.items() for part in (*key, value))]


class Followed:
    """A call of a module that was followed to its end."""

    def __init__(self, s: Session, fn: FunctionValue, module: ModuleObject, arguments: Given) -> None:
        self.fn, self.module, self.arguments = fn, module, arguments
        self.heard, self.kept, self.before = (s.guards.heard.counts(), s.heap.kept_count,
                                              list(s.guards.noted(module.source)))
        self.state, self.mark, self.changes = state_of(s), stretch.Mark(s.tracer), s.journal.watch()
        self.caller, self.region, self.born = s.recording.location(), s.recording.region, births()
        self.generators, self.compared = len(s.generators), module.compared
        self.stretch: stretch.Stretch | None = None
        self.template: Template | None = None
        self.tried = 0
        self.handles: dict[int, TensorHandle] = {}  # of the tensors of the result, by the identity of their values
        self.elements: dict[int, list[Value]] = {}  # likewise of its tuples and lists

    def over(self, s: Session, result: Value) -> bool:
        """Note what it has done. False where it may not stand for others."""
        self.result = result
        self.heard_to = s.guards.heard.counts()
        self.new = s.heap.kept(self.kept)
        changes, self.changes = self.changes.new(), s.journal.watch()
        if not (stretch.is_same(self.state, state_of(s)) and s.recording.region == self.region
                and changes is not None and all(map(self.is_own, changes))
                and self.module.compared == self.compared  # with what is another one than its sibling
                and all(g.state == "done" for g in s.generators[self.generators:])
                and self.notes(result)):
            return False
        self.stretch = stretch.Stretch(s.tracer, self.mark, list(self.handles.values()))
        return self.stretch.copyable

    def is_older(self, value: Value) -> bool:
        """Whether a value was there before the call."""
        return value.born < self.born

    def notes(self, value: Value) -> bool:
        """Keep what a result holds, which the program may change from here on. False where it is more than tensors and
        plain data."""
        if value.source is not None or type(value) in (Constant, DimValue):
            return True
        if type(value) is TensorValue:
            if not _is_plain(value) or value._handle is None:
                return False
            self.handles[id(value)] = value._handle
            return True
        if type(value) in (TupleValue, ListValue) and value.obj is None and value.cls is value.builtin:
            if value._elements is None:
                return False
            self.elements[id(value)] = list(value._elements)
            return all(map(self.notes, value._elements))
        return False

    def is_own(self, change: tuple) -> bool:
        """Whether what was changed was made in the call."""
        return isinstance(change[0], (Value, Overlay, Frame)) and change[0].born > self.born

    def still_holds(self, s: Session, findable: dict[int, Value]) -> bool:
        """Whether nothing that it may have read was changed since this was last asked."""
        assert self.stretch is not None
        if not (stretch.is_same(self.state, state_of(s)) and self.stretch.still_there(s.tracer)
                and stretch.is_same(self.mark.state, stretch.state_of(s.tracer))):
            return False
        changes, touched = self.changes.new(), s.heap.touched
        # A generator's frame is read by running it, which changes it: then the call has not done nothing else.
        return changes is not None and not any(
            is_entry or not isinstance(holder, Value) or id(holder) in findable or holder.source is not None
            and (name not in _FILLED_IN or holder in touched)
            for holder, name, _, is_entry in changes if type(holder) is not Frame)


class Template:
    """What was heard in a call, with any module in the place of its own. Raises Differs where it is not known how.

    Attributes:
        sources: all that is spoken of and read from the module, each behind what it is read from.
        steps: of each how it is made of the one that it is read from, and the number of that one.
        facts: (number of the source, fact, what tells it from others) of those that say nothing of further objects.
        of_several: (source, fact) of the others.
        wrapped: (number of the source, object, whether it was met for the first time) of what has become a value.
        present: the numbers of sources at which there is something, and of which no fact says so.
        lengths: (number of the source, length).
    """

    def __init__(self, s: Session, of: Followed) -> None:
        heard, (f0, w0, p0, l0), (f1, w1, p1, l1) = s.guards.heard, of.heard, of.heard_to
        assert heard is not None and of.module.source is not None
        self.root = of.module.source
        self.under: dict[Source, bool] = {self.root: True}
        self.sources: list[Source] = [self.root]
        self.numbers: dict[Source, int] = {self.root: 0}
        self.steps: list[tuple] = []
        self.facts: list[tuple[int, Fact, tuple]] = []
        self.of_several: list[tuple[Source, Fact]] = []
        seen = set()
        for source, fact in heard.facts[f0:f1]:
            key = (source, type(fact), fact.key)
            if key not in seen:
                seen.add(key)
                if fact.speaks_of() or not fact.of_object:
                    if any(map(self.is_under, (source, *fact.speaks_of()))):
                        self.of_several.append((source, fact))
                elif self.is_under(source):
                    self.facts.append((self.number(source), fact, (type(fact), fact.key)))
        for source, fact in (*self.of_several, *((self.root, fact) for fact in of.before)):
            for spoken_of in (source, *fact.speaks_of()):
                if self.is_under(spoken_of):
                    self.number(spoken_of)
        if not all(fact.of_object for _, fact in self.of_several):
            raise Differs("a condition on several numbers")
        new = {id(obj) for obj in of.new}
        self.wrapped = [(self.number(source), obj, id(obj) in new)
                        for source, obj in dict(reversed(heard.wrapped[w0:w1])).items() if self.is_under(source)]
        reached = {step for source in (*(self.sources[k] for k, *_ in self.facts), *(s for s, _ in self.of_several))
                   for step in source.chain()}
        self.present = [self.number(source) for source in dict.fromkeys(heard.present[p0:p1])
                        if source not in reached and self.is_under(source)]
        self.lengths = [(self.number(source), n) for source, n in dict.fromkeys(heard.lengths[l0:l1])
                        if self.is_under(source)]
        if any(source in s.guards.fresh for source in self.sources):
            raise Differs("something is read anew at each call")
        if not all(step.guarded for source in self.sources for step in source.chain()):
            raise Differs("no guard reaches what was looked at")
        self.program = self.compiled()

    def is_under(self, source: Source) -> bool:
        """Whether it is read from the module."""
        found = self.under.get(source)
        if found is None:
            base = source.base
            found = self.under[source] = base is not None and self.is_under(base)
        return found

    def number(self, source: Source) -> int:
        """The place of one that is read from the module among all of them."""
        found = self.numbers.get(source)
        if found is None:
            assert source.base is not None
            base = self.number(source.base)
            found = self.numbers[source] = len(self.sources)
            self.sources.append(source)
            self.steps.append((src.step_of(source), base))
        return found

    def moved(self, module: Source) -> list[Source]:
        """The sources, read from another module."""
        made = [module]
        for step, base in self.steps:
            made.append(step(made[base]))
        return made

    def compiled(self) -> Any:
        """What asks all that was asked. The module is the first local, and those of the frame are behind it; the first
        places are those of the sources."""
        index: dict[Source, int] = {}
        accessors: list[tuple] = []

        def locate(source: Source) -> int:
            at = index.get(source)
            if at is None:
                if source == self.root:
                    parent, kind, payload = -1, "local", 0
                elif type(source) is src.Local:
                    parent, kind, payload = -1, "local", source.index + 1
                else:
                    parent = -1 if source.base is None else locate(source.base)
                    kind, payload = source.step()
                at = index[source] = len(accessors)
                accessors.append((parent, kind, payload, source))
            return at

        for source in self.sources:
            locate(source)
        there = facts.Present()
        checks = [(at, fact.kind, fact.payload(locate), fact) for at, fact, _ in self.facts]
        checks += [(locate(source), fact.kind, fact.payload(locate), fact) for source, fact in self.of_several]
        checks += [(at, there.kind, there.payload(locate), there) for at in self.present]
        return native_guards.program(accessors, checks)


class Siblings:
    """The calls of modules in one capture."""

    def __init__(self, s: Session) -> None:
        self.s = s
        self.on = bool(config.siblings)
        if not self.on:
            s.guards.heard = None
        self.known: dict[tuple, list[Followed]] = {}
        self.unsettled: list[tuple[Source, object]] = []

    def close(self) -> None:
        self.known.clear()
        self.unsettled.clear()
        self.s.guards.heard, self.s.arguments = None, ()  # the guards outlive the capture; no object of the program may

    def takes(self, fn: FunctionValue, first: Value) -> bool:
        """Whether a call of a function with that first argument may be told by another one. What a function that was
        made while capturing reads, its cells, is no argument, and changes unseen."""
        return (self.on and type(first) is ModuleObject and first.obj is not None and first.source is not None
                and fn.obj is not None and not fn.code.co_flags & _NOT_PLAIN and not self.s.levels)

    def findable(self) -> dict[int, Value] | None:
        """What was made while capturing, may change, and was put where a call may find it: into an object that was
        there before, say. Nothing tells that a call has read it. By identity; None where it is not known."""
        found: dict[int, Value] = {}
        if len(self.s.effects.log) > 10 * _MOST:
            return None
        known = all(_reach(effect.args, found) for effect in self.s.effects.log) and _reach(
            list(self.s.states.now.values()), found)
        return found if known else None

    def call(self, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value],
             follow: Callable[[], Value]) -> Value:
        """What a call gives: as ``follow`` finds it, or as that of a sibling has told."""
        s, module = self.s, args[0]
        if (not self.is_untouched(module) or (findable := self.findable()) is None
            or (arguments := given(args, kwargs)) is None):
            return follow()
        known = self.known.setdefault((fn.code, module.cls, arguments.looks), [])
        for followed in list(known):
            if not followed.still_holds(s, findable):
                known.remove(followed)
            elif (result := self.told(followed, fn, module, arguments)) is not None:
                return result
        if len(known) >= _KEPT:
            return follow()
        followed = Followed(s, fn, module, arguments)
        result = follow()
        if followed.over(s, result):
            known.append(followed)
        return result

    def is_untouched(self, module: ModuleObject) -> bool:
        """Whether nothing behind a module was looked at so far, but for what is asked of the module itself."""
        guards, source = self.s.guards, module.source
        assert source is not None
        return (guards.heard is not None and source not in guards.heard.read_from and not module.attrs
                and guards.noted(source) is not None)

    def told(self, of: Followed, fn: FunctionValue, module: ModuleObject, arguments: Given) -> Value | None:
        """The result of a call as another one tells it; None where it does not."""
        s = self.s
        if fn.obj is not of.fn.obj or of.tried >= _KEPT:
            return None
        mark = s.journal.checkpoint()
        try:
            if of.template is None:
                of.template = Template(s, of)
            return Telling(s, of, of.template, module, arguments).run()
        except Differs:
            of.tried += 1
            s.journal.rollback(mark)
            return None

    def settle(self) -> None:
        """Make values of all objects behind modules that were not followed: something is about to be changed that may
        be among them."""
        unsettled, self.unsettled = self.unsettled, []
        for source, obj in unsettled:
            self.s.wrap(obj, source)


class Telling:
    """One call, told by another one. Raises Differs where they are not alike."""

    def __init__(self, s: Session, of: Followed, template: Template, module: ModuleObject, arguments: Given) -> None:
        self.s, self.of, self.template, self.arguments = s, of, template, arguments
        self.module = module
        assert module.source is not None
        self.sources = template.moved(module.source)
        self.objects = (module.obj, *s.arguments)
        self.locs: dict[Loc | None, Loc | None] = {None: None}
        self.caller = s.recording.location()
        self.values = dict(zip(map(id, of.arguments.values), arguments.values))

    def run(self) -> Value:
        s, of, template = self.s, self.of, self.template
        objects = self.check()
        assert of.stretch is not None
        pairs = list(zip(of.arguments.tensors, self.arguments.tensors))
        copy = stretch.Copy(s.tracer, of.stretch, pairs, self.make_input, self.place)
        if not copy.run():
            raise Differs("a parameter is of another type")
        guards, sources = s.guards, self.sources
        guards.add_all([(sources[at], fact, key) for at, fact, key in template.facts],
                       [sources[at] for _, at in template.steps])
        for source, fact in template.of_several:
            guards.add(self.moved(source), fact.moved(self.moved))
        for at in template.present:
            guards.add_presence(sources[at])
        if guards.heard is not None:  # for a call around this one, all of them were met here
            guards.heard.wrapped += objects
        for at, obj in objects:
            if not is_leaf(obj):
                s.heap.keep(obj)
                s.siblings.unsettled.append((at, obj))
        return self.result(of.result, copy)

    def moved(self, source: Source) -> Source:
        return self.sources[self.template.number(source)] if self.template.is_under(source) else source

    def check(self) -> list[tuple[Source, object]]:
        """Everything that was asked of the first module holds of this one. -> what is behind it."""
        s, template, sources = self.s, self.template, self.sources
        if not all(s.guards.known(sources[0], fact.moved(self.moved)) for fact in self.of.before):
            raise Differs("less is known of the module")
        if not template.program.check(self.objects):
            raise Differs(native_guards.explain(template.program, self.objects))
        varying, known, value = s.varying, s.heap.by_object, template.program.value
        counterparts: dict[int, object] = {id(self.of.module.obj): self.module.obj}
        taken = {id(self.module.obj): id(self.of.module.obj)}
        found = []
        for number, first, is_new in template.wrapped:
            obj, at = value(self.objects, number), sources[number]
            found.append((at, obj))
            if is_leaf(first):
                if (varying.history is not None and type(obj) in (int, float) and src.changeable(at)
                    and varying.number(obj, at, None) is not None):
                    raise Differs("a number varies")
                continue
            if at.slot and varying.is_replaced(at, obj):
                raise Differs("something is read anew at each call")
            if obj is not counterparts.get(id(first), first) and (not is_new or id(obj) in known):
                raise Differs("an object is one that is known otherwise")
            if (counterparts.setdefault(id(first), obj) is not obj
                or taken.setdefault(id(obj), id(first)) != id(first)):
                raise Differs("other objects are the same")
        for number, n in template.lengths:
            if varying.history is not None and varying.length_at(sources[number], n) is not n:
                raise Differs("a length varies")
        return found

    def make_input(self, old: TensorHandle) -> TensorHandle | None:
        """The graph input in the place of one of the first module's."""
        source = old.origin
        if source is None or not self.template.is_under(source):
            return old  # it is the same one for both
        value = self.found_at(source)
        return value.handle(self.s) if type(value) is TensorValue else None

    def found_at(self, source: Source) -> Value:
        """The value of what is there behind this module."""
        for step in source.chain():
            # What is read anew at each call is read from an object that is known as a value.
            if not step.stays and step.base is not None and self.template.is_under(step.base):
                self.s.wrap(self.object_at(step.base), self.moved(step.base))
        return self.s.wrap(self.object_at(source), self.moved(source))

    def object_at(self, source: Source) -> object:
        at = self.template.numbers.get(source)
        if at is None:
            raise Differs("an object that has become a value before")
        return self.template.program.value(self.objects, at)

    def place(self, loc: Loc | None) -> Loc | None:
        """The source position of what stands for something: where the call is made from another line, that line."""
        found = self.locs.get(loc)
        if found is None and loc is not None:
            found, before, now = loc, self.of.caller, self.caller
            if loc.user is not None and before is not None and now is not None:
                if loc.user == (before.user or before[:3]):
                    found = found._replace(user=now.user or now[:3])
            if loc.region:
                found = found._replace(region=self.s.recording.region)
            self.locs[loc] = found
        return found

    def result(self, value: Value, copy: stretch.Copy) -> Value:
        """What stands for the result of the first call."""
        argument = self.values.get(id(value))
        if argument is not None:
            return argument
        if value is self.of.module:
            return self.module
        if value.source is not None:
            if not self.template.is_under(value.source):
                return value
            return self.found_at(value.source)
        if self.of.is_older(value):
            return value  # it is the same one for both
        handle, elements = self.of.handles.get(id(value)), self.of.elements.get(id(value))
        if handle is not None:
            made: Value = self.s.recording.tensor_of(copy.handle(handle))
        elif elements is not None:
            made = type(value)([self.result(v, copy) for v in elements])  # type: ignore[call-arg]
        else:
            return value
        return self.values.setdefault(id(value), made)
