"""The library: copies of objects, regular expressions, type expressions, operators of torch.library. Each program is
captured whole."""

import collections
import collections.abc
import copy
import functools
import importlib.metadata
import re
import typing

import torch
from frame_harness import Cases

import jit

VECTOR = torch.arange(3.0)
cases = Cases()
DIGITS = re.compile(r"(\d+)b")


class Settings:
    def __init__(self):
        self.size, self.names, self.kinds, self.dtype, self.me = 1, ["a", "b"], {"x"}, torch.float32, self
        self.nested = collections.OrderedDict(deep={"list": [1, 2]})


class WithState(Settings):
    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "names"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.names = "restored"


class Reduced:
    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return Reduced, (self.n + 1,)


class Row(list):
    pass


SETTINGS, WITH_STATE, ROW = Settings(), WithState(), Row([1, [2]])
ROW.name = "row"


@cases()
def deep_copies(x):
    made = copy.deepcopy(SETTINGS)
    made.nested["deep"]["list"].append(3)
    made.kinds.add("y")
    return made, made.me is made, made.nested is SETTINGS.nested, SETTINGS.nested, x + made.size


@cases()
def copies_by_state(x):
    a, b, c = copy.deepcopy(WITH_STATE), copy.copy(SETTINGS), copy.deepcopy(Reduced(4))
    return a.names, a.size, b.names is SETTINGS.names, c.n, x


@cases()
def copies_share(x):
    first, second, row = copy.deepcopy([SETTINGS, SETTINGS, ROW])
    return first is second, type(row).__name__, row.name, list(row), row[1] is ROW[1], x


@cases()
def regular_expressions(x):
    m, n = re.match(r"(a+)(\d)", "aaa3"), DIGITS.search("xx 12b")
    return (re.sub("[-_.]+", "_", "a-.b"), m.group(1), m[2], n.span(), DIGITS.sub("Q", "1b2b"),
            re.match("x", "y") is None, x + int(m.group(2)), DIGITS.findall("1b3b"), bool(m),
            re.compile("a.c").fullmatch("abc").group(), re.split(",", "a,b"))


@cases(raises=True)
def regular_expression_error(x):
    return re.compile("(")


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def get(self, x):
        return x + 1


@cases()
def type_expressions(x):
    outputs: typing.List[torch.Tensor] = torch.jit.annotate(typing.List[torch.Tensor], [])
    outputs.append(typing.cast(typing.Optional[torch.Tensor], x * 2))
    forms = (typing.Dict[str, typing.Tuple[int, ...]], typing.Callable[[int, Box], str], typing.Literal["a"],
             typing.Union[int, str], list[int], int | None)
    try:
        typing.List[int, str]
    except TypeError as error:
        return (outputs, forms, typing.List[T][int], Box[int]().get(x), typing.Optional[int] is typing.Optional[int],
                str(error))


@cases()
def generic_classes(x):
    made = (collections.abc.Callable[[int], str], collections.abc.Sequence[int], list[int],
            collections.OrderedDict[str, int])
    return len(made), [m.__origin__ for m in made], x + 1


@functools.cache
def version_of(name, part=0):
    return int(importlib.metadata.version(name).split(".")[part])


@cases()
def cached_questions_to_the_system(x):
    return x + version_of("torch") + version_of("torch", part=1)


class Slotted:
    __slots__ = ("a", "b", "__private")

    def __init__(self, a):
        self.a, self.__private = a, 5


class Stated:
    def __init__(self, n):
        self.n = n

    def __getstate__(self):
        return {"n": self.n + 1}

    def __setstate__(self, state):
        self.m = state["n"]


class Plain:
    pass


@cases(VECTOR)
def copies_of_objects_with_slots_or_states(x):
    s, o = Slotted(x), Stated(1)
    t, p = copy.copy(s), copy.copy(o)
    return (t.a is s.a, t, hasattr(t, "b"), p, copy.deepcopy(Slotted([1])), object.__getstate__(Slotted(2)),
            Plain().__getstate__(), copy.copy(Plain()))


test_library = cases.test()


@torch.library.custom_op("jit_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


scaled.register_fake(lambda x, factor=2.0: torch.empty_like(x))
scaled.register_autograd(lambda ctx, grad: (grad * ctx.factor, None),
                         setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]))


def test_operators_of_a_library():
    def program(x):
        return torch.ops.jit_tests.scaled(x + 1) * 3 + torch.ops.jit_tests.scaled.default(x, 0.5) + scaled(x, 4.0)

    for backend in ("eager", None):
        whole = jit.compile(program, fullgraph=True, backend=backend)
        compiled = jit.compile(program, backend=backend)  # in the backward the operator is not called again
        ours, theirs = torch.arange(6.0).requires_grad_(), torch.arange(6.0).requires_grad_()
        for _ in range(2):
            ours.grad = theirs.grad = None
            compiled(ours).square().sum().backward()
            program(theirs).square().sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad)
            torch.testing.assert_close(whole(ours.detach()), program(ours.detach()))


class Made(collections.OrderedDict):
    """Holds classes, gives instances."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


ACTIVATIONS = Made(relu=torch.nn.ReLU, tanh=torch.nn.Tanh)


def test_a_dict_with_its_own_subscript():
    def program(x, name):
        return ACTIVATIONS[name](x), dict.__getitem__(ACTIVATIONS, name)

    compiled = jit.compile(program, fullgraph=True, backend="eager")
    x = torch.tensor([-1.0, 1.0])
    before = jit.compile_count()
    for _ in range(3):
        got = compiled(x, "relu")
        assert torch.equal(got[0], x.relu()) and got[1] is torch.nn.ReLU
    assert jit.compile_count() == before + 1
    try:
        ACTIVATIONS["relu"] = torch.nn.Tanh
        assert torch.equal(compiled(x, "relu")[0], x.tanh())
    finally:
        ACTIVATIONS["relu"] = torch.nn.ReLU


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x * 2 + n

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp(), x - 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx, a, b):
        return a * ctx.saved_tensors[0] + b


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x


def test_autograd_functions():
    def program(x):
        a, b = Split.apply(Doubled.apply(x, 3))
        return a, b + 1

    def same(x):
        y = Same.apply(x)
        return y + 1, y is x

    whole, any_ = (jit.compile(program, backend="eager", fullgraph=f) for f in (True, False))
    x = torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(whole(x), program(x))
        assert jit.compile(same, backend="eager")(x)[1] == same(x)[1]
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        sum(t.sum() for t in any_(ours)).backward()
        sum(t.sum() for t in program(theirs)).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
