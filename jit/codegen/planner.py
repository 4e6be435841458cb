"""From a graph to a plan: kernels, library calls, buffers and views in the order in which the runtime performs them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from .. import devices, logs, runtime
from ..graph.ir import TensorType, same_ints
from ..graph.prims import info
from . import failing, fusion, indexing, lower, memory
from .indexing import FIXED, base_of
from .emit_plan import emit
from .layout import channels_last
from .library_calls import returns_alias
from .loops import rename
from .moments import one_pass
from .padding import pad_rows
from .planned import CallLibrary, RunKernel, Touch, out_form
from .prepare import prepare
from .registers import Registers
from .target import target_of

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Graph, Node
    from .fusion import Group, Root
    from .loops import Kernel

plan_log, kernel_log = logs.channel("plan"), logs.channel("kernels")


@dataclass
class Options:
    """``target``: "native" compiles kernels, "reference" leaves them to the interpreter in ``reference``.
    ``fuse=False`` gives each root its own kernel; ``in_place`` lets results take the memory of dying operands;
    ``channels_last`` lets convolutions run in that format; ``unaligned``: the numbers of inputs whose address is
    not aligned (GPU kernels assume that of the others, so the caller has to guard it); ``symbols``: names of sizes
    that are among the integers of a call even if no kernel of the graph uses them."""

    target: str = "native"
    fuse: bool = True
    in_place: bool = True
    channels_last: bool = True
    unaligned: frozenset = frozenset()
    symbols: tuple = ()


@dataclass
class Storage:
    """Memory behind a materialised value. ``kind``: input, extern, alloc (a tensor of its own) or temp (a part of the
    arena)."""

    kind: str
    slot: int
    type: TensorType
    first: int = -1
    last: int = -1
    dtype: Optional[torch.dtype] = None
    nbytes: object = 0

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@dataclass
class CompiledGraph:
    """A graph ready to run.

    ``plan``: the runtime's Plan. ``kernels``: (name, source text) of each distinct kernel. ``loops``: name -> loop
    kernel. ``launches``: the loop kernels in launch order. ``int_symbols``: the size symbols to be passed as ints after
    the tensors. ``call(*tensors, *ints)`` runs it.
    """

    plan: runtime.plan.Plan
    kernels: list = field(default_factory=list)
    loops: dict = field(default_factory=dict)
    launches: list = field(default_factory=list)
    int_symbols: tuple = ()

    @functools.cached_property
    def call(self) -> Callable:
        return runtime.load_plan(self.plan)


def compile_graph(graph: Graph, options: Optional[Options] = None) -> CompiledGraph:
    """Schedule a graph, compile its kernels and make its plan.

    Raises:
        Unsupported: a node has neither a lowering nor a library call.
        CompileError: a kernel did not compile.
    """
    with logs.timed("schedule"):
        planner = Planner(graph, options or Options())
        planner.schedule()
    with logs.timed("kernels"):
        planner.compile_kernels()
    compiled = planner.finish()
    if plan_log:
        plan_log(compiled.plan.text())
    return compiled


class Planner:
    def __init__(self, graph: Graph, options: Options) -> None:
        self.options = options
        if options.channels_last:
            graph = channels_last(graph)
        self.graph = one_pass(prepare(pad_rows(graph)))
        self.regs = Registers(self.graph.inputs)
        for name in options.symbols:
            self.regs.symbol(name)
        self.n_inputs = len(self.graph.inputs)
        self.n_slots = self.n_inputs
        self.storages: dict[Node, Storage] = {}  # node -> Storage
        self.steps: list[CallLibrary | RunKernel | Touch] = []
        self.launches: list = []  # Lowered, in order
        self.launch_keys: list[tuple] = []  # what is compiled for each of them
        self.loose: set[Storage] = set()  # storages of library results that may start anywhere in another tensor
        self.extra_temps: list[Storage] = []  # storages of partial results and the like
        self.aligned_inputs: set[int] = set()  # inputs whose address kernels take for an aligned one

    def new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    # which memory each value has

    def schedule(self) -> None:
        g = self.graph
        self.plan_groups = fusion.fuse(g, self.options.fuse)
        written = [_unaliased(o.node) for o in g.outputs if o.mutates is not None]
        if written:
            self.plan_groups.order = failing.writes_last(self.plan_groups.order,
                                                         self.plan_groups.roots, written, self.plan_groups.stored)
        for i, n in enumerate(g.inputs):
            self.storages[n] = Storage("input", i, n.type, dtype=n.type.dtype)
        self._times()
        self._reuse_in_place()
        self._write_into_inputs()
        for t, group in enumerate(self.plan_groups.order):
            if group.extern is not None:
                self.steps.append(CallLibrary(group.extern))
            else:
                self._lower(group, t)

    def _times(self) -> None:
        """Lifetimes of values, in positions of the group order."""
        order, stored = self.plan_groups.order, self.plan_groups.stored
        self.home: dict = {}
        self.uses: dict = {}
        escaping = {base_of(o.node) for o in self.graph.outputs if o.mutates is None}
        kept: set = set()
        self.kept = kept
        results: dict = {}
        for n in self.graph.nodes:
            if n.op == "getitem":
                results.setdefault(n.inputs[0], []).append(n)
        for t, group in enumerate(order):
            if group.extern is not None:
                node = group.extern
                self.home[node] = t
                for result in results.get(node, ()) if isinstance(node.type, tuple) else (node,):
                    self._extern_storage(result).first = t
                if out_form(node):  # it writes into memory of ours
                    self.storages[node].nbytes = memory.storage_numel(node.type) * node.type.dtype.itemsize
                aliases = returns_alias(node)
                for i in node.inputs:
                    self.uses.setdefault(base_of(i), []).append(t)
                    if aliases:
                        kept.add(base_of(i))
                continue
            for m in group.members:
                self.home[m.node] = max(t, self.home.get(m.node, 0))
                for node in m.reads:
                    if not any(q.group is group for q in self.plan_groups.roots.get(node, ())) or node.op == "cat":
                        self.uses.setdefault(node, []).append(t)
        end = len(order)
        for n in escaping:
            self.uses.setdefault(n, []).append(end)
        for o in self.graph.outputs:
            if o.mutates is not None:
                self.uses.setdefault(base_of(o.node), []).append(end)
        for t, group in enumerate(order):
            for m in group.members:
                if m.node in stored and m.node not in self.storages:
                    n = m.node
                    kind = "alloc" if n in escaping or n in kept else "temp"
                    s = Storage(kind, self.new_slot(), n.type, dtype=n.type.dtype)
                    s.first = t
                    s.last = max([t, *self.uses.get(n, ())])
                    s.nbytes = memory.storage_numel(n.type) * n.type.dtype.itemsize
                    self.storages[n] = s
                elif m.node in stored:
                    s = self.storages[m.node]
                    s.last = max(s.last, t)
        for n, s in self.storages.items():
            if s.kind == "extern":
                s.last = max([s.first, *self.uses.get(n, ())])
                if out_form(n):
                    s.kind = "alloc" if n in escaping or n in kept else "temp"

    def _reuse_in_place(self) -> None:
        """Let an elementwise result take the memory of an operand that dies with it."""
        if not self.options.in_place:
            return
        for t, group in enumerate(self.plan_groups.order):
            if group.extern is not None or group.reduced:
                continue
            taken = set()
            for m in group.members:
                s = self.storages.get(m.node)
                if s is None or s.kind not in ("temp", "alloc") or m.part is not None or s.first != t:
                    continue
                for source in m.reads:
                    old = self.storages.get(source)
                    if old is None or old.last != t or old.first == t or old in taken or old.dtype is not s.dtype:
                        continue
                    if old.kind == "extern":
                        if old in self.loose or source in self.kept or m.node in self.kept:
                            continue
                    elif old.kind != "temp" or s.kind != "temp":
                        continue
                    if self._in_step(group, source, m):
                        old.last = s.last
                        for n, other in list(self.storages.items()):
                            if other is s:
                                self.storages[n] = old
                        taken.add(old)
                        break

    def _in_step(self, group: Group, source: Node, root: Root) -> bool:
        """Whether every read of ``source`` in the group is of the very element that ``root`` stores in the same
        iteration."""
        place, strides = root.out_place(), {}
        for p, s in zip(place, root.node.type.strides):
            if p != FIXED:
                strides[p] = s
        if isinstance(source.type, tuple):
            return False
        for m in group.members:
            for align in m.reads.get(source, ()):
                if align is None:
                    return False
                mine = {}
                for d, s in zip(align, source.type.strides):
                    if d != FIXED:
                        mine[m.place[d]] = s
                if mine.keys() != strides.keys() or not all(indexing.same(mine[k], strides[k]) for k in mine):
                    return False
        return True

    def _write_into_inputs(self) -> None:
        """Let the kernel that makes an input's new value write it there, where nothing reads the old value any more and
        no later step may raise."""
        self.direct, self.committing = set(), set()
        plain = {base_of(o.node) for o in self.graph.outputs if o.mutates is None}
        readers = {}
        for n, times in self.uses.items():
            if n.op == "input":
                readers[n] = times
        last = max((t for t, group in enumerate(self.plan_groups.order) if failing.may_fail(group, self.storages)),
                   default=-1)
        aliased = {base_of(i) for n in self.graph.nodes if n.op == "aten_call" and returns_alias(n) for i in n.inputs}
        for o in self.graph.outputs:
            if o.mutates is None:
                continue
            n, target = _unaliased(o.node), self.graph.inputs[o.mutates]
            roots = self.plan_groups.roots.get(n, ())
            if (len(roots) != 1 or roots[0].part is not None or n in plain
                or n not in self.storages or target in aliased):
                continue
            if (sum(_unaliased(p.node) is n for p in self.graph.outputs) != 1
                or n in aliased or self.storages[n].kind != "temp"):
                continue
            root, t = roots[0], self.home[n]
            if t <= last:
                continue  # what raises must do so before any input has changed
            if not same_ints(n.type.strides, target.type.strides) and self.uses[n] != [len(self.plan_groups.order)]:
                continue
            row_only = not any(p in root.group.reduced for p in root.out_place())
            if root.group.reduced and not row_only or sum(s is self.storages[n] for s in self.storages.values()) != 1:
                continue
            times = [x for x in readers.get(target, ()) if x != len(self.plan_groups.order)]
            if any(x > t for x in times):
                continue
            if t in times:
                if row_only and root.group.reduced and any(target in m.reads
                                                           for m in root.group.members if m is not root):
                    continue
                if not self._in_step_of(root.group, target, root, target.type.strides):
                    continue
            self.storages[n] = self.storages[target]
            self.direct.add(o)
            self.committing.add(t)

    def _in_step_of(self, group: Group, source: Node, root: Root, strides: tuple[IntExpr, ...]) -> bool:
        place = {p: s for p, s in zip(root.out_place(), strides) if p != FIXED}
        for m in group.members:
            for align in m.reads.get(source, ()):
                if align is None:
                    return False
                mine = {m.place[d]: s for d, s in zip(align, source.type.strides) if d != FIXED}
                if mine.keys() != place.keys() or not all(indexing.same(mine[k], place[k]) for k in mine):
                    return False
        return True

    # kernels

    def place_of(self, node: Node) -> Optional[lower.Place]:
        s = self.storages.get(node)
        if s is None:
            return None
        strides = s.type.strides if s.kind == "input" else node.type.strides
        return lower.Place(s, strides, 0, node.type.dtype)

    def _extern_storage(self, node: Node) -> Storage:
        s = self.storages[node] = Storage("extern", self.new_slot(), node.type, dtype=node.type.dtype)
        if returns_alias(node if node.op == "aten_call" else node.inputs[0]):
            self.loose.add(s)
        return s

    def _lower(self, group: Group, t: int) -> None:
        if any(type(d) is int and d == 0 for k, d in enumerate(group.dims) if k not in group.reduced):
            for m in group.members:
                if m.node in self.storages:
                    self.steps.append(Touch(self.storages[m.node]))
            return
        stored: Any = {m.node: self.place_of(m.node) for m in group.members if m.node in self.storages}
        if not stored:
            return
        partials = {}
        for lowered in lower.lower_group(group, self.place_of, stored, f"k{len(self.launches)}"):
            for key, (dtype, numel) in lowered.partials.items():
                type_ = TensorType.contiguous((numel,), dtype, group.device)
                s = partials[key] = Storage("temp", self.new_slot(), type_, t, t, dtype, numel * dtype.itemsize)
                self.extra_temps.append(s)
            arguments = tuple(partials.get(a, a) for a in lowered.arguments)
            self.steps.append(RunKernel(len(self.launches), arguments, group.device, t in self.committing))
            self.launches.append(lowered.kernel)
            self.launch_keys.append(self._launch_key(lowered.kernel, arguments))

    def _launch_key(self, kernel: Kernel, arguments: Sequence[Any]) -> tuple[str, tuple[int, ...]]:
        """What is compiled once: the structure and which pointers are not aligned, where kernels rely on that."""
        if not devices.of_type(kernel.device).pointer_alignment:
            return kernel.key, ()
        pointers = [(k, a) for k, a in enumerate(arguments) if a != lower.ERROR]
        self.aligned_inputs.update(a.slot for _, a in pointers if a.kind == "input" and self._aligned(a))
        return kernel.key, tuple(k for k, a in pointers if not self._aligned(a))

    def _aligned(self, storage: Storage) -> bool:
        if storage.kind == "input":
            return storage.slot not in self.options.unaligned
        return storage.kind != "extern" or storage not in self.loose

    def compile_kernels(self) -> None:
        """Compile each distinct kernel once; fills ``self.code``: key -> what the target makes of it."""
        self.code: dict = {}
        self.named: dict = {}
        self.sources: list[tuple[str, str]] = []
        by_device: dict = {}
        for k, key in zip(self.launches, self.launch_keys):
            if key not in self.named:
                loose = "".join(f"_{i}" for i in key[1])
                self.named[key] = rename(k, f"k_{k.key}{loose}")
                by_device.setdefault(k.device, []).append(key)
                if kernel_log:
                    kernel_log(self.named[key].text())
        if self.options.target == "reference":
            self.code = {key: i for i, key in enumerate(self.named)}
            self.sources = [(k.name, k.text()) for k in self.named.values()]
            return
        for device, keys in by_device.items():
            kernels = [self.named[key] for key in keys]
            aligned = {k.name: {b.name for i, b in enumerate(k.buffers) if i not in key[1]}
                       for k, key in zip(kernels, keys) if key[1]}
            found = target_of(device).compile_kernels(kernels, aligned)
            for k, key in zip(kernels, keys):
                self.code[key], text = found[k.name]
                self.sources.append((k.name, text))

    # the plan

    def finish(self) -> CompiledGraph:
        plan = emit(self)
        kernels = {k.name: k for k in self.named.values()}
        return CompiledGraph(plan, self.sources, kernels, [self.named[key] for key in self.launch_keys],
                             tuple(self.regs.int_symbols))


def _unaliased(node: Node) -> Node:
    """The node whose very elements ``node`` shows."""
    while info(node.op).is_whole_view:
        node = node.inputs[0]
    return node
