"""``jit.verify``: is what the compiled code computes as exact as eager, and if not, which operation is the first that
is not?

Every graph that a call captures is computed four ways on the inputs of that call: by its kernels as they run, fused;
operation by operation in eager; the same in float64, which is taken for the truth; and in float64 with each value
multiplied by 1 + r, |r| below the rounding unit of its dtype, which shows how much rounding any order of evaluation may
cost (stochastic arithmetic, as in D. Stott Parker, Monte Carlo arithmetic, 1997). A value passes if its error is within

    8 max(largest error of eager, largest change by the noise) + 8 units of rounding of the value itself.

Random numbers, comparisons and indices are taken from eager in the float64 runs, so that all four take the same way.
Values that are not floating point may differ in one element out of a hundred, for ties.

The results are those of the call itself. Where they pass, the graph is compiled once more with all values in between as
results, which are compared too, in kernels that are fused less for that. Where a result fails, the graph is cut:
compiled up to an operation, for the operation halfway, and so on, so that what is in front of the fault stays fused as
it is. For a gradient it is cut from the other side: an intermediate value becomes an input, and the gradient of that
input is compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from . import backends
from .by_class import by_class
from .graph.interpret import compile_python
from .graph.ir import Part, TensorType, ancestors
from .graph.nested import replaced
from .graph.passes.gradients import without_gradients
from .graph.prim_info import info
from .graph.prims import VIEWS
from .graph.printing import expression, unbound_symbols
from .graph.recording import Gradient

if TYPE_CHECKING:
    from .backends import Plan
    from .graph.ir import Graph, Node

FACTOR = 8
_WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
         torch.complex64: torch.complex128}
_LOOSE = {torch.float16: 3e-2, torch.bfloat16: 1e-1, torch.float32: 1e-3, torch.float64: 1e-6}


@dataclasses.dataclass(frozen=True)
class Fault:
    """The first operation whose value, or whose gradient, is less exact than it should be.

    Attributes:
        what: "value", "gradient", or "program" where the graph is computed as it says, but is not what the program
            computes.
        op, text: the operation and how it is written in the captured graph.
        loc: (file, line, function) where the program, or the library function that it calls, does it; ``user`` the line
            of the program itself.
        error, eager_error, allowed: largest errors against float64 of the compiled code and of eager, and the bound.
    """

    what: str
    op: str
    text: str
    loc: tuple | None
    user: tuple | None
    error: float
    eager_error: float
    allowed: float
    note: str = ""

    def __str__(self) -> str:
        place = "" if self.loc is None else f"\n  at {self.loc[0]}:{self.loc[1]} in {self.loc[2]}"
        if self.user is not None and self.loc is not None and tuple(self.user) != tuple(self.loc[:3]):
            place += f"\n  called at {self.user[0]}:{self.user[1]} in {self.user[2]}"
        errors = f"\n  error {self.error:.3g}, eager's {self.eager_error:.3g}, allowed {self.allowed:.3g}"
        if self.what == "program":
            errors = f"\n  differs by {self.error:.3g}, allowed {self.allowed:.3g}"
        return f"the {self.what} of {self.op}: {self.text}{place}{errors}" + (f"\n  {self.note}" if self.note else "")


@dataclasses.dataclass
class Verification:
    """What ``jit.verify`` found. ``ok``: nothing that is wrong. ``faults``: at most one value and one gradient per
    graph. ``checked``: how many values, also in between, and gradients were compared.
    ``unchecked``: what could not be, with the reason. ``result``: what the compiled call returned. ``own_numbers``:
    kernels draw random numbers."""

    faults: list[Fault] = dataclasses.field(default_factory=list)
    checked: int = 0
    graphs: int = 0
    unchecked: list[str] = dataclasses.field(default_factory=list)
    result: object = None
    own_numbers: bool = False

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        found = (f"{len(self.faults)} not as exact as eager" if self.faults
                 else "all as exact as eager" if self.checked else "nothing was compared")
        lines = [f"{self.graphs} graphs, {self.checked} values and gradients compared: {found}"]
        return "\n".join([*lines, *map(str, self.faults), *(f"not checked: {u}" for u in self.unchecked)])

    def raise_if_wrong(self) -> None:
        """Raises AssertionError with the report if something is wrong."""
        if not self.ok:
            raise AssertionError(str(self))


# -- graphs made from a graph


def _wide(v: Any) -> Any:
    """An attribute with wide dtypes for narrow ones."""
    return replaced(torch.dtype, lambda dtype: _WIDE.get(dtype, dtype), v)


def _wide_type(t: Any) -> Any:
    return replaced(TensorType, lambda own: own.replace(dtype=_wide(own.dtype)), t)


def _tensor(node: Node) -> bool:
    return isinstance(node.type, TensorType)


def _floating(node: Node) -> bool:
    return _tensor(node) and (node.dtype.is_floating_point or node.dtype.is_complex)


class _Part(Part):
    """What computes ``outputs``, with the nodes of ``cut`` as inputs after those of the graph. ``wide``: in float64.
    ``noisy``: each floating point value is multiplied by a further input, for ``noise``, the nodes that these are
    for."""

    def __init__(self, graph: Graph, outputs: Sequence[Node], cut: Sequence[Node] = (), wide: bool = False,
                 noisy: bool = False) -> None:
        super().__init__(graph, [*graph.inputs, *cut], outputs)
        self.wide, self.noisy = wide, noisy
        self.noise: list[Node] = []

    def entry(self, n: Node, type: TensorType | None = None) -> Node:
        return super().entry(n, _wide_type(n.type) if self.wide else None)

    def visit(self, n: Node) -> Node:
        made = self.keep(n, attrs=_wide(n.attrs), type=_wide_type(n.type)) if self.wide else self.keep(n)
        if self.noisy and _floating(n) and info(n.op).kind not in ("view", "number"):
            self.noise.append(n)
            return self.node("mul", (made, self.entry(n)), {}, made.type)
        return made


def _part(graph: Graph, outputs: list[Node], cut: Sequence[Node] = (), wide: bool = False,
          noisy: bool = False) -> tuple[Graph, list[Node]]:
    """(the graph that ``_Part`` makes, the nodes that its last inputs are noise for)."""
    part = _Part(graph, outputs, cut, wide, noisy)
    return part.run(), part.noise


def _discrete(graph: Graph) -> list[Node]:
    """The nodes that have to be the same in all runs: random numbers, and what is not floating point but computed from
    it."""
    return [n for n in graph.nodes if n.op != "input" and _tensor(n) and (
        n.impure or n.op == "reinterpret" or not _floating(n) and any(not _tensor(i) or _floating(i)
                                                                      for i in n.inputs))]


# -- one graph


class Check:
    """Compares one captured graph on the inputs of one call. ``sizes``: name of a size symbol -> its value;
    ``backend``: what makes kernels, as a backend of ``jit.compile`` does."""

    def __init__(self, graph: Graph, tensors: list[torch.Tensor], sizes: dict, report: Verification, name: str,
                 backend: Callable = backends.compile_native) -> None:
        self.graph, self.tensors, self.sizes, self.report, self.name = graph, tensors, sizes, report, name
        self.backend = backend
        self.found: Any = None
        self.outputs = list(dict.fromkeys(o.node for o in graph.outputs if o.node.op != "input"))
        self.forced = _discrete(graph)

    def run(self, graph: Graph, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """A graph op by op on eager tensors."""
        return compile_python(graph)(*tensors, *[self.sizes[name] for name in unbound_symbols(graph)])

    def kernels(self, graph: Graph, tensors: list[torch.Tensor],
                gradient: Gradient | None = None) -> tuple[torch.Tensor, ...]:
        """A graph by its kernels, as they would be generated for it alone."""
        plan = self.backend(without_gradients(graph) if gradient is None else graph, list(tensors), gradient)
        return plan.native(*tensors, *[self.sizes[name] for name in plan.int_symbols])

    def eager(self, wanted: list[Node]) -> list[torch.Tensor]:
        """Values of nodes in eager; random numbers and the like from one run of all."""
        known = [n for n in wanted if n in self.fixed]
        rest = [n for n in wanted if n not in self.fixed]
        values = dict(zip(known, (self.fixed[n] for n in known)))
        if rest:
            random = [n for n in self.forced if n.impure]
            part, _ = _part(self.graph, rest, random)
            values.update(zip(rest, self.run(part, [*self.tensors, *[self.fixed[n] for n in random]])))
        return [values[n] for n in wanted]

    def exact(self, wanted: list[Node], noisy: bool = False) -> tuple[torch.Tensor, ...]:
        """Values of nodes in float64, with or without noise."""
        part, noise = _part(self.graph, wanted, self.forced, wide=True, noisy=noisy)
        given = [*self.tensors, *[self.fixed[n] for n in self.forced]]
        return self.run(part, [*map(widened, given), *self.noise(noise)])

    def noise(self, nodes: list[Node]) -> list[torch.Tensor]:
        """For each node a tensor of factors 1 + r."""
        generator = torch.Generator().manual_seed(0)
        return [self.spread(n, generator) for n in nodes]

    def spread(self, node: Node, generator: object) -> torch.Tensor:
        value = self.like[node]
        r = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return (1 + r * torch.finfo(node.dtype).eps).to(value.device, _WIDE.get(node.dtype, node.dtype))

    def prepare(self) -> list[Node]:
        """Compute all values in eager, which the others are compared with. -> The operations of the graph."""
        every = [n for n in self.graph.nodes if info(n.op).kind not in ("input", "number") and _tensor(n)]
        part, _ = _part(self.graph, every)
        self.like = dict(zip(every, self.run(part, self.tensors)))
        self.fixed = {n: self.like[n] for n in self.forced}
        return every

    def values(self, actual: dict[Node, torch.Tensor]) -> None:
        """Compare the results; the first node of the graph whose value is wrong becomes a fault. ``actual``: values of
        results in the call itself."""
        with torch.no_grad():
            every = self.prepare()
            rest = [n for n in self.outputs if n not in actual]
            bad = self.worst(list(actual), actual.values()) or (self.worst(rest) if rest else None)
            inner = [n for n in every if n not in self.outputs and not n.impure]
            self.report.checked += len(self.outputs) + len(inner)
            if bad is None:
                bad = self.worst(inner) if inner else None
                if bad is not None:
                    self.fault("value", bad, self.last[bad],
                               "no result shows it: the values in between were stored to see them")
                return
            behind = ancestors([bad])
            order = [n for n in every if n in behind]
            low, high = 0, len(order) - 1
            note = ""
            if self.worst([bad]) is None:
                note = (
                    "only in the graph as a whole: the operations in front of it are exact when the kernels end there")
                low = high
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if self.worst([order[middle]]) is not None else (middle + 1, high)
            if note:
                self.worst(list(actual), actual.values())
            else:
                self.worst([order[high]])
            self.fault("value", order[high], self.last[order[high]], note)

    def worst(self, wanted: list[Node], got: Iterable[torch.Tensor] | None = None) -> Node | None:
        """The first of the nodes that the kernels compute wrongly when they compute these, or None. ``got``: what they
        computed."""
        if got is None:
            random = [n for n in self.forced if n.impure]
            part, _ = _part(self.graph, wanted, random)
            got = self.kernels(part, [twin(t) for t in [*self.tensors, *[self.fixed[n] for n in random]]])
        self.last = {}
        for node, ours, eager, exact, noisy in zip(wanted, got, self.eager(wanted),
                                                   self.exact(wanted), self.exact(wanted, noisy=True)):
            self.last[node] = compare(ours, eager, exact, noisy)
            if not self.last[node][0]:
                return node
        return None

    # -- gradients

    def aim(self, gradient: Gradient) -> None:
        """Choose the results whose gradients are compared, and what is given as the gradient of each."""
        returned = [o.node for o in self.graph.outputs if o.mutates is None]
        with_gradient = dict.fromkeys(returned[i] for i in gradient.tangents)
        self.targets = [n for n in with_gradient if n.op != "input" and _floating(n) and n not in self.forced]
        generator = torch.Generator().manual_seed(1)
        self.tangents = {n: torch.randn(self.like[n].shape, generator=generator, dtype=torch.float64).to(self.like[n])
                         for n in self.targets}

    def gradients(self, gradient: Gradient) -> None:
        """Compare the gradients; the operation behind the last wrong one becomes a fault."""
        self.aim(gradient)
        if any(n.impure and any(map(_floating, n.inputs)) for n in self.forced):
            self.report.unchecked.append(f"{self.name}: gradients through operations that draw random numbers, such as "
                                         "dropout")
        if not self.targets:
            return
        bad = self.wrong_gradient(tuple(gradient.wrt), ())
        self.report.checked += self.compared
        if bad is None:
            return
        start = self.graph.inputs[bad]
        behind = {start}
        for n in self.graph.nodes:
            if n.op != "detach" and behind.intersection(n.inputs):
                behind.add(n)
        leading = set().union(*(ancestors(t.inputs) for t in self.targets))
        order = [n for n in self.graph.nodes if n in behind and n in leading
                 and n is not start and _floating(n) and n not in self.forced]
        # The gradient of order[low] is wrong, that of order[high] is right; -1 stands for the input.
        low, high = -1, len(order)
        error = self.found
        while high - low > 1:
            middle = (low + high) // 2
            node = order[middle]
            if self.wrong_gradient((len(self.graph.inputs),), (node,)) is not None:
                low, error = middle, self.found
            else:
                high = middle
        source = start if low < 0 else order[low]
        users = [n for n in self.graph.nodes if source in n.inputs and (n in leading or n in self.targets)]
        note = "" if len(users) < 2 else "one of: " + ", ".join(f"{u.name} = {u.op}" for u in users)
        self.fault("gradient", users[0] if users else source, error, note)

    def wrong_gradient(self, wrt: tuple[int, ...], cut: tuple[Node, ...]) -> int | None:
        """The first of the inputs ``wrt`` of the cut graph whose gradient is wrong, or None; its errors in
        ``found``."""
        targets = [t for t in self.targets if not cut or t in cut or cut[0] in ancestors(t.inputs)]
        targets = [t for t in targets if t not in cut]
        self.compared = 0
        if not targets:
            return None
        random = [n for n in self.forced if n.impure]
        at = [self.like[n] for n in (*cut, *random)]
        part, _ = _part(self.graph, targets, [*cut, *random])
        tangents = [self.tangents[t] for t in targets]
        with torch.enable_grad():
            asked = Gradient(tuple(wrt), tuple(range(len(targets))))
            ours = self.grad(lambda given: self.kernels(part, given, asked), [*self.tensors, *at], wrt, tangents)
            eager = self.grad(lambda given: self.run(part, given), [*self.tensors, *at], wrt, tangents)
            exact, noisy = (self.exact_gradient(targets, [*cut, *random], at, wrt, tangents, noise)
                            for noise in (False, True))
        for i, *four in zip(wrt, ours, eager, exact, noisy):
            if any(g is None for g in four):
                continue
            self.compared += 1
            self.found = compare(*four)
            if not self.found[0]:
                return i
        return None

    def exact_gradient(self, targets: list[Node], cut: list[Node], at: list[torch.Tensor], wrt: tuple[int, ...],
                       tangents: list[torch.Tensor], noisy: bool) -> tuple[torch.Tensor | None, ...]:
        forced = [n for n in self.forced if n not in cut]
        part, noise = _part(self.graph, targets, [*cut, *forced], wide=True, noisy=noisy)
        given = [widened(t) for t in [*self.tensors, *at, *[self.fixed[n] for n in forced]]]
        factors = self.noise(noise)
        return self.grad(lambda values: self.run(part, [*values, *factors]),
                         given, wrt, [t.to(_WIDE.get(t.dtype, t.dtype)) for t in tangents])

    @staticmethod
    def grad(fn: Callable, given: list[torch.Tensor], wrt: tuple[int, ...],
             tangents: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        given = [twin(t).requires_grad_() if i in wrt else t.detach() for i, t in enumerate(given)]
        results = fn(given)
        pairs = [(r, t) for r, t in zip(results, tangents) if r.requires_grad]
        if not pairs:
            return (None,) * len(wrt)
        return torch.autograd.grad([r for r, _ in pairs], [given[i] for i in wrt],
                                   [t.to(r.dtype) for r, t in pairs], allow_unused=True)

    def fault(self, what: str, node: Node, measured: tuple[bool, float, float, float], note: str) -> None:
        _, error, eager_error, allowed = measured
        text = "an input" if node.op == "input" else f"{node.name} = {expression(node)}"
        op, loc, user = (node.attrs.get("target", node.op), node.loc and tuple(node.loc)[:3],
                         getattr(node.loc, "user", None))
        self.report.faults.append(Fault(what, op, text, loc, user, error, eager_error, allowed, note))


def compare(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor,
            noisy: torch.Tensor) -> tuple[bool, float, float, float]:
    """-> (whether ``ours`` passes, its largest error, eager's, the bound where it is exceeded most). ``exact``,
    ``noisy``: float64."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return False, float("inf"), 0.0, 0.0
    if not ours.numel():
        return True, 0.0, 0.0, 0.0
    if not (ours.dtype.is_floating_point or ours.dtype.is_complex):
        share = (ours != eager).double().mean().item()
        return share <= 0.01, share, 0.0, 0.01
    ours, eager = ours.detach(), eager.detach()
    unit = torch.finfo(ours.dtype).eps
    exact, noisy = exact.detach(), noisy.detach()
    finite = exact.isfinite() & eager.isfinite()
    wide = exact.dtype
    error, eager_error, change = ((v.to(wide) - exact).abs() for v in (ours, eager, noisy))
    noise = max((v[finite & v.isfinite()].max().item() if (finite & v.isfinite()).any() else 0.0)
                for v in (eager_error, change))
    bound = FACTOR * noise + FACTOR * unit * exact.abs() + torch.finfo(ours.dtype).tiny
    wrong = finite & ~(error <= bound)
    wrong |= ~finite & eager.isnan() & ~ours.isnan()
    if not wrong.any():
        return (True, error[finite].max().item() if finite.any() else 0.0,
                eager_error[finite].max().item() if finite.any() else 0.0, FACTOR * noise)
    excess = torch.where(wrong, error.nan_to_num(torch.inf) / bound.clamp(min=1e-300),
                         torch.zeros_like(error)).flatten()
    k = int(excess.argmax())
    return False, error.flatten()[k].item(), eager_error.flatten()[k].item(), bound.flatten()[k].item()


def twin(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy in other memory with the same strides, also where these overlap; in another dtype if one is given."""
    tensor = tensor.detach()
    memory = tensor.untyped_storage()
    flat = tensor.new_empty(0).set_(memory, 0, (memory.nbytes() // tensor.element_size(),), (1,))
    return flat.to(dtype or tensor.dtype, copy=True).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64, or complex128, if it is of a smaller floating point dtype."""
    return twin(tensor, _WIDE[tensor.dtype]) if tensor.dtype in _WIDE else tensor


# -- a call


def computed(graph: Graph, arguments: tuple[torch.Tensor, ...], results: tuple[torch.Tensor, ...]) -> dict:
    """Node -> its value in a call of the plan of ``graph``, of the results that can be told: not those that random
    numbers or later writes change."""
    if any(n.impure for n in graph.nodes):
        return {}
    writes = any(o.mutates is not None for o in graph.outputs)
    returned = iter(results)
    values = {}
    for o in graph.outputs:
        value = next(returned) if o.mutates is None else arguments[o.mutates]
        if o.node.op != "input" and not (writes and (o.node.op in VIEWS
                                                     or sum(p.node is o.node for p in graph.outputs) > 1)):
            values[o.node] = value.detach().clone()
    return values


def watching(report: Verification, gradients: bool) -> Callable:
    """A backend: our kernels, each graph compared when it first runs."""

    def backend(graph: Graph, examples: Sequence[torch.Tensor], gradient: Gradient | None = None) -> Plan:
        report.graphs += 1
        report.own_numbers |= any(n.op == "random_bits" for n in graph.nodes)
        name = f"graph {report.graphs}"
        copied = None if any(n.op == "autograd_function" for n in graph.nodes) else graph.copy()
        plan = backends.compile_native(graph, examples, gradient)
        pending = [copied]

        def call(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if not pending:
                return plan.native(*arguments)
            copied = pending.pop()
            tensors = [twin(t) for t in arguments[: len(arguments) - len(plan.int_symbols)]]
            results = plan.native(*arguments)
            if copied is None:
                report.unchecked.append(f"{name}: it has an autograd.Function in it")
                return results
            try:
                check = Check(copied, tensors, dict(zip(plan.int_symbols, arguments[len(tensors):])), report, name)
                with torch.random.fork_rng():
                    check.values(computed(copied, arguments, results))
                    if gradients and gradient is not None:
                        check.gradients(gradient)
            except Exception as error:  # a check that fails must not be taken for the program's fault
                report.unchecked.append(f"{name}: {type(error).__name__}: {error}")
            return results

        return backends.Plan(call, plan.int_symbols, plan.kernels, plan.graph, plan.backward)

    return backend


def compare_results(report: Verification, eager: torch.Tensor | tuple[torch.Tensor, ...] | dict | list,
                    ours: torch.Tensor | tuple[torch.Tensor, ...], path: str = "the result") -> None:
    """Compare what the program returned in eager and compiled, coarsely: a difference says that the graphs are not what
    the program computes."""
    comparison = by_class(_COMPARISONS, eager)
    if comparison is not None and comparison is by_class(_COMPARISONS, ours):
        comparison(report, eager, ours, path)


def _compare_tensors(report: Verification, eager: torch.Tensor, ours: torch.Tensor, path: str) -> None:
    if eager.shape != ours.shape or eager.dtype != ours.dtype:
        text = f"{ours.dtype} {tuple(ours.shape)}, in eager {eager.dtype} {tuple(eager.shape)}"
        report.faults.append(Fault("program", path, text, None, None, float("inf"), 0.0, 0.0))
    elif eager.numel() and eager.layout is torch.strided and (eager.dtype.is_floating_point or eager.dtype.is_complex):
        allowed = _LOOSE.get(eager.dtype, 1e-3) * max(1e-3, eager.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().item())
        difference = (eager.detach() - ours.detach()).abs()
        difference = difference[~(eager.detach() == ours.detach()) &
                                ~(eager.isnan() & ours.isnan())].double().nan_to_num(torch.inf)
        if difference.numel() and difference.max().item() > allowed:
            report.faults.append(Fault("program", path, "the compiled result is not eager's",
                                       None, None, difference.max().item(), 0.0, allowed))


def _compare_sequences(report: Verification, eager: Sequence, ours: Sequence, path: str) -> None:
    if type(eager) is type(ours) and len(eager) == len(ours):
        for i, (a, b) in enumerate(zip(eager, ours)):
            compare_results(report, a, b, f"{path}[{i}]")


def _compare_dicts(report: Verification, eager: dict, ours: dict, path: str) -> None:
    if type(eager) is type(ours):
        for key in eager:
            if key in ours:
                compare_results(report, eager[key], ours[key], f"{path}[{key!r}]")


_COMPARISONS = {torch.Tensor: _compare_tensors, list: _compare_sequences, tuple: _compare_sequences,
                dict: _compare_dicts}
