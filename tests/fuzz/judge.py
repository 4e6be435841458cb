"""What may be asked of a compiled program whose numbers are not eager's: whether the difference is one of roundings.

``truth`` runs the program in double precision, and then a few times more with what no kernel promises changed at random
(stochastic arithmetic, after Vignes's CESTAC method: https://doi.org/10.1007/BF02142494): each result that the tensors'
own dtype would round is moved by a few units in the last place, and so are the terms of sums and products whose order
is a kernel's own affair. Where the runs do not agree, roundings decide, and nothing can be asked; elsewhere the first
run tells how far eager itself is from the truth.
"""

from __future__ import annotations

import itertools

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sweeps.database import TOLERANCE, Exact, mapped, tensors_of

DRAWS = 8  # of roundings; one value that is the greater in half of them is told in all but one of 256 cases
UNITS = 4  # in the last place, by which a rounded number is moved at most
SUMS = ("sum", "mean", "mm", "bmm", "addmm", "mv", "dot")
SELECTIONS = ("max", "min", "argmax", "argmin", "kthvalue", "median", "nanmedian", "sort", "topk", "cummax", "cummin")
# On a GPU these too are computed in the tensors' own dtype, as layers and what is in doubles are on a CPU.
OF_SQUARES = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "native_layer_norm",
              "_fused_rms_norm", "var", "std", "var_mean", "linalg_vector_norm", "_batch_norm_with_update",
              "native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward",
              "native_layer_norm_backward", "_fused_rms_norm_backward")


class InDoubles(TorchDispatchMode):
    """What computations in another dtype are to be compared with: ``nan_to_num`` gives the limits of that, and single
    precision and that are double precision here.

    Args:
        dtype: of the tensors that are doubles here.
        draw: 0, or the number of the roundings to try. Then a sum or product is NaN, or a number instead of NaN, when
    its terms may leave the dtype's range on the way, which
            depends on their order, and so are moments of what has no square there; and the gradient of the one of
    several numbers that was chosen is NaN for all of them.
    """

    def __init__(self, dtype, draw):
        super().__init__()
        self.dtype, self.limits, self.draw, self.unordered, self.alike = (
            dtype, torch.finfo(dtype), draw, (0, 1, -1)[draw and 1 + draw % 2], {})
        self.eps, self.rng = self.limits.eps, torch.Generator().manual_seed(draw)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        if name == "nan_to_num" and args[0].dtype is torch.float64:
            nan, most, least = (*args[1:], None, None, None)[:3]
            return func(args[0], nan, self.limits.max if most is None else most,
                        self.limits.min if least is None else least)
        if kwargs.get("dtype") in (torch.float32, self.dtype):
            self.eps = max(self.eps, torch.finfo(kwargs["dtype"]).eps)
            kwargs["dtype"] = torch.float64
        known = self.known(args, kwargs) if self.unordered else None
        result = func(*args, **kwargs)
        for a in args:
            if (isinstance(a, torch.Tensor) and isinstance(result, torch.Tensor) and a.data_ptr() in self.alike
                and self.alike[a.data_ptr()][1].shape == result.shape):
                return result.masked_fill(self.alike[a.data_ptr()][1],
                                          float("nan")) if result.is_floating_point() else result
        if self.unordered:
            if args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
                result = self.otherwise(name, func, args, kwargs, result)
            result = self.rounded(name, func, args, kwargs, result, known)
        return result

    def known(self, args, kwargs):
        """The numbers among the arguments of an operator, None if it is given no tensor of floats."""
        given = [t.detach().flatten().double().cpu()
                 for t in tensors_of([args, list(kwargs.values())]) if t.is_floating_point()]
        numbers = [a for a in (*args, *kwargs.values()) if isinstance(a, (int, float)) and not isinstance(a, bool)]
        return torch.cat([*given, torch.tensor([0.0, 1.0, *numbers], dtype=torch.float64)]) if given else None

    def rounded(self, name, func, args, kwargs, result, known):
        """``result`` as another kernel may round it. What is only moved, as by views, copies and choices, stays what it
        is."""
        made = [t for t in tensors_of(result) if t.is_floating_point() and t.numel()]
        aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
        if known is None or not made or torch.Tag.inplace_view in func.tags or not all(a.is_write for a in aliases):
            return result
        sums = name in SUMS or name == "cumsum"
        exact = sums and all(self.exact(t).all() for t in tensors_of([args, list(kwargs.values())]))
        # Where there is anything else than numbers of the arguments, or terms whose roundings may have come to one
        places = [~torch.isin(t.double(), known.to(t.device)) & t.isfinite() for t in made]
        if not any(p.any() for p in places) and not (sums and not exact and made[0].numel() < args[0].numel()):
            return result
        others = made
        if aliases or torch.Tag.pointwise in func.tags or name in SELECTIONS:
            places = [p & ~self.exact(t) for p, t in zip(places, made)]
        else:  # terms that cancel leave their roundings
            if exact:
                places = [p & ~self.exact(t) for p, t in zip(places, made)]
            else:
                again = func(*mapped(self.moved, args), **mapped(self.moved, kwargs))
                others = [t for t in tensors_of(again) if t.is_floating_point() and t.numel()]
                places = [t.isfinite() & o.isfinite() for t, o in zip(made, others)]
        for t, o, p in zip(made, others, places):
            nothing = (o - t).abs() >= t.abs() / 2 if self.unordered > 0 else torch.zeros_like(p)
            t.copy_(torch.where(p, self.moved(o).masked_fill(nothing, 0), t))
        return result

    def moved(self, t):
        """A tensor with the numbers that are rounded moved by a few units in the last place."""
        if not t.is_floating_point():
            return t
        eps = max(self.eps, torch.finfo(t.dtype).eps) if t.dtype.itemsize < 8 else self.eps
        by = (torch.rand(t.shape, generator=self.rng, dtype=torch.float64) * 2 - 1).to(t.device)
        return torch.where(~t.isfinite(), t, (t.double() * (1 + UNITS * eps * by)).to(t.dtype))

    def exact(self, t):
        """Which numbers have so few binary digits that no kernel rounds them."""
        narrow = self.dtype if t.dtype is torch.float64 else t.dtype
        return _exact(t.double()) & (True if narrow.itemsize > 2
                                     else (t.double() * 8 == (t.double() * 8).round()) & (t.abs() < 4))

    def otherwise(self, name, func, args, kwargs, result):
        x = args[0]
        most = min(self.limits.max, torch.finfo(x.dtype).max)
        if (torch.Tag.pointwise in func.tags and isinstance(result, torch.Tensor) and result.is_floating_point()
            and self.unordered > 0):
            # What is too large for the dtype on the way is infinite or, where a kernel multiplies and adds with one
            # rounding, not.
            return result.copy_(torch.where(result.isfinite() & (result.abs() > most), result.sign() * float("inf"),
                                            result)) if result.numel() else result
        if name in SELECTIONS and x.numel():
            dim = _argument(func, args, kwargs, "dim")
            given, alike = self.reordered(x, dim)
            other = func(given, *args[1:], **kwargs)
            if isinstance(result, torch.Tensor):
                return result if result.is_floating_point() else other
            value = result[0].unsqueeze(dim) if result[0].dim() < x.dim() else result[0]
            if value.shape[dim] == 1:
                alike &= (x - value).abs() <= 2e-5 * x.abs().clamp(min=1)
            self.alike[other[1].data_ptr()] = other[1], alike
            return result[0], other[1]
        sizes = x.abs().nan_to_num(0, 0, 0)
        if name == "cumsum":
            return self.unlike(result, func(sizes, *args[1:], **kwargs) > most)
        if name in ("prod", "cumprod"):
            # The gradient of a product is one of cumulative products here, and of the product itself elsewhere.
            least = self.limits.tiny if x.dtype is torch.float64 else torch.finfo(x.dtype).tiny
            small, large = torch.where(sizes > 0, sizes, 1).clamp(max=1), sizes.clamp(min=1)
            if name == "cumprod":
                small, large = (t.prod(args[1], keepdim=True).expand_as(t) if t.dim() else t for t in (small, large))
            else:
                small, large = func(small, *args[1:], **kwargs), func(large, *args[1:], **kwargs)
            return self.unlike(result, (large > most) | (small < least))
        if name in OF_SQUARES:
            given = [a for a in args[:2] if isinstance(a, torch.Tensor)
                     and a.numel()] if name.endswith("_backward") else [x] if x.numel() else []
            large = any(a.abs().nan_to_num(0, 0, 0).max() ** 2 * a.numel() > most for a in given)
            by_kernel = x.is_cuda or "layer_norm" in name or self.limits.bits == 64
            # So is what is left of the distance from the mean, divided by the deviation
            by_kernel |= any(a.abs().nan_to_num(0, 0, 0).max() > most / 64 for a in given)
            # Which of them are NaN is a kernel's own affair
            if large and by_kernel or x.is_cuda and any(a.isinf().any() for a in given):
                return mapped(lambda t: torch.full_like(t, float("nan") if self.unordered > 0 else 0.0)
                              if t.is_floating_point() else t, result)
        if name in SUMS and result.is_floating_point():
            sizes = [a.abs().nan_to_num(0, 0, 0) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
                     for a in args]
            totals = func(*sizes, **kwargs)
            if name == "mean":
                totals = totals * (args[0].numel() / max(totals.numel(), 1))
            result = self.unlike(result, totals > most) if bool((totals > most).any()) else result
        return result

    def unlike(self, t, where):
        """``t`` with another value in some places: all of them in two of the draws, half of them in others. NaN in
        every second draw, for what may follow need not tell NaN from an infinity, as a conversion to integers does not,
        or from a number."""
        if self.draw > 2:
            where = where & (torch.rand(where.shape, generator=self.rng) < 0.5).to(where.device)
        number = float(self.draw % 4 < 2)
        other = torch.where(t.isnan(), number,
                            float("nan")) if self.draw % 2 else torch.where(t.isfinite(), float("inf"), number)
        return torch.where(where, other, t).to(t.dtype)

    def reordered(self, x, dim):
        """``x`` with numbers along ``dim`` (None: anywhere) that differ by no more than roundings in the opposite
        order, or those that are equal in some order, and which numbers these are."""
        rows = x.reshape(1, -1) if dim is None or not x.dim() else x.movedim(dim, -1)
        values, order = rows.sort(-1)
        slack = 1e-5 * values.abs().clamp(min=1)
        apart = ~(values.diff(dim=-1) <= slack[..., 1:])
        group = torch.nn.functional.pad(apart.long().cumsum(-1), (1, 0))
        least, most = (
            torch.zeros_like(values).scatter_reduce(-1, group, values, how, include_self=False).gather(-1, group)
            for how in ("amin", "amax"))
        size = torch.zeros_like(group).scatter_add(-1, group, torch.ones_like(group)).gather(-1, group)
        alike = (size > 1) & ((most > least) | ~_exact(values))
        places = self.unordered * 1e-5 * slack * order / values.shape[-1]
        values = torch.where(alike, least + most - values + places, values)
        found = (torch.empty_like(rows).scatter(-1, order, values),
                 torch.empty_like(group, dtype=torch.bool).scatter(-1, order, alike))
        return [v.reshape(x.shape) if dim is None or not x.dim() else v.movedim(-1, dim) for v in found]


def _argument(func, args, kwargs, name):
    """An argument of a call of an operator, None if it takes none of that name."""
    for place, a in enumerate(func._schema.arguments):
        if a.name == name:
            return args[place] if place < len(args) else kwargs.get(name, a.default_value)
    return None


def _exact(t):
    """Which numbers have few binary digits, as the values of arguments and their sums, which no kernel rounds."""
    return (t * 4096 == (t * 4096).round()) & (t.abs() < 4096) | t.isnan()


class Overlaps(TorchDispatchMode):
    """Whether an operator writes into memory that it reads in another order, or into elements that are the same: what
    comes of that is the kernel's own affair. So is the median over an expanded dimension, for which PyTorch's CPU
    kernels read beyond the tensor's memory, and what a view shows of memory that a result has and does not fill, as
    that of a mean has where the kernel has used it for the terms."""

    found = False

    def __init__(self):
        super().__init__()
        self.filled = {}  # the memory of a result -> (the result, which keeps it, its places there)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in ("median", "nanmedian") and args[0].dim() and args[0].numel():
            dim = _argument(func, args, kwargs, "dim")
            self.found |= dim is not None and args[0].stride(dim) == 0 and args[0].shape[dim] > 1
        arguments = [(a,
                      args[k] if k < len(args) else kwargs.get(a.name)) for k, a in enumerate(func._schema.arguments)]
        if (torch.Tag.inplace_view not in func.tags
            and func.overloadpacket.__name__ not in ("fill_", "zero_", "clamp_", "relu_", "masked_fill_")):
            written = [v for a, v in arguments if a.alias_info is not None and a.alias_info.is_write
                       and isinstance(v, torch.Tensor)]
            read = [t for a, v in arguments if not any(v is w for w in written) for t in tensors_of(v)]
            for w in written:
                places = _places(w)
                self.found |= len(set(places)) < len(places) or any(
                    r.untyped_storage().data_ptr() == w.untyped_storage().data_ptr() and (there := _places(r)) != places
                    and not set(there).isdisjoint(places) for r in read)
        result = func(*args, **kwargs)
        self.unfilled(func, result, {t.untyped_storage().data_ptr() for t in tensors_of([args, kwargs])})
        return result

    def unfilled(self, func, result, given):
        """Looks for views of what no operator has written."""
        for t in tensors_of(result):
            memory = t.untyped_storage().data_ptr()
            if memory not in given:
                self.filled[memory] = t, set(_places(t))
            elif func.overloadpacket.__name__ == "as_strided" and memory in self.filled:
                self.found |= not self.filled[memory][1].issuperset(_places(t))


def _places(t) -> list:
    """Where the elements lie in the memory."""
    return [t.storage_offset() + sum(i * s for i, s in zip(at, t.stride()))
            for at in itertools.product(*map(range, t.shape))]


def overlapping(call) -> bool:
    """Whether a call writes into memory that it reads in another order."""
    overlaps = Overlaps()
    with overlaps:
        call()
    return overlaps.found


class Conversions(TorchFunctionMode):
    """Conversions to a dtype make a copy where they do for tensors of ``dtype``, and none where they do not: in double
    precision they would be told by the wrong dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.double, torch.Tensor.float) and args[0].dtype is torch.float64 and len(args) == 1:
            if func is torch.Tensor.double and self.dtype is not torch.float64:
                return args[0].clone()
            if func is torch.Tensor.float and self.dtype is torch.float32:
                return args[0]
        return func(*args, **kwargs or {})


def truth(call, dtype):
    """What a call that computes in double precision gives, with ``Exact`` for its tensors, each of its elements
    doubtful where roundings decide it.

    Args:
        call: runs the program, with double precision in place of ``dtype``, and returns (result or exception, gradients
    or exception, memory).

    Returns:
        The outcome, or None where nothing can be asked, as whether there is an exception depends on roundings.
    """
    outcomes = []
    for draw in range(DRAWS + 1):
        with Conversions(dtype), InDoubles(dtype, draw):
            outcomes.append(call())
    if any(isinstance(a, Exception) != isinstance(b, Exception) for o in outcomes[1:] for a, b in zip(outcomes[0], o)):
        return None
    return paired(TOLERANCE.get(dtype, 2e-4) / 8, *outcomes)


def paired(close, exact, *others):
    """``exact`` with an ``Exact`` for each tensor, doubtful where it is not ``close`` to one of ``others``. None where
    they are of different form."""
    if isinstance(exact, torch.Tensor) and all(isinstance(o, torch.Tensor) and exact.shape == o.shape for o in others):
        doubtful = torch.zeros_like(exact, dtype=torch.bool)
        for o in others:
            same = torch.isclose(exact.detach(), o.detach(), close, close,
                                 equal_nan=True) if exact.is_floating_point() else exact == o
            doubtful |= ~same
        return Exact(exact, doubtful)
    if isinstance(exact, (tuple, list)) and all(isinstance(o, (tuple, list)) and len(exact) == len(o) for o in others):
        return type(exact)(paired(close, *parts) for parts in zip(exact, *others))
    return exact if all(type(exact) is type(o) for o in others) else None
