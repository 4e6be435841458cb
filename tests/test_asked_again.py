"""What is asked of the same object again is told by the first answer, and only while nothing that it depends on has
changed: against eager, with kernels."""

import contextvars
import threading

import pytest
import torch

import jit
from jit.frame import executor


def follows(monkeypatch, run):
    """How often ``run`` enters a frame while it is captured, by the name of the function."""
    entered, run_inlined = [], executor.Frame.run_inlined

    def counted(frame):
        entered.append(frame.fn.code.co_name)
        return run_inlined(frame)

    monkeypatch.setattr(executor.Frame, "run_inlined", counted)
    run()
    monkeypatch.setattr(executor.Frame, "run_inlined", run_inlined)
    return entered


class Config:
    """Says itself what its attributes are, as the configurations of transformers do."""

    attribute_map = {"width": "hidden"}

    def __init__(self):
        self.hidden, self.layers, self.kinds = 3, 12, ["a", "b"]

    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)

    def size(self):
        return self.hidden * 2


class Lazy:
    def __init__(self):
        self.seen = 1

    def __getattr__(self, name):
        if name.startswith("is_"):
            return len(name)
        raise AttributeError(name)


class View:
    def __init__(self, config):
        self.config, self.at, self.items = config, 0, []

    def __len__(self):
        return self.config.layers

    def first(self):
        return self.items[0]

    def count(self):
        return len(self.items)

    def put(self, item):
        self.items.append(item)
        return 1

    def same(self):
        return self

    def position(self):
        return self.at


config, lazy = Config(), Lazy()


def check(fn, *inputs):
    compiled = jit.compile(fn)
    for x in inputs or (torch.randn(4), torch.randn(6, 2).t(), torch.empty(0)):
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)


def asked_of_an_outside_object(x):
    for _ in range(config.layers):
        x = x * config.width + (getattr(config, "missing", None) is None) + hasattr(config, "other")
    return x


def asked_of_a_class_with_getattr(x):
    for _ in range(8):
        x = x + getattr(lazy, "is_long", 0) + getattr(lazy, "other", 5) + hasattr(lazy, "seen")
    return x


def asked_of_a_made_object(x):
    view = View(config)
    for _ in range(8):
        x = x * len(view) / 12
    return x


@pytest.mark.parametrize("fn,name,most", [(asked_of_an_outside_object, "__getattribute__", 8),
                                          (asked_of_a_class_with_getattr, "__getattr__", 4),
                                          (asked_of_a_made_object, "__len__", 2)])
def test_the_same_is_followed_a_few_times(fn, name, most, monkeypatch):
    compiled, x = jit.compile(fn), torch.randn(5)
    entered = follows(monkeypatch, lambda: compiled(x))
    assert 0 < entered.count(name) <= most
    check(fn)


def test_a_changed_attribute_of_an_outside_object():
    def fn(x):
        first = [getattr(config, "missing", 1) for _ in range(4)]
        config.missing = 7
        second = [getattr(config, "missing", 1) for _ in range(4)]
        config.missing = x + 1
        third = [getattr(config, "missing", 1) for _ in range(4)]
        del config.missing
        fourth = [hasattr(config, "missing") for _ in range(4)]
        return x * sum(first) + sum(second) + third[3] + sum(fourth)

    check(fn)
    assert not hasattr(config, "missing")


def test_between_calls():
    def fn(x):
        return x * sum([config.size() for _ in range(4)]) + sum([getattr(config, "extra", 2) for _ in range(4)])

    compiled, x = jit.compile(fn), torch.randn(4)
    assert torch.equal(compiled(x), fn(x))
    try:
        config.hidden, config.extra = 5, 4
        assert torch.equal(compiled(x), fn(x))
        del config.extra
        assert torch.equal(compiled(x), fn(x))
    finally:
        config.hidden = 3


def test_a_made_object_that_changes():
    def fn(x):
        view, found = View(config), []
        for k in range(9):
            found.append(view.position())
            if k % 4 == 3:
                view.at += k
        return x + sum(n * (i + 1) for i, n in enumerate(found))

    check(fn)


def test_a_list_in_a_made_object_that_changes():
    def fn(x):
        view, found = View(config), []
        for k in range(12):
            if k % 5 == 0:
                view.put(k)
            found += [view.count(), view.count(), view.first(), view.first()]
            if k % 3 == 2:
                view.items[0] = k + 10
            if k == 8:
                view.items = [1.5]
        return x + sum(n * (i + 1) for i, n in enumerate(found))

    check(fn)


def test_what_is_given_back_is_the_object_that_is_there_now():
    def fn(x):
        view, total = View(config), x
        one, two = View(config), View(config)
        one.at, two.at = 1, 2
        view.put(one)
        for k in range(9):
            total = total + view.first().at * (k + 1)
            assert view.first() is (one if k < 4 else two)
            if k == 3:
                view.items[0] = two
            assert view.same() is view
        return total

    check(fn)


def test_tensors_in_a_made_object():
    def fn(x):
        view, total = View(config), x
        view.put(x * 2)
        for k in range(9):
            total = total + view.first() + view.first() * (k + 1)
            if k % 4 == 3:
                view.items[0] = total - k
        return total

    check(fn)


def test_a_call_that_writes_is_followed_each_time():
    def fn(x):
        view = View(config)
        total = sum([view.put(k) for k in range(7)])
        return x + total + len(view.items) + sum(view.items)

    check(fn)


def test_a_class_that_changes_inside():
    class Kind:
        factor = 2

        def of(self):
            return self.factor

    kind = Kind()

    def fn(x):
        made, total = Kind(), x
        for k in range(9):
            total = total * kind.of() + made.of()
            if k == 4:
                Kind.factor = 3
        Kind.factor = 2
        return total

    check(fn)


def test_two_made_objects_of_one_class():
    def fn(x):
        one, two, total = View(config), View(config), x
        one.at = 4
        for _ in range(5):
            total = total * one.position() - two.position() + len(one) - len(two)
        return total

    check(fn)


def test_an_attribute_that_is_missing_raises_each_time():
    def fn(x):
        raised = 0
        for _ in range(6):
            try:
                lazy.nothing
            except AttributeError as error:
                raised += len(error.args[0])
        return x + raised

    check(fn)


def test_gradients():
    def fn(x):
        view, total = View(config), x
        view.put(x * 2)
        for k in range(5):
            total = total * view.first() + len(view) * getattr(config, "missing", 2)
        return total

    x = torch.randn(5, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    jit.compile(fn)(x).sum().backward()
    fn(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


numbers, table, factor = [1, 2], {"a": 1}, 3
variable, own = contextvars.ContextVar("variable", default=1), threading.local()
own.x = 1


class Asked:
    kind = 2

    def __init__(self):
        self.items, self.tensor, self.steps = [1, 2], None, iter(range(50))

    def __getattr__(self, name):
        if name == "computed":
            return len(numbers) + table["a"]
        raise AttributeError(name)

    def answers(self):
        return [self.mode(), self.autocast(), self.length(), self.total(), self.entry(), self.entries(), self.number(),
                self.context(), self.of_thread(), self.of_class(), self.last(), self.empty(), self.rows(),
                hasattr(self, "late"), getattr(self, "computed", 0), getattr(self, "absent", -1)]

    def mode(self): return torch.is_grad_enabled()
    def autocast(self): return torch.is_autocast_enabled("cpu")
    def length(self): return len(numbers)
    def total(self): return sum(numbers)
    def entry(self): return table["a"]
    def entries(self): return len(table)
    def number(self): return factor
    def context(self): return variable.get()
    def of_thread(self): return own.x
    def of_class(self): return self.kind
    def last(self): return self.items[-1]
    def empty(self): return self.tensor is None
    def rows(self): return 0 if self.tensor is None else self.tensor.shape[0]
    def step(self): return next(self.steps)


outside = Asked()


def changes_all_that_may_be_read(x, asked):
    global factor
    found = []

    def ask():
        for _ in range(4):
            found.extend(asked.answers())

    ask()
    with torch.no_grad():
        ask()
    with torch.autocast("cpu"):
        ask()
    numbers.append(7)
    ask()
    numbers[0] = 9
    ask()
    table["a"] = 5
    ask()
    table["b"] = 5
    ask()
    factor = 4
    ask()
    before = variable.set(6)
    ask()
    variable.reset(before)
    ask()
    own.x = 5
    ask()
    asked.items.append(3)
    ask()
    asked.items[-1] = 8
    ask()
    asked.tensor = x * 2
    ask()
    asked.tensor = torch.cat([x, x])
    ask()
    asked.late = asked.absent = 1
    ask()
    del asked.late, asked.absent
    ask()
    found.extend([asked.step() for _ in range(5)])
    own.x, factor, table["a"], numbers[0] = 1, 3, 1, 1
    numbers.pop()
    del table["b"]
    return x + 1, [float(v) for v in found]


def of_an_outside_object(x):
    outside.items, outside.tensor, outside.steps = [1, 2], None, iter(range(50))
    return changes_all_that_may_be_read(x, outside)


def of_a_made_object(x):
    return changes_all_that_may_be_read(x, Asked())


@pytest.mark.parametrize("fn", [of_an_outside_object, of_a_made_object])
def test_everything_that_an_answer_may_depend_on(fn):
    compiled = jit.compile(fn)
    for x in (torch.randn(3), torch.randn(5, 2).t()[0], torch.empty(0)):
        (found, answers), (expected, wanted) = compiled(x), fn(x)
        assert torch.equal(found, expected) and answers == wanted
