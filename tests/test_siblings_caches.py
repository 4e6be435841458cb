"""Layers that read and write objects and lists that the model has made, as layers do that keep keys and values: they
are told by their siblings (``jit/frame/given.py``) where what they read there looks alike, and followed where not."""

import enum
import sys

import jit
import pytest
import torch
from test_siblings import N, Block, Model, compare, told
from torch import nn

assert told  # a fixture


class State:
    """What one layer keeps."""

    filled, ready = False, 0

    def __init__(self):
        self.keys = self.values = None

    def update(self, keys, values):
        if not self.filled:
            self.first, self.filled = keys, True
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 0)
        self.values = values
        return self.keys, self.values


class Cache:
    def __init__(self, n=N):
        self.layers, self.total, self.count, self.log = [State() for _ in range(n)], None, 0, []
        self.on, self.seen, self.names = True, {1: False}, {}

    def update(self, keys, values, index, **kwargs):
        return self.layers[index].update(keys, values)


class Keeping(Block):
    def __init__(self, index, **kwargs):
        super().__init__(**kwargs)
        self.index = index

    def forward(self, x, cache):
        h = super().forward(x)
        keys, values = cache.update(h * 2, h + 1, self.index)
        return x + 0.1 * torch.tanh(keys[:len(x)] * values)


def contents(value):
    """All that an object leads to, as tensors, numbers and containers of those, with the order of the attributes."""
    if isinstance(value, (list, tuple)):
        return [contents(v) for v in value]
    if isinstance(value, dict):
        return {k: contents(v) for k, v in value.items()}, [sorted(value).index(k) for k in value]
    if isinstance(value, (State, Cache)):
        return contents(vars(value))
    return value if isinstance(value, (torch.Tensor, int)) else -1


class Caching(Model):
    """Makes a cache, gives it to its layers, and gives back what is in it."""

    make = Cache

    def between(self, k, x, cache):
        return x

    def forward(self, x):
        cache = self.make()
        for k, block in enumerate(self.blocks):
            x = self.between(k, block(x, cache), cache)
        return x, contents(cache), [state is cache.layers[0] for state in cache.layers]


def layers(cls=Keeping, n=N):
    torch.manual_seed(0)
    return [cls(k) for k in range(n)]


@pytest.mark.parametrize("grad", [True, False])
def test_each_layer_has_a_place_of_its_own(told, grad):
    compare(Caching(layers()), torch.randn(3, 8), grad=grad)
    assert told.count("Keeping") >= N - 2


def test_layouts_and_several_sizes(told):
    model = Caching(layers())
    compiled = jit.compile(model)
    with torch.no_grad():
        for x in (torch.randn(3, 8), torch.randn(8, 3).t(), torch.randn(1, 8).expand(3, 8), torch.randn(6, 8)[::2],
                  torch.randn(5, 8)):
            torch.testing.assert_close(compiled(x), model(x))
    assert told.count("Keeping") >= N - 2


class Asking(Keeping):
    """The number is asked for more than a place."""

    def forward(self, x, cache):
        if self.index == 2:
            x = x * 2
        return super().forward(x, cache)


class Scaling(Keeping):
    def forward(self, x, cache):
        return super().forward(x, cache) * (self.index + 1)


class Noting(Keeping):
    """The number is written down."""

    def forward(self, x, cache):
        cache.layers[self.index].number = self.index
        return super().forward(x, cache)


class Summing(Keeping):
    """All that is there is asked."""

    def forward(self, x, cache):
        return super().forward(x, cache) * (1 + sum(state.filled for state in cache.layers))


class Counting(Keeping):
    def forward(self, x, cache):
        cache.count += 1
        return super().forward(x, cache) * cache.count


class Adding(Keeping):
    """Each reads what the one before has written."""

    def forward(self, x, cache):
        y = super().forward(x, cache)
        cache.total = y if cache.total is None else cache.total + y
        return y + cache.total


class Appending(Keeping):
    def forward(self, x, cache):
        y = super().forward(x, cache)
        cache.log.append(y)
        return y


class AppendingStates(Keeping):
    """A new object is made and kept."""

    def forward(self, x, cache):
        y, state = super().forward(x, cache), State()
        state.update(y, [y, x])
        cache.log.append((state, self.index))
        return y


class ReadingBack(Keeping):
    def forward(self, x, cache):
        cache.log.append(x)
        return super().forward(x, cache) + cache.log[-1] * len(cache.log)


class Measuring(Keeping):
    def forward(self, x, cache):
        return super().forward(x, cache) * len(cache.log) + len(cache.layers)


class Setting(Keeping):
    """The list itself is changed."""

    def forward(self, x, cache):
        cache.layers[self.index] = State()
        return super().forward(x, cache)


class Comparing(Keeping):
    def forward(self, x, cache):
        mine = cache.layers[self.index]
        return super().forward(x, cache) * (2 if mine is cache.layers[0] else 3)


class Backwards(Keeping):
    def forward(self, x, cache):
        return super().forward(x, cache) + cache.layers[self.index - N].keys[:3]


class FromTheEnd(Keeping):
    def __init__(self, index):
        super().__init__(index - N)


class Deleting(Keeping):
    def forward(self, x, cache):
        state = cache.layers[self.index]
        state.mark = x
        del state.mark
        return super().forward(x, cache)


class Looking(Keeping):
    """By names, and by what is not there."""

    def forward(self, x, cache):
        state = cache.layers[self.index]
        names = len(vars(state)) + sum(name == "keys" for name in state.__dict__) + hasattr(state, "first")
        return super().forward(x, cache) * (1 + hasattr(state, "first")) + getattr(state, "missing", 3) + names


class LookingAfter(Keeping):
    """Partly at what it has written itself."""

    def forward(self, x, cache):
        y, state = super().forward(x, cache), cache.layers[self.index]
        return y + len(vars(state)) + sum(name == "first" for name in state.__dict__)


class Tabling(Keeping):
    def forward(self, x, cache):
        if not hasattr(cache, "table"):
            cache.table = {}
        cache.table[self.index] = x
        return super().forward(x, cache)


class Filling(Keeping):
    """A dict by number: what is there, what is not, and what is put there."""

    def forward(self, x, cache):
        known = cache.seen.get(self.index)
        if self.index in cache.seen:
            x = x + 1
        cache.seen[self.index] = True if known is None else 7
        return super().forward(x, cache)


class Named(Keeping):
    def __init__(self, index):
        super().__init__(index)
        self.name = f"layer {index % 3}"

    def forward(self, x, cache):
        cache.names[self.name] = x
        return super().forward(x, cache)


class NamedTwice(Named):
    """An entry that an earlier layer may have put there is read behind that."""

    def forward(self, x, cache):
        y = super().forward(x, cache)
        return y + cache.names["layer 0"]


class Neighbour(Keeping):
    """What is written under one number is read under another one, which may be the same."""

    def forward(self, x, cache):
        cache.seen[self.index % 2] = x
        return super().forward(x, cache) + cache.seen.get(0, 3)


class WholeTable(Keeping):
    def forward(self, x, cache):
        cache.seen[self.index] = x
        return super().forward(x, cache) + len(cache.seen) + sum(cache.seen)


class Missing(Keeping):
    def forward(self, x, cache):
        try:
            return super().forward(x, cache) + cache.seen[self.index]
        except KeyError as error:
            return super().forward(x, cache) + error.args[0]


class Bounded(Keeping):
    """As a cache that looks whether there is such a layer."""

    def forward(self, x, cache):
        n = 0 if self.index >= len(cache.layers) else cache.layers[self.index].ready
        return super().forward(x, cache) * (n + 2 if 3 > self.index else n + 3)


class Twice(Keeping):
    def forward(self, x, cache):
        y = super().forward(x, cache)
        return super().forward(y, cache)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("cls, least", [
    (Asking, N - 3), (Scaling, 0), (Noting, 0), (Summing, 0), (Counting, 0), (Adding, N - 2), (Appending, N - 2),
    (AppendingStates, 0), (ReadingBack, 0), (Measuring, N - 2), (Setting, 0), (Comparing, 0), (Backwards, 0),
    (FromTheEnd, N - 2), (Deleting, 0), (Looking, N - 2),
    (LookingAfter, 0), (Tabling, N - 3), (Twice, N - 2), (Filling, N - 3), (Named, 1), (NamedTwice, 0),
    (Neighbour, 0), (WholeTable, 0), (Missing, 0), (Bounded, N - 3)], ids=lambda v: getattr(
        v, "__name__", ""))
def test_layers(told, cls, least, grad):
    torch.manual_seed(1)
    model = Caching(layers(cls))
    compare(model, torch.randn(3, 8), grad=grad, same_facts=False, atol=1e-4)
    assert told.count(cls.__name__) >= least


class Between(Caching):
    what = "fill"

    def between(self, k, x, cache):
        if self.what == "fill" and k == 1:
            cache.layers[3].update(x, x)
        elif self.what == "wider" and k == 1:
            cache.layers[3].keys = torch.cat([x, x])
        elif self.what == "replace" and k == 1:
            cache.layers[3] = State()
        elif self.what == "same object" and k == 1:
            cache.layers[3] = cache.layers[2]
        elif self.what == "flag" and k == 2:
            cache.on = False
        elif self.what == "class" and k == 1:
            cache.layers[3] = Other()
        elif self.what == "method" and k == 2:
            cache.layers[3].update = lambda keys, values: (values, keys)
        elif self.what == "same tensor" and k == 1:
            cache.layers[3].keys = cache.layers[4].keys = x
        elif self.what == "in place" and k == 1:
            cache.layers[0].keys.add_(1)
        elif self.what == "kept" and k == 1:
            self.kept[0] = cache
        elif self.what == "shorter" and k == 2:
            cache.layers.append(cache.layers.pop(0))
        return x


class Other(State):
    def update(self, keys, values):
        return values, keys


class Switched(Keeping):
    def forward(self, x, cache):
        return super().forward(x, cache) * (1 if cache.on else 2)


@pytest.mark.parametrize("what", ["fill", "wider", "replace", "same object", "flag", "class", "method", "same tensor",
                                  "in place", "kept", "shorter"])
def test_what_changes_between(told, what):
    model = Between(layers(Switched))
    model.what, model.kept = what, [None]
    with torch.no_grad():
        x = torch.randn(3, 8)
        expected, found = model(x), jit.compile(model)(x)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


class Shared(Caching):
    """Two layers have one place."""

    def make(self):
        cache = Cache()
        cache.layers[2] = cache.layers[1]
        return cache


def test_a_shared_place(told):
    compare(Shared(layers()), torch.randn(3, 8), same_facts=False)


def test_a_place_that_is_not_there(told):
    class Short(Caching):
        def make(self):
            return Cache(N - 1)

    model, x = Short(layers()), torch.randn(3, 8)
    with pytest.raises(IndexError), torch.no_grad():
        jit.compile(model)(x)


def test_each_number_is_guarded(told):
    """Which place a layer has is a fact about each layer."""
    model, x = Caching(layers()), torch.randn(3, 8)
    compiled = jit.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        assert told.count("Keeping") >= N - 2
        model.blocks[3].index, model.blocks[4].index = 4, 3
        torch.testing.assert_close(compiled(x), model(x))
        model.blocks[2].index = 0
        torch.testing.assert_close(compiled(x), model(x))


class Inside(nn.Module):
    """The layer that keeps is inside of another one, which is not like its siblings."""

    def __init__(self, index):
        super().__init__()
        self.keeping, self.scale = Keeping(index), 1.0 + index

    def forward(self, x, cache):
        return self.keeping(x, cache) * self.scale


class InsideAlike(Inside):
    def __init__(self, index):
        super().__init__(index)
        self.scale = 1.5


@pytest.mark.parametrize("cls", [Inside, InsideAlike])
@pytest.mark.parametrize("grad", [True, False])
def test_layers_inside(told, cls, grad):
    compare(Caching(layers(cls)), torch.randn(3, 8), same_facts=False, grad=grad)
    assert told.count("Keeping" if cls is Inside else "InsideAlike") >= N - 2


class Wrapped(Caching):
    """The cache comes inside of other things."""

    def forward(self, x):
        cache = Cache()
        for block in self.blocks:
            x = block(x, caches=(cache, {"more": [cache]}))
        return x, contents(cache)


class Unwrapping(Keeping):
    def forward(self, x, caches):
        cache, more = caches
        return super().forward(x, cache if more["more"][0] is cache else None)


def test_caches_inside_of_containers(told):
    compare(Wrapped(layers(Unwrapping)), torch.randn(3, 8), same_facts=False)
    assert told.count("Unwrapping") >= N - 2


class Input:
    """What a layer is given, made anew for each."""

    def __init__(self, x, factor):
        self.x, self.factor, self.steps = x, factor, 0


class Taking(Block):
    def forward(self, given):
        given.steps = 1
        made = Input(super().forward(given.x) * given.factor, given.factor)
        made.before = given
        return made


class Passing(Model):
    def forward(self, x, other):
        given = Input(x, 2.0)
        seen = []
        for k, block in enumerate(self.blocks):
            given.factor = 3.0 if k == other else 2.0
            given = block(given)
            seen.append((given.before.steps, given.steps, given.factor))
        return given.x, given.before.x, seen


@pytest.mark.parametrize("other, least", [(None, N - 2), (2, 1)])
def test_objects_that_come_and_go(told, other, least):
    torch.manual_seed(0)
    compare(Passing([Taking() for _ in range(N)]), torch.randn(3, 8), other, same_facts=False)
    assert told.count("Taking") >= least


class Settings:
    """An object that the layers share, with methods in Python."""

    def __init__(self):
        self.gain, self.seen, self.names = 2.0, 0, ["a"]

    def __getattribute__(self, name):
        return super().__getattribute__({"size": "gain"}.get(name, name))

    def same(self, values):
        return values

    def fresh(self):
        return [self.gain]

    def count(self):
        self.seen += 1
        return self.seen

    def listed(self):
        return self.names


class Consulting(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = Settings()

    def forward(self, x):
        s, a, b = self.settings, [1], [1]
        first, second = s.same(a), s.same(b)
        fresh, again = s.fresh(), s.fresh()
        fresh.append(1)
        before = s.size
        x = x * before
        s.gain = 3.0
        x = x * s.size + s.count() * s.count()
        names = s.listed()
        names.append("b")
        return (x, first is a, second is b, first is second, fresh, again, fresh is again, s.count(),
                len(s.listed()), s.listed() is names, s.fresh())


def test_the_same_call_again():
    eager, model, x = Consulting(), Consulting(), torch.randn(3)
    compiled = jit.compile(model)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), eager(x))
    assert vars(model.settings) == vars(eager.settings)


def test_the_same_call_is_followed_twice(monkeypatch):
    from jit.frame.calls import Calls

    followed, original = [], Calls.inline

    def watched(self, fn, args, kwargs, direct=False, anew=False):
        if anew:
            followed.append(fn.code.co_name)
        return original(self, fn, args, kwargs, direct, anew)

    monkeypatch.setattr(Calls, "inline", watched)
    settings, x = Settings(), torch.randn(3)
    torch.testing.assert_close(jit.compile(lambda x: sum(x * settings.size for _ in range(9)))(x),
                               sum(x * 2.0 for _ in range(9)))
    assert followed.count("__getattribute__") == 2  # nothing is noted of the first one: most calls are made once


class Named2:
    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name


class Noted(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.linear, self.kept = nn.Linear(8, 8), Named2(f"layer {k}")

    def forward(self, x, cache):
        y = torch.tanh(self.linear(x))
        cache.log.append(y)
        cache.total = y
        return y, self.kept.name


class Pair(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.a, self.b = Noted(k), Noted(k)

    def forward(self, x, cache):
        y, _ = self.a(x, cache)
        z, _ = self.b(y, cache)
        return y + z


class Logging(Caching):
    """Gives back the very list to which the layers append."""

    def forward(self, x):
        cache = self.make()
        for block in self.blocks:
            x = block(x, cache)
        return x, cache.log, cache.total


@pytest.mark.parametrize("grad", [True, False])
def test_what_is_taken_back_leaves_no_note(grad):
    """The inner layers cannot tell each other, which shows when what one has written is replayed."""
    model, x = Logging([Pair(k) for k in range(N)]), torch.randn(3, 8)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(jit.compile(model)(x), model(x), atol=1e-4, rtol=1e-4)


class ClassesInside(Caching):
    """The cache is of a class that is made at each call, with methods that read what changes between the layers."""

    def forward(self, x):
        k, seen = 0, []

        class Made(Cache):
            def now(self):
                return k

            @property
            def size(self):
                return len(seen)

        cache = Made()
        for block in self.blocks:
            x = block(x, cache)
            k += 1
            seen.append(k)
        return x


class Inquiring(Block):
    def forward(self, x, cache):
        return super().forward(x) * (1 + cache.now() + 10 * cache.size) / 100


def test_classes_made_inside():
    torch.manual_seed(0)
    model, x = ClassesInside([Inquiring() for _ in range(N)]), torch.randn(3, 8)
    torch.testing.assert_close(jit.compile(model)(x), model(x), atol=1e-4, rtol=1e-4)


class Alike(type):
    def __eq__(cls, other):
        return isinstance(other, Alike)

    def __hash__(cls):
        return 7


class One(metaclass=Alike):
    def number(self):
        return 1


class Two(metaclass=Alike):
    def number(self):
        return 2


class Mode(int, enum.Enum):
    SLOW, FAST = 1, 2

    def __repr__(self):
        return "mode"


class Marked(Block):
    def forward(self, x, one, mode, number):
        return super().forward(x) * (one.number() + (3 if mode is Mode.FAST else 5) + number % 7) / 10


class Marking(Model):
    def forward(self, x):
        modes = list(Mode)
        for k, block in enumerate(self.blocks):
            x = block(x, One() if k % 2 else Two(), modes[k % 2], 10 ** 5000 + (k > 2))
        return x


def test_what_only_seems_alike():
    """Classes that say that they are equal, members of an enumeration that look the same, and very large numbers."""
    torch.manual_seed(0)
    model, x = Marking([Marked() for _ in range(N)]), torch.randn(3, 8)
    torch.testing.assert_close(jit.compile(model)(x), model(x), atol=1e-4, rtol=1e-4)


class Place:
    """Stands for a number; asking for it asks for more."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


HELD = Place(0)


def memo(model, x):
    HELD.memo = x = x + 1
    for block in model.blocks:
        x = block(Memory.use, x)
    return x


class Memory:
    @staticmethod
    def use(y, x, me):
        return y * (2 if x is HELD.memo else 3)


def class_outside(model, x):
    n = 0

    class Made:
        def now(self):
            return n

    HELD.made = Made()
    for block in model.blocks:
        n += 1
        x = block(Nowness.now, x)
    return x


class Nowness:
    @staticmethod
    def now(y, x, me):
        return y * HELD.made.now()


def handled(model, x):
    for k, block in enumerate(model.blocks):
        try:
            raise ValueError(k)
        except ValueError:
            x = block(Handling.now, x)
    return x


class Handling:
    @staticmethod
    def now(y, x, me):
        return y * (1 + sys.exc_info()[1].args[0])


class Through(Block):
    def forward(self, then, x, *more):
        return then(torch.tanh(super().forward(x)), x, self, *more)


def indexed(model, x):
    places = [State() for _ in model.blocks]
    for block in model.blocks:
        x = block(Indexing.mark, x, places)
    return x, [place.ready for place in places]


class Indexing:
    @staticmethod
    def mark(y, x, me, places):
        places[Place(me.place)].ready = 1
        return y


def tagged(model, x):
    tensors = [x * k for k in range(N)]
    for k, tensor in enumerate(tensors):
        tensor.tag = k
    for block, tensor in zip(model.blocks, tensors):
        x = block(Tagging.use, x, tensor)
    return x


class Tagging:
    @staticmethod
    def use(y, x, me, tensor):
        return y * tensor.tag + tensor


def keyed(model, x):
    objects = [State() for _ in model.blocks]
    numbers = {o: k for k, o in enumerate(objects)}
    for block, o in zip(model.blocks, objects):
        x = block(Keyed.use, x, numbers, o)
    return x


class Keyed:
    @staticmethod
    def use(y, x, me, numbers, o):
        return y * numbers[o] + (o in numbers)


def put_behind(model, x):
    for block in model.blocks:
        x = block(Behind.put, x, {3: 0})
    return x


class Behind:
    @staticmethod
    def put(y, x, me, table):
        before = len(table)
        table[me.place] = 1
        return y * (before + 10 * len(table))


def nested(model, x):
    t = (x,)
    for _ in range(40):
        t = (t, t)
    for block in model.blocks:
        x = block(Nesting.use, x, t)
    return x


class Nesting:
    @staticmethod
    def use(y, x, me, t):
        return y + len(t)


class Looped(Model):
    def __init__(self, blocks, program):
        super().__init__(blocks)
        self.program = program
        for k, block in enumerate(blocks):
            block.place = k

    def forward(self, x):
        return self.program(self, x)


@pytest.mark.parametrize("program", [memo, class_outside, handled, indexed, tagged, keyed, put_behind, nested],
                         ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [True, False])
def test_what_tells_layers_apart(program, grad):
    torch.manual_seed(0)
    model, x = Looped([Through() for _ in range(N)], program), torch.randn(3, 8)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(jit.compile(model)(x), model(x), atol=1e-4, rtol=1e-4)


class SelfContaining(Block):
    def forward(self, x):
        made = [super().forward(x)]
        made.append(made)
        return made


class Circles(Model):
    def forward(self, x):
        found = []
        for block in self.blocks:
            made = block(x)
            x = made[0]
            found.append(made[1] is made)
        return x, found


def test_lists_that_contain_themselves():
    torch.manual_seed(0)
    model, x = Circles([SelfContaining() for _ in range(N)]), torch.randn(3, 8)
    torch.testing.assert_close(jit.compile(model, fullgraph=True)(x), model(x), atol=1e-4, rtol=1e-4)
