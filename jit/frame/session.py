"""One capture in progress: an object that owns its parts, each in a file of its own."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Callable

from ..errors import JitError, Unsupported
from ..graph.journal import Journal
from ..graph.tracer import Tracer
from . import source as src
from . import tables
from .assumptions import assume_handle
from .calls import Calls
from .effects import Effects
from .guards import Guards
from .guesses import guess
from .heap import Heap
from .lookups import Lookups
from .makers import Makers
from .recording import Recording
from .size_facts import SizeFacts
from .siblings import Siblings
from .stand_ins import Asker
from .speculation import Attempt
from .tracked_state import States
from .values.base import Raised, Value
from .values.constant import Constant, is_leaf
from .values.objects import ObjectValue
from .varying import Varying

if TYPE_CHECKING:
    from ..graph.ir import Loc


class Session(Makers):
    """State shared by all frames of one capture.

    Attributes:
        tracer: makes the graph.
        guards: the facts that are relied on.
        journal: takes back what a step has done.
        heap: how real objects become values.
        lookups: globals and attributes of classes.
        varying: which numbers and sizes become symbols; ``history`` decides that (``jit.frame.dynamic``).
        effects: what is done to real objects after the graph has run.
        states: the switches of PyTorch and Python that the program has set.
        recording: calls of torch.
        calls: all other calls.
        asker: of calls with tensors of classes of the program's.
        frames: that are being executed, the outermost first.
        current_exception: what is being handled, the innermost last.
        generators, real_generators: that were made while capturing, and that came in and were read.
        maps: the calls of torch.vmap that the program is in; see ``values.batched``. ``scalars_index``: not empty
            where mapped scalars index tensors in them, whatever modes the program is in: the numbers along each axis.
        levels: the transforms of torch.func that the program is in, the outermost first; see ``library.transforms``.
        guesses, unsteady: see ``guesses``: (node, value, place); places where no value is guessed, None: nowhere.
        assumption: see ``assumptions``: a tensor that has to be true after the graph has run.
        differentiated: the autograd.Functions whose backward is being followed.
        trial: while a cached function is tried: what the ones it calls gave; see ``library.cached_functions``.
        calls_made: [cached function, key, whether this attempt has come to it] that were made while capturing.
        unbroken: whether a break is an error.
        ways, learned: the branches whose ways are known (``ways.Known``), and those of which one was assumed here.
        inner_gradients, uncertain, assuming, learning, following, joining: what is allowed at first, and not at another
            attempt where it went wrong: gradients inside; calls that may raise deferred until the graph has run;
            assumptions, and those about ways that were learned; cached functions followed
            (``library.cached_functions``); both ways of branches followed (``both_ways``).
        joined: while they are, what ``Tracer.written_before`` is set to for that.
        lazy_reads: likewise: numbers that can be read off tensors before the graph runs are read behind it.
    """

    def __init__(self, history=None) -> None:
        tables.fill_in(sys.modules)
        self.tracer = Tracer()
        self.guards = Guards(SizeFacts(self.tracer.env, {}, history))
        self.journal = Journal()
        self.journal.includes(self.tracer.journal)
        self.frames: list = []
        self.current_exception: list = []
        self.generators: list = []
        self.real_generators: list = []
        self.journal.grows(self.frames, self.current_exception, self.generators)
        self.varying = Varying(history, self.tracer.env, self.guards)
        self.heap = Heap(self)
        self.lookups = Lookups(self)
        self.effects = Effects(self)
        self.states = States(self)
        self.recording = Recording(self)
        self.calls = Calls(self)
        self.asker = Asker(self)
        self.siblings = Siblings(self)
        self.arguments: tuple = ()
        self.maps: tuple = ()
        self.levels: tuple = ()
        self.scalars_index: tuple = ()
        self.steps = 0
        self.guesses, self.unsteady, self.assumption = (), None, None
        self.ways, self.learned = None, ()
        self.trial, self.calls_made = None, []
        self.differentiated: tuple = ()
        self.unbroken = False
        self.inner_gradients = self.uncertain = self.assuming = self.learning = self.following = self.joining = True
        self.joined = 0
        self.lazy_reads = True
        self.tracer.env.where = functools.partial(_followed, weakref.ref(self))  # outlives the session
        self.tracer.builder.guess = functools.partial(guess, self)
        self.tracer.steps_aside = self.effects.why_aside
        self.tracer.assume = functools.partial(assume_handle, self)

        # What rules use all the time goes by a short name.
        self.set_field, self.set_entry, self.effect = self.journal.set_field, self.journal.set_entry, self.effects.add
        self.wrap, self.wrap_raw, self.wrap_class = self.heap.wrap, self.heap.wrap_raw, self.heap.wrap_class
        self.wrap_key, self.wrap_cell, self.from_python = self.heap.wrap_key, self.heap.wrap_cell, self.heap.from_python
        self.class_lookup, self.wrap_class_attr = self.lookups.class_lookup, self.lookups.wrap_class_attr
        self.inherits, self.bound_method = self.lookups.inherits, self.lookups.bound_method
        self.function_of_class = self.lookups.function_of_class
        self.torch_call, self.record, self.inline = self.recording.torch_call, self.recording.record, self.calls.inline

    def close(self) -> None:
        """Let go of the program's objects: the values refer to each other in cycles, and arguments must not outlive
        their call."""
        for part in (self.heap, self.lookups, self.effects, self.states, self.recording, self.asker,
                     self.siblings):
            part.close()
        for held in (self.frames, self.current_exception, self.generators, self.real_generators):
            held.clear()
        self.tracer.journal.clear()
        self.journal.clear()
        vars(self.tracer).clear()  # its handles refer to it
        self.tracer = None

    def speculate(self, **options) -> Attempt:
        """A context in which a way of doing something is tried: see ``Attempt``."""
        return Attempt(self, **options)

    @property
    def in_a_map(self) -> bool:
        """Whether the program is inside ``torch.vmap``, where a tensor stands for all slices."""
        return bool(self.tracer.written_before)

    def set_elements(self, sequence: Value, elements: list[Value]) -> None:
        """Replace the elements of a list value; iterators over it see the change."""
        for given in sequence.watched:  # type: ignore[attr-defined]
            given.writes(sequence, None)
        self.set_field(sequence, "_held", elements)

    # -- exceptions -------------------------------------------------------------------------------------------------

    def exception(self, error: Exception | BaseException | type, args: list[Value] | None = None) -> ObjectValue:
        """An exception value from a real exception, or from a class and argument values."""
        cls, given = (error, ()) if isinstance(error, type) else (type(error), error.args)
        value = ObjectValue(cls)
        value.init_args = tuple(args) if args is not None else tuple(
            self.from_python(a) if is_leaf(a) or isinstance(a, tuple) else Constant(str(a)) for a in given)
        if isinstance(error, AttributeError) and error.name is not None:
            value.attrs["name"] = Constant(error.name)
        return value

    def is_exception(self, value: Value, cls) -> bool:
        return value.is_exception(cls)

    def real_exception(self, value: ObjectValue) -> Exception:
        """The exception object itself, when its arguments are constants."""
        if value.obj is not None and value.source is not None:
            cls = value.pytype(self)
            given = self.wrap(value.obj.args, src.GetAttr(value.source, "args"))
            if (cls.__str__ not in (BaseException.__str__, KeyError.__str__)
                or cls.__repr__ is not BaseException.__repr__ or not given.is_const()):
                raise Unsupported(f"the text of {value.describe()}, which comes from outside", kind="format")
            given.const(self)
        return value.obj if value.obj is not None else value.cls.__new__(value.cls,
                                                                         *(a.const(self) for a in value.init_args))

    # -- numbers ------------------------------------------------------------------------------------------------------

    def method_of_constants(self, name: str, owner, other: object) -> Value | None:
        """What a special method of a constant gives for another one; None for NotImplemented."""
        result = self.fold(getattr(type(owner.const(self)), name), [owner, other], {})
        return None if result.is_plain and result.const(self) is NotImplemented else result

    def fold(self, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a pure function for real on constant arguments."""
        real = [a.const(self) for a in args]
        real_kw = {k: v.const(self) for k, v in kwargs.items()}
        return self.from_python(self.really(fn, *real, **real_kw))

    def really(self, fn, *args, **kwargs):
        """``fn(*args, **kwargs)``, called now, as the program would: what it raises is an exception of the program."""
        try:
            return fn(*args, **kwargs)
        except (Raised, JitError):  # of values that it was given
            raise
        except Exception as error:  # whatever these arguments lead to
            raise Raised(self.exception(error)) from None


def _followed(session: weakref.ref[Session]) -> Loc | None:
    """The place of the instruction that a session is executing."""
    s = session()
    return None if s is None else s.recording.location()
