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

import inspect
from typing import TYPE_CHECKING, Any, Callable

import torch

from .. import config
from ..graph import stretch
from ..runtime import facts
from ..runtime import guards as native_guards
from . import source as src
from .executor import Frame
from .given import Given, is_made_inside, is_plain, is_plain_class
from .guards import Compared, Element
from .values.base import Value, births
from .values.constant import Constant, is_leaf
from .values.containers import ListValue, TupleValue
from .values.mappings import DictValue
from .values.numbers import DimValue, FloatValue
from .values.objects import ModuleObject, ObjectValue
from .values.overlays import DELETED, Overlay
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from ..graph.handles import TensorHandle
    from ..graph.ir import Loc
    from ..runtime.facts import Fact
    from .given import Reading
    from .session import Session
    from .source import Source
    from .values.functions import FunctionValue

_MOST = 10_000  # values that the program has made where a call may find them
_KEPT = 4  # calls that are remembered of one function and class
_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What is filled in when it is first asked for, of values from outside; a change of their objects is told otherwise.
_FILLED_IN = frozenset(("_handle", "_entries", "_table", "_held", "loaded"))
_FIXED = frozenset((Constant, DimValue, FloatValue, TensorValue))  # but for the memory of tensors, which is watched


class Differs(Exception):
    """A call cannot be told by another one."""


def _reach(s: Session, value: object, found: dict[int, object]) -> bool:
    """Add what may be told from others, or may change, of what a made value leads to. False where that is not
    known."""
    if isinstance(value, (list, tuple)):
        return all(_reach(s, v, found) for v in value)
    if not isinstance(value, Value) or value.source is not None or id(value) in found:
        return True
    if type(value) in _FIXED:
        if type(value) is TensorValue:
            found[id(value)] = value
        return True
    if len(found) >= _MOST or is_made_inside(s, getattr(value, "cls", object)):
        return False
    found[id(value)] = value
    if type(value) is ObjectValue and value.obj is None:
        found[id(value.attrs)] = value.attrs
        return _reach(s, [value.init_args, *(v for v in dict.values(value.attrs) if v is not DELETED)], found)
    if type(value) is DictValue:
        return (value._table is not None and not value.written and not value.unsettled
                and all(_reach(s, pair, found) for pair in value._table.values()))
    return (type(value) in (TupleValue, ListValue) and value._held is not None and not value.tail
            and _reach(s, value._held, found))


class Findable:
    """What was made while capturing, may change, and was put where a call may find it: into an object that was there
    before, say. Nothing tells that a call has read it."""

    def __init__(self, s: Session) -> None:
        self.s = s
        self.restart()

    def restart(self) -> None:
        s = self.s
        self.reached: dict[int, object] = {}  # values and overlays, by identity
        self.changes, self.known, self.states, self.count, self.last = s.journal.watch(), True, [], 0, None

    def now(self) -> dict[int, object] | None:
        """By identity; None where it is not known."""
        log, changes = self.s.effects.log, self.changes.new()
        if (changes is None or len(log) < self.count or self.count and log[self.count - 1] is not self.last
            or any(id(change[0]) in self.reached for change in changes)):
            self.restart()
        states = list(self.s.states.now.values())
        new = [effect.args for effect in log[self.count:]]
        if new or not stretch.is_same(self.states, states):
            self.known = self.known and _reach(self.s, [*new, states], self.reached)
            self.states, self.count, self.last = states, len(log), log[-1] if log else None
        return self.reached if self.known else None


def _type_of(tensor: Any) -> tuple:
    """What is mostly another one where two tensors are not alike; of other classes, which may answer in code of their
    own, the class alone."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return (type(tensor),)
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return type(tensor), tensor.shape, strides, tensor.dtype, tensor.device, tensor.requires_grad


def is_filled_in(s: Session, holder: object, name: str, before: object, is_entry: bool) -> bool:
    """Whether a change is no more than that something was asked for the first time of what is outside."""
    return (not is_entry and isinstance(holder, Value) and holder.source is not None and name in _FILLED_IN
            and holder not in s.heap.touched)


def state_of(s: Session) -> list:
    """What following a call depends on, beside its arguments and what it finds outside."""
    r = s.recording
    return [s.levels, s.maps, s.scalars_index, s.guesses, s.assumption, s.ways, s.learned, s.trial, s.joined,
            s.differentiated, r._regions, r.new_leaves, r.leaves_used, len(r.copied), len(s.effects.log),
            len(s.effects.recorders), len(s.real_generators), len(s.calls_made), len(s.current_exception),
            s.varying.asked.total(), *(part for key, value in s.states.now.items() for part in (*key, value))]


class Followed:
    """A call of a module that was followed to its end."""

    def __init__(self, s: Session, module: ObjectValue, arguments: Given) -> None:
        self.s, self.module, self.arguments = s, module, arguments
        self.heard, self.kept, self.before = (s.guards.heard.counts(), s.heap.kept_count,
                                              list(s.guards.noted(module.source) or ()))
        self.state, self.mark, self.changes = state_of(s), stretch.Mark(s.tracer), s.journal.watch()
        self.caller, self.region, self.born = s.recording.location(), s.recording.region, births()
        self.generators, self.compared = len(s.generators), module.compared
        self.stretch: stretch.Stretch | None = None
        self.template: Template | None = None
        self.tried, self.tells = 0, 0  # how often it did not tell another one, and how often it did
        self.handles: dict[int, TensorHandle] = {}  # of the tensors of the result, by the identity of their values
        self.elements: dict[int, list[Value]] = {}  # likewise of its tuples and lists
        self.objects: dict[int, dict[str, Value]] = {}  # likewise the attributes of its objects
        self.writes: list[tuple[int, str, Value]] = []  # (place of an object that was given, name, what it is now)

    def over(self, s: Session, result: Value) -> bool:
        """Note what it has done. False where it may not stand for others."""
        self.result = result
        self.heard_to = s.guards.heard.counts()
        self.new = s.heap.kept(self.kept)
        changes, self.changes = self.changes.new(), s.journal.watch()
        if not (stretch.is_same(self.state, state_of(s)) and s.recording.region == self.region
                and changes is not None and self.arguments.known
                and all(self.is_own(c) or is_filled_in(s, *c) or self.notes_write(c) for c in changes)
                and self.module.compared == self.compared  # with what is another one than its sibling
                and all(g.state == "done" for g in s.generators[self.generators:])
                and all(map(self.notes, (result, *(value for _, _, value in self.writes),
                                         *(value for _, value in self.arguments.appended),
                                         *(v for _, *pair in self.arguments.put for v in (pair[0], pair[2])))))):
            return False
        self.stretch = stretch.Stretch(s.tracer, self.mark, list(self.handles.values()))
        return self.stretch.copyable

    def is_answer(self) -> bool:
        """Whether it has traced and written nothing, and what it gives is something that was there before or a plain
        constant: then the same call gives the same again."""
        assert self.stretch is not None
        value, given = self.result, self.arguments
        return not (self.stretch.nodes or self.stretch.events or self.writes or given.appended or given.put) and (
            value.source is not None or self.is_older(value) or type(value) is Constant)

    def is_older(self, value: Value) -> bool:
        """Whether a value was there before the call."""
        return value.born < self.born

    def notes_write(self, change: tuple) -> bool:
        """Whether something was written into an object, or appended to a list, that was given."""
        holder, name = change[:2]
        at = self.arguments.holder_at(holder)
        if at is None or type(holder) is not Overlay:
            return at is not None
        value = dict.get(holder, name)
        if (at, name) not in [write[:2] for write in self.writes]:
            self.writes.append((at, name, value))
        return value is not None and value is not DELETED and not holder.deleted

    def notes(self, value: Value) -> bool:
        """Keep what a result holds, which the program may change from here on. False where it is more than tensors,
        plain data and objects that hold such."""
        if value.source is not None or type(value) in (Constant, DimValue) or self.arguments.at(value) is not None:
            return True
        if type(value) is TensorValue:
            if not is_plain(self.s, value) or value._handle is None:
                return False
            self.handles[id(value)] = value._handle
            return True
        if type(value) in (TupleValue, ListValue) and value.obj is None and value.cls is value.builtin:
            if id(value) in self.elements:
                return True
            if value._held is None:
                return False
            self.elements[id(value)] = list(value._held)
            return all(map(self.notes, value._held))
        if (type(value) is ObjectValue and value.obj is None and value.born > self.born
            and is_plain_class(self.s, value.cls)):
            if id(value) in self.objects:
                return True
            held = self.objects[id(value)] = dict(dict.items(value.attrs))
            return not value.attrs.deleted and all(map(self.notes, held.values()))
        return False

    def is_own(self, change: tuple) -> bool:
        """Whether what was changed was made in the call, or is a note of ours."""
        return (isinstance(change[0], (Value, Overlay, Frame)) and change[0].born > self.born
                or type(change[0]) is Given)

    def still_holds(self, s: Session, findable: dict[int, object]) -> bool:
        """Whether nothing that it may have read was changed since this was last asked."""
        assert self.stretch is not None
        if not (stretch.is_same(self.state, state_of(s)) and self.stretch.still_there(s.tracer)
                and stretch.is_same(self.mark.state, stretch.state_of(s.tracer))):
            return False
        changes = self.changes.new()

        def read(holder: object, name: str, is_entry: bool) -> bool:
            """Whether the call may have read what was changed."""
            if type(holder) in (Frame, Given):  # a generator's is read by running it, which changes it: it is not done
                return False
            if id(holder) in findable:
                return True
            if type(holder) is Overlay:
                return holder.outside
            return is_entry or not isinstance(holder, Value) or (
                holder.source is not None and not is_filled_in(s, holder, name, None, is_entry))

        return changes is not None and not any(read(holder, name, is_entry) for holder, name, _, is_entry in changes)


class Template:
    """What was heard in a call, with any module in the place of its own. Raises Differs where it is not known how.

    Attributes:
        sources: all that is spoken of and read from the module, each behind what it is read from.
        steps: of each how it is made of the one that it is read from, and the number of that one.
        groups: the number of a source -> facts, and what tells each from others, of those that say nothing of further
            objects.
        of_several: (source, fact) of the others.
        compared: (number of the source, what a number there has to be).
        elements: the numbers of sources of what was told from the other elements or keys of what the call has made.
        wrapped: (number of the source, object, whether it was met for the first time, whether it may be replaced) of
            what has become a value and can be told from others.
        varying: the numbers of sources of numbers that may be others at other calls.
        present: the numbers of sources at which there is something, and of which no fact says so.
        lengths: (number of the source, length).
    """

    def __init__(self, s: Session, of: Followed) -> None:
        heard, (f0, w0, p0, l0), (f1, w1, p1, l1) = s.guards.heard, of.heard, of.heard_to
        given = of.arguments
        assert heard is not None and of.module.source is not None
        self.root = of.module.source
        self.under: dict[Source, bool] = {self.root: True}
        self.sources: list[Source] = [self.root]
        self.numbers: dict[Source, int] = {self.root: 0}
        self.steps: list[tuple] = []
        self.groups: dict[int, tuple[list[Fact], list[tuple]]] = {}
        self.of_several: list[tuple[Source, Fact]] = []
        self.compared: list[tuple[int, Compared]] = []
        self.elements: list[int] = []
        seen = set()
        for at, (source, fact) in enumerate(heard.facts[f0:f1], f0):
            use = heard.asked_as.get(at)
            if type(use) is Compared and self.is_under(source):
                self.compared.append((self.number(source), use))
                continue
            if type(use) is Element and (use.holder is None or use.holder.born > of.born):
                if self.is_under(source):
                    self.elements.append(self.number(source))
                continue
            if use is not None and given.holder_at(use) is not None:
                continue  # which element it is does not matter, as long as it looks alike
            key = (source, type(fact), fact.key)
            if key not in seen:
                seen.add(key)
                if fact.speaks_of() or not fact.of_object:
                    if any(map(self.is_under, (source, *fact.speaks_of()))):
                        self.of_several.append((source, fact))
                elif self.is_under(source):
                    found, keys = self.groups.setdefault(self.number(source), ([], []))
                    found.append(fact)
                    keys.append((type(fact), fact.key))
        for source, fact in (*self.of_several, *((self.root, fact) for fact in of.before)):
            for spoken_of in (source, *fact.speaks_of()):
                if self.is_under(spoken_of):
                    self.number(spoken_of)
        if not all(fact.of_object for _, fact in self.of_several):
            raise Differs("a condition on several numbers")
        for source in (*(reading.source for reading in given.readings), *(row[2] for row in given.put)):
            if source is not None and self.is_under(source):
                self.number(source)
        new = {id(obj) for obj in of.new}
        wrapped = [(source, obj) for source, obj in dict(reversed(heard.wrapped[w0:w1])).items()
                   if self.is_under(source)]
        self.wrapped = [(self.number(source), obj, id(obj) in new, source.slot and s.varying.may_be_replaced(source))
                        for source, obj in wrapped if not is_leaf(obj)]
        self.varying = [self.number(source) for source, obj in wrapped
                        if type(obj) in (int, float) and src.changeable(source)]
        reached = {step for source in (*(self.sources[k] for k in self.groups), *(s for s, _ in self.of_several))
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
        checks = [(at, fact.kind, fact.payload(locate), fact) for at, (found, _) in self.groups.items()
                  for fact in found]
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
        self.known: dict[tuple, list[Followed]] = {}  # calls of modules
        self.answers: dict[tuple, Followed] = {}  # to questions
        self.asked: dict[tuple, int] = {}  # question -> how often it was asked, and no earlier one has told the answer
        self.unsettled: list[tuple[Source, object]] = []
        self.findable = Findable(s)

    def close(self) -> None:
        for held in (self.known, self.answers, self.asked):
            held.clear()
        self.findable.restart()
        self.unsettled.clear()
        self.s.guards.heard, self.s.arguments = None, ()  # the guards outlive the capture; no object of the program may

    def takes(self, fn: FunctionValue, first: Value) -> bool:
        """Whether a call of a function with that first argument may be told by another one. What a function that was
        made while capturing reads, its cells, is no argument, and changes unseen."""
        return self.may_ask(first) and fn.obj is not None and not fn.code.co_flags & _NOT_PLAIN

    def may_ask(self, first: Value) -> bool:
        """Whether what is asked of an object may be told by what was asked before. It is a plain one where it was made
        while capturing."""
        s = self.s
        if not self.on or s.levels or s.current_exception:
            return False
        if type(first) is ObjectValue and first.obj is None:
            return first.source is None and is_plain_class(s, first.cls)
        return type(first) in (ModuleObject, ObjectValue) and first.source is not None

    def call(self, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value],
             follow: Callable[[], Value]) -> Value:
        """What a call gives: as ``follow`` finds it, or as that of a sibling has told."""
        s, module = self.s, args[0]
        if type(module) is not ModuleObject:
            return self.ask((fn.code, id(fn.obj)), args, kwargs, follow)
        if not self.is_untouched(module) or (findable := self.findable.now()) is None:
            return follow()
        arguments = Given(s, findable)
        if not arguments.arguments(args, kwargs):
            return follow()
        known = self.known.setdefault((fn.code, id(fn.obj), id(module.cls), arguments.looks), [])
        for followed in list(known):
            if not followed.still_holds(s, findable):
                known.remove(followed)
            elif (result := self.told(followed, module, arguments.anew())) is not None:
                return result
        if len(known) >= _KEPT:
            return follow()
        followed = Followed(s, module, arguments)
        arguments.watch()
        try:
            result = follow()
        finally:
            arguments.unwatch()
        if followed.over(s, result):
            known.append(followed)
        return result

    def ask(self, what: tuple, args: list[Value], kwargs: dict[str, Value], follow: Callable[[], Value]) -> Value:
        """What is asked of an object, the first argument, by a call of a method, say: where asking the same has done
        nothing but give an answer, and nothing that it may have read was changed since, it is that again. ``what``
        tells what is asked."""
        s = self.s
        if s.guards.heard is None or (findable := self.findable.now()) is None:
            return follow()
        first, given = args[0], Given(s, findable)
        if not given.arguments(args, kwargs) or given.tensors or given.holds_made:
            return follow()
        key = (*what, id(first), given.looks)
        times = self.asked[key] = self.asked.get(key, 0) + 1
        if first.obj is None and given.look(first) is None:  # type: ignore[attr-defined]
            return follow()
        followed = self.answers.pop(key, None)
        if followed is not None and followed.still_holds(s, findable) and (again := given.anew()).matches(
                followed.arguments, lambda container, reading: _pick(container, reading.key, reading.source)):
            self.answers[key] = followed
            at = followed.arguments.at(followed.result)
            return followed.result if at is None else again.values[at]
        if not 1 < times <= _KEPT:  # most questions are asked once
            return follow()
        followed = Followed(s, first, given)  # type: ignore[arg-type]
        given.watch()
        try:
            result = follow()
        finally:
            given.unwatch()
        if followed.over(s, result) and followed.is_answer():
            self.answers[key], self.asked[key] = followed, 1
        return result

    def is_untouched(self, module: ModuleObject) -> bool:
        """Whether nothing behind a module was looked at so far, but for what is asked of the module itself."""
        guards, source = self.s.guards, module.source
        assert source is not None
        return (guards.heard is not None and source not in guards.heard.read_from and not module.attrs
                and guards.noted(source) is not None)

    def told(self, of: Followed, module: ModuleObject, arguments: Given) -> Value | None:
        """The result of a call as another one tells it; None where it does not."""
        s = self.s
        if of.tried >= _KEPT * (1 + of.tells):
            return None
        mark = s.journal.checkpoint()
        try:
            if of.template is None:
                of.template = Template(s, of)
            result = Telling(s, of, of.template, module, arguments).run()
            of.tells += 1
            return result
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


def _pick(container: ListValue | DictValue, key: Any, source: Source | None) -> Value | None:
    """An element or entry of a made list or dict; None where there is none."""
    if type(container) is not DictValue and not -len(container._held) <= key < len(container._held):  # type: ignore
        return None
    return container.pick(key, source)


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
        self.values: dict[int, Value] = {}

    def run(self) -> Value:
        s, of, template = self.s, self.of, self.template
        objects = self.check()
        assert of.stretch is not None
        if not self.arguments.matches(of.arguments, self.pick):
            raise Differs("something else is read of what the program has made")
        self.values = dict(zip(map(id, of.arguments.values), self.arguments.values))
        pairs = list(zip(of.arguments.tensors, self.arguments.tensors))
        copy = stretch.Copy(s.tracer, of.stretch, pairs, self.make_input, self.place)
        if not copy.run():
            raise Differs("a parameter is of another type")
        guards, sources = s.guards, self.sources
        guards.add_all([(sources[at], found, keys) for at, (found, keys) in template.groups.items()],
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
        for place, name, value in of.writes:
            self.arguments.values[place].attrs.put(s, name, self.result(value, copy))  # type: ignore[attr-defined]
        for place, value in of.arguments.appended:
            self.arguments.values[place].extend(s, [self.result(value, copy)])  # type: ignore[attr-defined]
        for place, key, _, value in of.arguments.put:
            self.arguments.values[place].plain_setitem(  # type: ignore[attr-defined]
                s, self.result(key, copy), self.result(value, copy))
        return self.result(of.result, copy)

    def pick(self, container: ListValue | DictValue, reading: Reading) -> Value | None:
        """What is read of a list or dict."""
        key, source = reading.key, reading.source
        if source is not None:
            moved = self.moved(source)
            if moved is not source:
                key = self.object_at(source)
            with self.s.guards.asked_as(container):
                self.s.guards.add(moved, facts.Equals(key))
            source = moved
        if type(key) is not type(reading.key):
            raise Differs("a key of another type")
        return _pick(container, key, source)

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
        for number, compared in template.compared:
            if not compared.holds(obj := value(self.objects, number)):
                raise Differs("a number for which a comparison finds something else")
            with s.guards.asked_as(compared):
                s.guards.add(sources[number], facts.Equals(obj))
        counterparts: dict[int, object] = {id(self.of.module.obj): self.module.obj}
        taken = {id(self.module.obj): id(self.of.module.obj)}
        found = []
        for number in template.varying:
            obj, at = value(self.objects, number), sources[number]
            found.append((at, obj))
            if (varying.history is not None and type(obj) in (int, float)
                and varying.number(obj, at, None) is not None):
                raise Differs("a number varies")
        for number, first, is_new, may_be_replaced in template.wrapped:
            obj, at = value(self.objects, number), sources[number]
            found.append((at, obj))
            if may_be_replaced and varying.is_replaced(at, obj):
                raise Differs("something is read anew at each call")
            if obj is not counterparts.get(id(first), first) and (not is_new or id(obj) in known):
                raise Differs("an object is one that is known otherwise")
            if obj is not first and isinstance(first, torch.Tensor) and _type_of(obj) != _type_of(first):
                raise Differs("a tensor is of another type")  # asked here, before anything is made a value
            if (counterparts.setdefault(id(first), obj) is not obj
                or taken.setdefault(id(obj), id(first)) != id(first)):
                raise Differs("other objects are the same")
        for number, n in template.lengths:
            if varying.history is not None and varying.length_at(sources[number], n) is not n:
                raise Differs("a length varies")
        with s.guards.asked_as(Element(None)):
            for number in template.elements:
                s.guards.pin(sources[number], value(self.objects, number))
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
        attributes = self.of.objects.get(id(value))
        if handle is not None:
            made: Value = self.s.recording.tensor_of(copy.handle(handle))
        elif elements is not None and type(value) is ListValue:  # which may contain itself
            made = self.values[id(value)] = ListValue([])
            made._held = [self.result(v, copy) for v in elements]
        elif elements is not None:
            made = TupleValue([self.result(v, copy) for v in elements])
        elif attributes is not None:
            made = self.values[id(value)] = ObjectValue(value.cls)  # type: ignore[attr-defined]
            made.attrs.update({name: self.result(v, copy) for name, v in attributes.items()})
        else:
            return value
        return self.values.setdefault(id(value), made)
