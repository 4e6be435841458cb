"""Probes: eager is asked what it says to a call that is being traced, by making that call on made-up tensors of the
same types.

``StandIns`` makes the tensors and ``ask`` makes the call: without a gradient unless that is the question, apart from
autocast, drawing no numbers from the program's generators, unseen by its hooks, and without a warning. The ``Answer``
has the result or the error, and what autograd kept for the backward. Operators of the user's own are never asked so:
what they do is not known. Apart from this, a few rules make one small call of their own (which kernel attention takes,
the sizes of an LSTM's workspace, ``conventions``), and known values are computed by ``constants``.

Who asks what: ``aten`` types of results, ``shown`` which of them show memory of an argument, ``refusals`` errors,
``kept`` what autograd keeps, ``replay`` which gradients are defined, ``frame.values.deferred`` what kind of value is
read off a tensor.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from jit import torch_private, turns
from jit.by_class import by_class
from jit.devices import registered
from jit.errors import JitError
from jit.graph import unwritable
from jit.graph.dims import Dim, hint
from jit.graph.handles import TensorHandle
from jit.graph.ir import Node
from jit.graph.nested import mapped, of_kind, replaced
from jit.graph.sym_float import SymFloat

QUICK = 1 << 16  # elements up to which a call is made with data


class Described:
    """A tensor of a call that was made earlier: what a stand-in has to be like."""

    __slots__ = ("type", "requires_grad", "is_conj", "base", "number")

    def __init__(self, handle: TensorHandle) -> None:
        self.type, self.requires_grad, self.is_conj = handle.type, handle.requires_grad, handle.is_conj
        self.base, self.number = handle.base, handle.number


class StandIns:
    """Arguments with tensors in the place of handles and nodes, and numbers in that of symbols.

    Args:
        fill: a number that the tensors hold; None for values that are all different, between 0.1 and 1.1, and ones for
            integers.
        device: where they are made; None: each where the tensor is for which it stands.
        sizes: size -> another one to be used in its place. Dimensions lie in memory in the same order, and what could
            be seen as one dimension still can.
        grad: those of handles that require grad do so too, and are no leaves.
        leaves: nodes whose tensors are leaves that require grad.
        unwritable: those of handles that may not be written where gradients are recorded may not be either.
    """

    def __init__(self, fill: int | None = 0, device: str | None = "cpu", sizes: dict[int, int] | None = None,
                 grad: bool = False, leaves: Collection[Node] = (), unwritable: bool = False) -> None:
        self.fill, self.device, self.sizes, self.grad, self.leaves = fill, device, sizes, grad, leaves
        self.unwritable = unwritable
        self.made: dict = {}  # id of a handle or node -> its tensor, and what that is a view of

    def of(self, v: object) -> object:
        """The stand-in for an argument."""
        return mapped(self._of, v)

    def _of(self, v: object) -> object:
        stand_in = by_class(_STAND_INS, v)
        return v if stand_in is None else stand_in(self, v)

    def _shown(self, v: TensorHandle | Node | Described) -> torch.Tensor:
        if id(v) not in self.made:
            # Whatever the program's modes are: a result made under no_grad would have no history.
            with torch.inference_mode(False), torch.enable_grad():
                self.made[id(v)] = self._tensor(v)
        return self.made[id(v)][1]

    def _tensor(self, v: TensorHandle | Node | Described) -> tuple[torch.Tensor, ...]:
        t = v.type
        shape, strides = tuple(map(hint, t.shape)), tuple(map(hint, t.strides))
        if self.sizes:
            small = tuple(self.sizes.get(n, n) for n in shape)
            shape, strides = small, _laid_out_alike(shape, strides, small)
        x = torch.empty_strided(shape, strides, dtype=t.dtype, device=self.device or t.device)
        if self.device != "meta":
            self.fill_in(x)
        if not isinstance(v, Node):
            if self.grad and v.requires_grad:
                found = unwritable.which(v) if self.unwritable else None
                return x, _AS.get(found, _not_a_leaf)(x.requires_grad_())
            if v.is_conj:
                return x, x.conj()
        elif v in self.leaves:
            x.requires_grad_()
        return x, x

    @property
    def tensors(self) -> list:
        """All that were made, in order, as the call got them."""
        return [t for _, t in self.made.values()]

    def fill_in(self, x: torch.Tensor) -> None:
        """Fill all of a new tensor's memory, of which its elements may share some."""
        x = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,))
        if self.fill == 0:
            x.zero_()
        elif self.fill is not None:
            x.fill_(min(self.fill, _most(x.dtype)))
        elif x.dtype.is_floating_point or x.dtype.is_complex:
            steps = torch.arange(x.numel(), dtype=torch.float64)
            x.copy_(((steps * 0.6180339887).frac() + 0.1).view(x.shape))
        else:
            x.fill_(1)


def _most(dtype: torch.dtype) -> float:
    if dtype is torch.bool:
        return 1
    return (torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo)(dtype).max


_STAND_INS: dict[type, Callable] = {
    TensorHandle: StandIns._shown, Node: StandIns._shown, Described: StandIns._shown,
    Dim: lambda given, size: hint(size), SymFloat: lambda given, number: number.value,
    torch.Generator: lambda given, generator: None if given.device == "meta" else generator.clone_state(),
    torch.device: lambda given, device: torch.device("meta") if given.device == "meta" else device,
}


@contextlib.contextmanager
def without_traces() -> Iterator[None]:
    """A probe draws no numbers from the program's generators, warns of nothing, and is no part of autocast."""
    if turns.here():  # the program draws meanwhile: see ``OwnNumbers``
        with torch_private.WithoutAutocast(), without_warnings():
            yield
        return
    states = [(g, g.get_state()) for g in _default_generators()]
    try:
        with torch_private.WithoutAutocast(), without_warnings():
            yield
    finally:
        for generator, state in states:
            if not torch.equal(generator.get_state(), state):  # a GPU's may not be set while a CUDA graph is captured
                generator.set_state(state)


class _Unheard:
    """In place of a pattern for the texts of warnings: those of the thread in the background, while that is quiet."""

    quiet = 0

    def match(self, text: str) -> bool:
        return self.quiet > 0 and turns.here()


_unheard = _Unheard()
_FILTER = ("ignore", _unheard, Warning, None, 0)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """No warnings. In the background, not of this thread's: the filters are those of all threads, and the program may
    be setting them."""
    if turns.here():
        if not warnings.filters or warnings.filters[0] is not _FILTER:
            warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]
        _unheard.quiet += 1
        try:
            yield
        finally:
            _unheard.quiet -= 1
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class OwnNumbers(torch_private.DispatchMode):  # type: ignore[misc, valid-type]
    """Operators draw from a generator of the mode's own, where they may draw at all."""

    def __torch_dispatch__(self, fn: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, known = dict(kwargs or {}), torch_private.schema(fn).arguments
        names = [a.name for a in known]
        given = dict(zip(names, args)) | kwargs
        now = {a.name: a.default_value for a in known} | given
        if (("generator" in names or torch.Tag.nondeterministic_seeded in fn.tags) and now.get("generator") is None
            and not any(now.get(name, 1) == 0 for name in ("dropout_p", "p", "dropout"))):
            tensors = [t for t in torch_private.pytree.tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
            device = torch.device(now.get("device") or (tensors[0].device if tensors else "cpu"))
            if device.type != "meta":
                return _with_generator(fn, given)(**{**given, "generator": torch.Generator(device)})
        return fn(*args, **kwargs)


def _with_generator(fn: Any, given: dict) -> Any:
    """The overload of an operator that takes a generator besides ``given``."""
    wanted = {*given, "generator"}
    for op in (fn, *torch_private.overloads_of(fn.overloadpacket)):
        arguments = torch_private.schema(op).arguments
        if wanted <= {a.name for a in arguments} and not any(a.is_out for a in arguments):
            return op
    raise turns.InTheCall(f"{fn} is tried, which draws random numbers")


def own_numbers(fn: Callable) -> contextlib.AbstractContextManager:
    """A block for a call of ``fn`` in the background."""
    return OwnNumbers() if turns.here() and may_draw(fn) else contextlib.nullcontext()


# Whether a call may draw random numbers, by what knows the operators.
may_draw: Callable[[Callable], bool] = lambda fn: True  # noqa: E731


def _default_generators() -> list:
    """The CPU's, and those of GPUs that the program uses: some probes are made on the tensors' own device."""
    return [g for kind in registered() for g in kind.generators() or ()]


class Answer(NamedTuple):
    """What eager says to a call.

    Attributes:
        result: what it gives, None where it raises.
        error: what it raises, or None.
        given: the ``StandIns`` that it was called with.
        kept: ids of the storages that autograd keeps for the backward; empty unless that was asked.
    """

    result: object
    error: Exception | None
    given: StandIns
    kept: frozenset


def ask(fn: Callable, args: Sequence[object], kwargs: dict[str, object], given: StandIns, grad: bool = False,
        keeping: bool = False) -> Answer:
    """Call ``fn`` with stand-ins for handles, nodes and symbols among the arguments. ``grad``: in which grad mode;
    ``keeping``: whether to note what autograd keeps."""
    args, kwargs, kept = given.of(list(args)), given.of(dict(kwargs)), set()

    def pack(t: torch.Tensor) -> torch.Tensor:
        if keeping:
            kept.add(torch_private.storage_id(t))
        return t

    # The program's own hooks see nothing of what a probe saves.
    with (without_traces(), torch.set_grad_enabled(grad), _hooks(pack) if grad else contextlib.nullcontext(),
          own_numbers(fn)):
        try:
            return Answer(fn(*args, **kwargs), None, given, frozenset(kept))
        except JitError:
            raise
        except Exception as error:  # eager's own, which is what was asked
            if isinstance(error, Warning):  # the program has just made errors of warnings
                turns.only_in_call("a warning is an error")
            return Answer(None, error.with_traceback(None), given, frozenset(kept))


@contextlib.contextmanager
def _hooks(pack: Callable) -> Iterator[None]:
    """Hooks of saved tensors, also where the program has disabled them."""
    disabled = torch_private.why_no_hooks()
    if disabled is not None:
        torch_private.allow_hooks()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _same):
            yield
    finally:
        if disabled is not None:
            torch_private.forbid_hooks(disabled)


def _same(t: torch.Tensor) -> torch.Tensor:
    return t


def error_of(fn: Callable, args: Sequence[TensorHandle | str | object], kwargs: dict[str, object], given: StandIns,
             grad: bool = False) -> Exception | None:
    """What a call of ``fn`` raises."""
    return ask(fn, args, kwargs, given, grad).error


def of_tensors(fn: Callable, *args: list[object], **kwargs: bool) -> Answer:
    """What eager says to a call with arguments that are made already, with gradients on."""
    return ask(fn, args, kwargs, StandIns(), True)


def gradients(made: list, wanted: list, seeds: list | None = None, keep: bool = False, again: bool = False) -> list:
    """As ``torch.autograd.grad`` with ``seeds`` (None: ones), None where there is no gradient. It says less of seeds
    that do not fit, and loads no other part of PyTorch for that."""
    seeds = [torch.ones_like(t) for t in made] if seeds is None else seeds
    if torch_private.run_backward is None:
        return list(torch.autograd.grad(made, wanted, seeds, retain_graph=keep, create_graph=again, allow_unused=True))
    return list(torch_private.run_backward(tuple(made), tuple(seeds), keep, again, tuple(wanted), True,
                                           accumulate_grad=False))


def smaller(tensors: list, numbers: Collection[int] = frozenset(), units: Collection[int] = frozenset()) -> dict:
    """Sizes for ``StandIns``: one for each of the larger ones among those of handles: another one for another one, even
    for even, and in their order. Those among ``numbers`` stay what they are, and what these divide stays divisible. A
    few times one of ``units`` stays so many times that one."""
    sizes = sorted({n for h in tensors for n in map(hint, h.type.shape)})
    taken, found, last = {n for n in sizes if n <= 8}, {}, 8
    for n in sizes:
        if n > 8 and n not in numbers:
            multiple = next((n // m * found[m] for m in units if m in found and n % m == 0 and n // m <= 8), 0)
            if multiple > last:
                found[n] = last = multiple
                continue
            unit = math.lcm(2 - n % 2, *(k for k in numbers if 2 <= k <= n and n % k == 0))
            last = last + unit - last % unit if n % 2 == 0 else last + 2 - (last - n) % 2
            if n % 2:
                while last % unit:
                    last += 2
            found[n] = last
    return {n: small for n, small in found.items() if small < n and n not in taken}


def _laid_out_alike(shape: tuple[int, ...], strides: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor of the sizes ``small`` that lies in memory as one of ``shape`` and ``strides`` does."""
    found, end, whole = [1] * len(shape), 1, 1  # behind the dimensions so far: the next stride if there is no gap
    for stride, d in sorted((stride, d) for d, stride in enumerate(strides) if shape[d] != 1):
        if stride == 0:
            found[d] = 0
            continue
        found[d] = stride if stride < end else whole if stride == end else 2 * whole
        end, whole = max(end, stride * shape[d]), max(whole, found[d] * small[d])
    return tuple(found)


def with_sizes(sizes: dict[int, int], arguments: Any) -> Any:
    """The same arguments with ``sizes`` where integers among them are such sizes."""
    return replaced(int, lambda n: sizes.get(n, n) if type(n) is int else n, arguments)


def plain_ints(v: object) -> list[int]:
    """The integers in nested arguments."""
    return [n for n in of_kind(int, v) if type(n) is int]


def is_quick(tensors: Sequence[Any], sizes: dict[int, int], arguments: object) -> bool:
    """Whether a call on ``tensors`` (handles, descriptions or nodes) with other ``sizes`` computes few elements, as far
    as the integers among its ``arguments`` tell."""
    elements = sum(math.prod(sizes.get(n, n) for n in map(hint, x.type.shape)) for x in tensors)
    return elements <= QUICK and math.prod(max(abs(n), 1) for n in plain_ints(arguments)) <= QUICK


def _not_a_leaf(x: torch.Tensor) -> torch.Tensor:
    """The same tensor as a result, which may be written; a view of a leaf may not."""
    elements = x.untyped_storage().nbytes() // x.itemsize
    if x.numel() == elements:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    memory = x.as_strided((elements,), (1,))
    own = torch.empty((elements,), dtype=x.dtype, device=x.device)
    return own.copy_(memory).as_strided(x.shape, x.stride())


_AS: dict[str | None, Callable] = {"a leaf": _same, "a view of a leaf": lambda x: x.view_as(x)}
