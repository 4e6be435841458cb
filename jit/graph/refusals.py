"""Calls that eager refuses, whatever values its tensors hold: for their shapes and dtypes, for numbers that do not fit,
for types that a function does not take, or because autograd cannot record them.

PyTorch looks for such mistakes in many places: its bindings, its type rules, its kernels. In the program the call
raises where it stands, whether or not anybody reads its result. So the first call of each kind is made by PyTorch
itself while tracing, on small tensors of the same types: on zeros, and where that raises, on ones and on other values,
so that what is wrong with the values alone is told apart. What is raised for sizes smaller than the real ones has to be
raised for those too. Where it cannot be told what is wrong, PyTorch's own kernel has to say: the call is *doubted*, and
becomes a library call that is made whoever reads its result.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit import torch_private
from jit.devices import backend
from jit.errors import EagerRaises, NeedsEager, Unsupported
from jit.graph import aten, unwritable
from jit.graph.binding import Binding, resolve
from jit.graph.build import is_number
from jit.graph.dims import Dim, hint, specialize
from jit.graph.handles import TensorHandle, overlaps_itself, restriction
from jit.graph.nested import holds, key, of_kind, replaced
from jit.graph.op_info import op_info
from jit.graph.registry import OPS, PYTHON
from jit.graph.sym_float import SymFloat
from jit.graph.probe import StandIns, ask, error_of, is_quick, smaller

if TYPE_CHECKING:
    from jit.errors import JitError
    from jit.graph.tracer import Tracer

_SAYS = re.compile(
    r"not (yet )?implement|(not|only) (intended to )?support.*(bool|complex|integ|float|dtype)|dtypes match|"
    r"bool tensor is not supported",
    re.IGNORECASE)
_SMALL = 1 << 12  # elements of all operands up to which they are made in their own sizes
_EXACT = 1 << 16  # up to which they are where a call of smaller ones has raised
_WHOLE = 1 << 22  # elements up to which a call that smaller ones refuse is tried with operands as large as they are
_RESULT = 1 << 22  # elements that a probe may make, as far as that can be told
_KINDS = 1 << 12  # calls that are remembered

_found: dict = {}  # what a call is -> None, DOUBT, Unsupported, or the error's (class, arguments)
DOUBT = "doubt"  # all probes of a call have raised, and it may be that the values of other tensors are not refused
DOUBT_OF_SIZES = "doubt of sizes"  # or that these are what is refused


def of_dtypes(error: Exception) -> bool:
    """Whether an error of eager's is about dtypes, and so the same for all values."""
    return isinstance(error, NotImplementedError) or _SAYS.search(str(error)) is not None


def _says_nothing(error: Exception | None) -> bool:
    """Whether a run on meta tensors has nothing against a call: it went through, or there is no such kernel."""
    return error is None or isinstance(error, NotImplementedError)


# Arguments of which a probe has the real ones.
_PLAIN = (TensorHandle, int, Dim, SymFloat, float, complex, str, bytes,
          range, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, slice, type,
          type(None), type(...))


def check(tracer: Tracer, fn: Callable, binding: Binding, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Raise EagerRaises, or Unsupported where eager's own words are not known, for a call that eager refuses. Returns
    whether the call is doubted."""
    name = binding.name if binding.name.endswith("__") else binding.name.removesuffix("_")
    if "::" in name or op_info(binding.name).untried or tracer.autocast:
        return False
    entry = OPS.get(binding.name) or OPS.get(name)
    if binding.python is not None:
        # Its own source is traced, call by call.
        if fn not in PYTHON or fn.__module__ not in torch_private.PYTHON_OPERATIONS:
            return False
    elif entry is None and not aten.overloads(name) or any(o.trusting for o in aten.overloads(name)):
        return False
    if name == "__setitem__":
        if (len(args) != 3 or not isinstance(args[0], TensorHandle)
            or not is_number(args[2]) or overlaps_itself(args[0].type)):
            return False
        if not holds(TensorHandle, args[1]):  # PyTorch writes by indices in ways of their own
            args = (args[0], ..., args[2])  # the number has to fit, wherever it is put
    call = _Call(fn, name, args, kwargs, tracer.grad_enabled, entry is not None and entry.alias)
    if not call.plain:
        return False
    error = call.error()
    if error is not None and (refused := _of_unwritable(fn, args, kwargs)) is not None:
        raise refused
    if error is not None and _writes(fn, kwargs) and _share_memory(call.tensors):
        keep_sizes((args, kwargs))
        raise Unsupported("eager refuses this operation, perhaps because its tensors share memory",
                          "clone() one of them", kind="overlapping-memory")
    if error is DOUBT or error is DOUBT_OF_SIZES:
        if error is DOUBT_OF_SIZES:
            keep_sizes((args, kwargs))  # which may be what is wrong
        return True
    if error is not None:
        keep_sizes((args, kwargs))  # its text tells them
        raise error
    for at, v in (*enumerate(args), *kwargs.items()):
        if type(v) in (Dim, SymFloat):
            call.limit(at, v)
    return False


class _Call:
    """A call to be tried. ``tensors``: the handles among its arguments; ``plain``: whether there are stand-ins for all
    arguments; ``sized``: the product of all integers that may be sizes; ``view``: whether the function makes views,
    which cost nothing whatever their sizes."""

    def __init__(self, fn: Callable, name: str, args: Sequence[object], kwargs: dict[str, object], grad: bool,
                 view: bool) -> None:
        self.fn, self.name, self.args, self.kwargs, self.view = fn, name, list(args), dict(kwargs), view
        self.tensors: list = []
        self.numbers: set = set()
        self.plain, self.sized = True, 1
        described = key(self._kind, self.args), key(self._kind, self.kwargs)
        for at, v in (*enumerate(args), *kwargs.items()):
            if type(v) in (int, Dim) and _is_value(name, at):
                self.sized //= max(abs(hint(v)), 1)
        self.grad = grad and any(h.requires_grad for h in self.tensors)
        self.key = (fn, *described, self.grad)

    def _kind(self, v: object) -> tuple[object, ...]:
        """What decides about a refusal, as a key of a dictionary."""
        if isinstance(v, TensorHandle):
            self.tensors.append(v)
            t = v.type
            return (t.dtype, tuple(map(hint, t.shape)), tuple(map(hint, t.strides)),
                    t.device.type, v.requires_grad, v.is_conj)
        v = hint(v) if type(v) is Dim else v
        if type(v) is SymFloat:
            return float, v.value
        if type(v) is int:
            self.sized *= max(abs(v), 1)
            self.numbers.add(v)
        elif isinstance(v, torch.Generator):
            return torch.Generator
        self.plain = self.plain and isinstance(v, _PLAIN)
        return type(v), v

    def error(self) -> EagerRaises | None:
        """EagerRaises, Unsupported, DOUBT, or None where the call is well formed."""
        try:
            found = _found.get(self.key, self)
        except TypeError:  # an argument that is no key
            return None
        if found is self:
            if len(_found) >= _KINDS:
                _found.clear()
            found = _found[self.key] = self._refusal()
        if found is None or found is DOUBT or found is DOUBT_OF_SIZES:
            return found
        if found is Unsupported:
            return Unsupported("a torch function refuses its arguments",
                               "check the call against the documentation", kind="argument-error")
        return EagerRaises(found[0](*found[1]))

    def _refusal(self) -> tuple[type, tuple[str, ...]] | None:
        if not self.tensors and not any(o.arguments and o.arguments[0].kind == "Tensor"
                                        for o in aten.overloads(self.name)):
            return self._refusal_to_make()
        if self.view and self.tensors:
            return self._refusal_to_show()
        numels = [hint(h.type.numel) for h in self.tensors]
        sizes = smaller(self.tensors, self.numbers) if sum(numels) > _SMALL else None
        on_cpu = all(backend(h.type.device).host for h in self.tensors)
        if self._makes(sizes) > _RESULT:
            return None
        error = self._raises(sizes)
        if error is None:
            return None if on_cpu else self._refusal_of_device(sizes)
        if sizes and not of_dtypes(error) and sum(numels) <= _WHOLE and self._raises(None) is None:
            return None  # numbers among the arguments do not go with the sizes of the stand-ins
        by_out = self._raises_by_out(sizes) if self.kwargs.get("out") is not None else None
        if by_out is not None:
            error = by_out
        elif (not of_dtypes(error) and not op_info(self.name).total and self._raises(sizes, device="meta") is None
              and self._raises(sizes, of_one=True) is not None):
            # The values of the tensors may be what is wrong, as of a matrix that has no factors: the call itself will
            # say.
            return DOUBT
        if not sizes and on_cpu:
            return type(error), error.args
        if of_dtypes(error) and not on_cpu:
            return self._refusal_of_device(sizes)
        # The types of the arguments are what is wrong.
        if isinstance(error, TypeError) and self._raises(sizes, device="meta"):
            return (type(error), error.args) if on_cpu else Unsupported
        if self._raises(sizes, of_one=True) is None:  # and of ones this does not hold: a number is what is wrong
            device = self.tensors[0].type.device.type
            return (type(error), error.args) if on_cpu or self._raises(sizes, device=device) else None
        if on_cpu and sum(numels) <= _EXACT and self._makes(None) <= _RESULT:
            error = self._raises(None)
            return None if error is None else (type(error), error.args)
        error = self._raises(None, device="meta")
        return DOUBT_OF_SIZES if _says_nothing(error) else Unsupported

    def _refusal_of_device(self, sizes) -> None:
        """Of a call that the CPU's kernels take, or refuse for its dtypes, where the tensors are on another device,
        whose kernels may take others, or on several. These are asked as well, once for dtypes and ranks, about what is
        not of floating point numbers alone on one device, and about nothing that draws random numbers."""
        several = len({h.type.device for h in self.tensors}) > 1
        overloads = aten.overloads(self.name)
        if any(o.random for o in overloads) or not several and (not overloads
                                                                or all(h.type.dtype in _COMMON for h in self.tensors)):
            return None
        tensors = tuple((h.type.dtype, h.type.rank, h.type.device, any(hint(n) == 0 for n in h.type.shape))
                        for h in self.tensors)
        key = self.fn, tensors, tuple(type(v) for v in self.args), tuple(sorted(self.kwargs)), self.grad
        if key not in _found:
            _found[key] = None
            error = error_of(self.fn, self.args, self.kwargs, StandIns(0, "cpu", sizes, self.grad), self.grad)
            # Else an index may be out of range, for which a GPU's kernel stops the process.
            if error is None or of_dtypes(error):
                error = error_of(self.fn, self.args, self.kwargs, StandIns(0, None, sizes, self.grad), self.grad)
                _found[key] = (type(error), error.args) if error is not None and (several or of_dtypes(error)) else None
        return _found[key]

    def _raises_by_out(self, sizes) -> Exception | None:
        """What the call raises for the tensors into which it is to write: for values that it takes where it makes its
        result itself."""
        for fill in (0, 1, None):
            made = StandIns(fill, "cpu", sizes, self.grad)
            if error_of(self.fn, self.args, {k: v for k, v in self.kwargs.items() if k != "out"},
                        made, self.grad) is None:
                return error_of(self.fn, self.args, self.kwargs, made, self.grad)
        return None

    def _refusal_to_show(self) -> tuple[type, tuple[str, ...]] | None:
        """Of a view."""
        if len({h.type.device for h in self.tensors}) > 1 and (refusal := self._refusal_of_device(None)) is not None:
            return refusal
        # PyTorch's kernels for tensors without data are written in Python, slow, and may load most of PyTorch.
        if len(self.tensors) == 1 and not self.numbers and self._raises(smaller(self.tensors)) is None:
            return None
        error = self._raises(None, device="meta")
        if _says_nothing(error):
            return None
        if (any(not backend(h.type.device).host for h in self.tensors)
            or sum(hint(h.type.numel) for h in self.tensors) > _EXACT):
            return Unsupported
        error = self._raises(None)
        return None if error is None else (type(error), error.args)

    def _refusal_to_make(self) -> None:
        """Of a tensor that is made from numbers alone, which may be a large one."""
        given = StandIns()
        args, kwargs = given.of(self.args), given.of(self.kwargs)
        if not backend(torch.device(kwargs.get("device") or torch.get_default_device())).host:
            return None
        if not holds(float, (args, kwargs)) and is_quick((), {}, (args, kwargs)):
            error = error_of(self.fn, args, kwargs, given)
            return None if error is None else (type(error), error.args)
        for most in (None, 64):
            if most is not None:  # the numbers have to fit, however many elements there are
                args = [v if _is_value(self.name, at) else replaced(int, lambda n: min(n, most), v)
                        for at, v in enumerate(args)]
            answer = ask(self.fn, args, {**kwargs, "device": "meta"}, given)
            error, made = answer.error, answer.result
            if (error is not None and not isinstance(error, (TypeError, NotImplementedError))
                or isinstance(made, torch.Tensor) and made.numel() <= _EXACT):
                error = error_of(self.fn, args, kwargs, given)
                return None if error is None else (type(error), error.args)
        return None

    def _makes(self, sizes: dict[int, int] | None) -> int:
        """How many elements the result may have, if it is no larger than an outer product of the operands and of what
        numbers say."""
        most = max((math.prod((sizes or {}).get(n, n) for n in map(hint, h.type.shape)) for h in self.tensors),
                   default=1)
        return most * min(most, 1 << 10) * self.sized if len(self.tensors) > 1 else most * self.sized

    def _raises(self, sizes: dict[int, int] | None, device: str = "cpu", of_one: bool = False) -> Exception | None:
        """What the call raises for all the values that are tried, on tensors whose sizes are replaced. ``of_one``: with
        1 in place of each number that is computed with."""
        error = None
        for fill in (0, 1, None) if device != "meta" else (0,):
            made = StandIns(fill, device, sizes, self.grad)
            args, kwargs = made.of(self.args), made.of(self.kwargs)
            if of_one:
                args, kwargs = ([self._one(k, a) for k, a in enumerate(args)],
                                {k: self._one(k, v) for k, v in kwargs.items()})
            error = error_of(self.fn, args, kwargs, made, self.grad)
            if error is None:
                return None
        return error

    def _one(self, at: int, v: int | torch.Tensor | complex | float) -> torch.Tensor | int:
        return 1 if is_number(v) and _is_value(self.name, at) else v

    def limit(self, at: int | str, v: Dim | SymFloat) -> None:
        """Guard that a symbolic number stays one that eager takes, where it does not take all."""
        if not _is_value(self.name, at):
            return
        if self.tensors:
            key = (*self.key, at)
            if key not in _found:
                _found[key] = self._range(at, v)
            limits = _found[key]
        else:
            limits = _RANGES.get(self.kwargs.get("dtype"), _ANY)
        if limits is _ANY:
            return
        if type(v) is Dim:
            if limits is None or not (v <= limits[1] and v >= limits[0]):
                specialize(v)
        else:
            float(v)

    def _range(self, at: int | str, v: Dim | SymFloat) -> tuple | None:
        """The numbers that the call takes at this place: ``_ANY``, those of an integral type, or None where it is not
        known which."""
        if type(v) is not Dim:
            return _ANY if not any(self._raises_for(at, n) for n in (1e38, -1e38)) else None
        for limits in (_ANY, *sorted(_RANGES.values(), key=lambda r: r[0] - r[1])):
            if not any(self._raises_for(at, n) for n in limits):
                return limits
        return None

    def _raises_for(self, at: int | str, number: float) -> bool:
        made = StandIns(0, "cpu", smaller(self.tensors), self.grad)
        args, kwargs = made.of(self.args), made.of(self.kwargs)
        (args if type(at) is int else kwargs)[at] = number
        return error_of(self.fn, args, kwargs, made, self.grad) is not None


_ANY = (-(1 << 40), 1 << 40)  # limits of a place that takes every number
_COMMON = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
_RANGES = {torch.bool: (0, 1), torch.float16: (-65504, 65504)}
_RANGES.update((d, (torch.iinfo(d).min, torch.iinfo(d).max)) for d in (torch.uint8,
                                                                       torch.int8, torch.int16, torch.int32))


@functools.cache
def _is_value(name: str, at: int | str) -> bool:
    """Whether argument ``at`` of an operator, a position or a name, is a number to compute with, and no size or
    dimension."""
    if name == "__setitem__":
        return at == 2
    kinds = set()
    for o in aten.overloads(name):
        for i, a in enumerate(o.arguments if "Tensor" in o.returns else ()):
            if at in (a.name, i):
                kinds.add("int" if a.list else a.kind)
    return bool(kinds & {"number", "Tensor", "float"}) and not kinds & {"int", "SymInt"}


def keep_sizes(v: object) -> None:
    """Guard that symbolic sizes and numbers among the arguments stay what they are."""
    for h in of_kind(TensorHandle, v):
        keep_sizes((h.type.shape, h.type.strides))
    for size in of_kind(Dim, v):
        specialize(size)
    for number in of_kind(SymFloat, v):
        float(number)


def _share_memory(handles: list[TensorHandle]) -> bool:
    """Whether some of the tensors, if they are several, may lie in the same memory, which stand-ins never do."""
    handles = {id(h): h for h in handles}.values()
    bases = list({id(h.base): h.base for h in handles}.values())
    if len(bases) < len(handles):
        return True
    extents = sorted(b.extent for b in bases if b.extent is not None)
    return any(a[1] > b[0] for a, b in zip(extents, extents[1:]))


def _writes(fn: Callable, kwargs: dict[str, float]) -> bool:
    """Whether a call writes to one of its tensors, by its name or because it is told where to put the result."""
    binding = resolve(fn)
    name = getattr(fn, "__name__", "") if binding is None else binding.name
    return kwargs.get("out") is not None or name == "__setitem__" or name.endswith("_") and not name.endswith("__")


def _of_unwritable(fn: Callable, args: Sequence[object], kwargs: dict[str, object]) -> JitError | None:
    """What eager says to a call that is refused and that would write to a leaf which requires grad, or a view of one,
    or one of several views: autograd may refuse it first. None for other calls."""
    tensors = list(of_kind(TensorHandle, (args, kwargs)))
    if not (_writes(fn, kwargs) and tensors and tensors[0].tracer.grad_enabled):
        return None
    if tensors[0].requires_grad and restriction(tensors[0].chain):
        return NeedsEager("a call that is refused, of a view that was made under no_grad or by a call with several "
                          "results, which may be why", "clone() it first", kind="gradient")
    if not any(map(unwritable.which, tensors)):
        return None
    device = "cpu" if sum(hint(h.type.numel) for h in tensors) <= 1 << 20 else "meta"
    error = error_of(fn, args, kwargs, StandIns(0, device, None, True, (), True), True)
    if error is None:
        return None
    keep_sizes((args, kwargs))  # its text may tell them
    return EagerRaises(error, tuple([h.base for h in tensors]))


def confirmed(error: BaseException, fn: Callable, args: Sequence[object], kwargs: dict) -> JitError:
    """What to raise for an error while tracing ``fn``: EagerRaises with eager's own error if ``fn`` raises on zeros of
    these shapes, else Unsupported: a rule of ours has failed."""
    refused = _of_unwritable(fn, args, kwargs)
    if refused is not None:
        return refused
    tensors = list(of_kind(TensorHandle, (args, kwargs)))
    if _writes(fn, kwargs) and _share_memory(tensors):
        return Unsupported("an operation on tensors that share memory, which eager may refuse",
                           "clone() one of them", kind="overlapping-memory")
    device = "cpu" if sum(hint(h.type.numel) for h in tensors) <= 1 << 20 else "meta"
    real = error_of(fn, args, kwargs, StandIns(0, device))
    if real is not None:
        keep_sizes((args, kwargs))  # its text tells them
        return EagerRaises(real)
    failure = Unsupported(f"{getattr(fn, '__name__', fn)} cannot be traced: {type(error).__name__}: {error}",
                          kind="internal")
    failure.cause = error
    return failure


def of_kinds(fn: Callable, args: Sequence[object], kwargs: dict[str, object]) -> TypeError | None:
    """The error with which a method of tensors in C refuses arguments for their number, names and types; None where it
    takes them."""
    asked = fn, key(_kind, list(args)), key(_kind, kwargs)
    if asked not in _found:
        if len(_found) >= _KINDS:
            _found.clear()
        given = replaced(TensorHandle, _without_elements, list(args)), replaced(TensorHandle, _without_elements, kwargs)
        error = error_of(fn, [_without_elements(), *given[0]], given[1], StandIns())
        _found[asked] = (type(error), error.args) if isinstance(error, TypeError) else None
    found = _found[asked]
    return None if found is None else found[0](*found[1])


def _kind(v: object) -> object:
    return v if isinstance(v, type) else type(v)


def _without_elements(handle: TensorHandle | None = None) -> torch.Tensor:
    return torch.empty(0, device="cpu")
