"""From a graph to a plan: kernels, library calls, buffers and views in the order in which the runtime performs them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from .. import config, devices, logs, meanwhile, observing, runtime
from ..graph.ir import TensorType
from ..graph.prims import GROUPED
from . import attention, epilogues, failing, fusion, grouped, kernel_names, lower, sure, timing, user_launches
from .alike import Alike
from .buffers import Buffers, Storage
from .by_rows import summed_by_rows
from .collective_calls import in_fewer_steps
from .described import Described, describe
from .direct_writes import write_into_inputs
from .emit_plan import emit
from .in_place import reuse_in_place
from .joining import join_launches
from .indexing import unaliased
from .layout import channels_last, operands_laid_out
from .library_calls import computed_here
from .lifetimes import find_lifetimes
from .loops import rename
from .moments import one_pass
from .padding import pad_rows
from .planned import CallLibrary, RunKernel, RunTogether, Touch
from .prepare import prepare
from .refine import refined
from .side_by_side import lay_side_by_side
from .registers import Registers
from .target import relied_on, target_of
from .template import settled

if TYPE_CHECKING:
    from ..graph.ir import Graph, Node
    from .groups import Group, LibraryCall
    from .loops import Kernel
    from .template import Candidate

plan_log, kernel_log = logs.channel("plan"), logs.channel("kernels")


@dataclass
class Options:
    """``target``: "native" compiles kernels, "reference" leaves them to the interpreter in ``reference``.
    ``fuse=False`` gives each root its own kernel; ``in_place`` lets results take the memory of dying operands;
    ``channels_last`` lets convolutions run in that format; ``unaligned``: the numbers of inputs whose address is
    not aligned (GPU kernels assume that of the others, so the caller has to guard it); ``symbols``: names of sizes
    that are among the integers of a call even if no kernel of the graph uses them; ``choose``: what chooses among the
    candidates for an ``epilogues.Call``, and gives None for the library's: timing, where templates are on; ``graphs``:
    see ``runtime.plan.Plan``; ``owns_inputs``: a run lets go of inputs behind the last step that reads them,
    as a backward does; ``backward``: it is one, which its kernels' names
    say; ``registers``: those of a plan of which this graph's is to be a part."""

    target: str = "native"
    fuse: bool = True
    in_place: bool = True
    channels_last: bool = True
    unaligned: frozenset = frozenset()
    symbols: tuple = ()
    choose: Optional[Callable] = None
    graphs: str = "never"
    owns_inputs: bool = False
    backward: bool = False
    registers: Optional[Registers] = None


@dataclass
class CompiledGraph:
    """A graph ready to run.

    ``plan``: the runtime's Plan. ``kernels``: (name, source text) of each distinct kernel. ``loops``: name -> loop
    kernel. ``launches``: the loop kernels in launch order. ``int_symbols``: the size symbols to be passed as ints after
    the tensors. ``takes``, ``gives``: the types of its inputs and results. ``described``: what it does, where someone
    asks for a report. ``call(*tensors, *ints)`` runs it.
    """

    plan: runtime.plan.Plan
    kernels: list = field(default_factory=list)
    loops: dict = field(default_factory=dict)
    launches: list = field(default_factory=list)
    int_symbols: tuple = ()
    takes: tuple[TensorType, ...] = ()
    gives: tuple[TensorType, ...] = ()
    described: Described | None = None

    @functools.cached_property
    def call(self) -> Callable:
        return runtime.load_plan(self.plan)


def compile_graph(graph: Graph, options: Optional[Options] = None) -> CompiledGraph:
    """Schedule a graph, compile its kernels and make its plan.

    Raises:
        Unsupported: a node has neither a lowering nor a library call.
        CompileError: a kernel did not compile.
    """
    return begin_graph(graph, options)()


def begin_graph(graph: Graph, options: Optional[Options] = None) -> Callable[[], CompiledGraph]:
    """Begin with ``compile_graph``: what is returned waits for the kernels, and gives it. Raises Unsupported."""
    with logs.timed("schedule"):
        planner = Planner(graph, options or Options())
        planner.schedule()
    with logs.timed("kernels"):
        planner.begin_kernels()

    def finish() -> CompiledGraph:
        with logs.timed("kernels"):
            planner.finish_kernels()
        compiled = planner.finish()
        if plan_log:
            plan_log(compiled.plan.text())
        return compiled

    return finish


class Planner:
    def __init__(self, graph: Graph, options: Options) -> None:
        self.options = options
        if options.channels_last:
            graph = operands_laid_out(channels_last(graph))
        self.graph = one_pass(summed_by_rows(refined(in_fewer_steps(prepare(pad_rows(graph))))))
        self.regs = options.registers or Registers(self.graph.inputs)
        for name in options.symbols:
            self.regs.symbol(name)
        self.steps: list[CallLibrary | RunKernel | RunTogether | Touch] = []
        self.times: list[int] = []  # for each of them the number of the schedule's step of which it is a part
        self.launches: list = []  # loop kernels, in order
        self.launch_keys: list[tuple] = []  # what is compiled for each of them
        self.origins: list[Group | Node] = []  # what each of them computes
        self.refused: list[tuple] = []  # see ``fusion.Schedule``
        self.joined: dict[tuple, int] = {}  # keys of kernels of several runs at once -> of how many at most
        self.aligned_inputs: set[int] = set()  # inputs whose address kernels take for an aligned one

    def schedule(self) -> None:
        """Decide what is done in which order, where each value lies, and what the kernels are. The order of the passes
        is stated here: each relies on those before it."""
        schedule = fusion.fuse(self.graph, self.options.fuse)
        self.refused = schedule.refused
        b = self.buffers = Buffers(self.graph, schedule)
        self.alike = Alike(b.storages)
        schedule.order = failing.writes_last(self.graph, schedule, [unaliased(o.node) for o in self.graph.outputs
                                                        if o.mutates is not None])
        self._take_calls_over(schedule)
        find_lifetimes(b)
        if self.options.in_place:
            reuse_in_place(b)
        write_into_inputs(b)
        user_launches.write_where_it_lies(b)
        for t, step in enumerate(schedule.order):
            step.plan(self, t)
            self.times += [t] * (len(self.steps) - len(self.times))
        lay_side_by_side(self)
        join_launches(self)
        # ``emit``: arenas by lifetime, slots and registers, the two parts of the plan, frees.

    def _take_calls_over(self, schedule: fusion.Schedule) -> None:
        """Let kernels compute library calls that they read, by templates, where that is faster."""
        choose = self.options.choose
        if choose is None and self.options.target == "native":
            if config.templates:
                choose = functools.partial(timing.choose, plan=self._alone)
            elif sure.asked(self.graph):
                choose = _untimed
        if choose is not None:
            importlib.import_module("jit.codegen.templates")
            epilogues.take_over(self.graph, schedule, choose)

    def _alone(self, graph: Graph, inputs: list[Node], choose: Callable) -> Planner:
        """A planner of a part of the graph that reads the values ``inputs``, scheduled."""
        unaligned = frozenset(i for i, n in enumerate(inputs)
                              if n.op == "input" and n.attrs["index"] in self.options.unaligned)
        planner = Planner(graph, Options(fuse=self.options.fuse, unaligned=unaligned, choose=choose))
        planner.schedule()
        return planner

    def call_library(self, call: LibraryCall) -> None:
        if call.node.attrs.get("target") in GROUPED:
            for kernel, arguments in grouped.kernels(call.node, self.graph, self.buffers, len(self.launches)):
                self._run(kernel, arguments, call.node.inputs[0].device, False, call.node)
        elif user_launches.call_of(call.node):
            self.steps.append(user_launches.LaunchUserKernel(call.node))
        elif computed_here(call.node):
            for kernel, arguments in attention.kernels(call.node, self.graph, self.buffers, len(self.launches)):
                self._run(kernel, arguments, call.node.inputs[0].device, False, call.node)
        else:
            self.steps.append(CallLibrary(call.node))

    # kernels

    def run_kernels(self, group: Group, t: int) -> None:
        b = self.buffers
        if any(type(d) is int and d == 0 for k, d in enumerate(group.dims) if k not in group.reduced):
            for m in group.members:
                if m.node in b.storages:
                    self.steps.append(Touch(b.storages[m.node]))
            return
        stored: Any = {m.node: b.place_of(m.node) for m in group.members if m.node in b.storages}
        if not stored:
            return
        partials, name = {}, f"k{len(self.launches)}"
        for lowered in (lower.lower_group(group, b.place_of, stored, name) if group.calls
                        else self.alike.lower(group, name)):
            for key, (dtype, numel) in lowered.partials.items():
                type_ = TensorType.contiguous((numel,), dtype, group.device)
                s = partials[key] = b.add("temp", type_, t, t)
                s.nbytes = numel * dtype.itemsize
                b.partial.append(s)
            arguments = tuple(partials.get(a, a) for a in lowered.arguments)
            kernel = lowered.kernel if group.lay_out is None else group.lay_out(lowered.kernel)
            kernel, arguments = self._settled(kernel, arguments, group.device, t)
            self._run(kernel, arguments, group.device, t in b.commits, group)

    def _run(self, kernel: Kernel, arguments: tuple, device: torch.device, commits: bool, origin: Group | Node) -> None:
        self.steps.append(RunKernel(len(self.launches), arguments, device, commits))
        self.launches.append(kernel)
        self.launch_keys.append(self.launch_key(kernel, arguments))
        self.origins.append(origin)

    def _settled(self, kernel: Kernel, arguments: tuple, device: torch.device, t: int) -> tuple[Kernel, tuple]:
        """A kernel whose layout suits the addresses of its buffers, and the storages with its scratch memory."""
        if kernel.layout is None or self.options.target == "reference":
            return kernel, arguments
        everything = all(a == lower.ERROR or self.is_aligned(a) for a in arguments)
        kernel = replace(kernel, layout=kernel.layout.aligned(kernel, everything))
        size = kernel.layout.scratch(kernel)
        if not size:
            return kernel, arguments
        memory = self.buffers.add("temp", TensorType.contiguous((size,), torch.uint8, device), t, t)
        memory.nbytes = size
        self.buffers.partial.append(memory)
        return kernel, (*arguments, memory)

    def launch_key(self, kernel: Kernel, arguments: Sequence[Any]) -> tuple[str, tuple[int, ...]]:
        """What is compiled once: the structure and which pointers are not aligned, where kernels rely on that."""
        if not devices.of_type(kernel.device).pointer_alignment:
            return kernel.key, ()
        pointers = [(k, a) for k, a in enumerate(arguments) if a != lower.ERROR]
        self.aligned_inputs.update(a.slot for _, a in pointers if a.kind == "input" and self.is_aligned(a))
        return kernel.key, tuple(k for k, a in pointers if not self.is_aligned(a))

    def is_aligned(self, storage: Storage) -> bool:
        if storage.kind == "input":
            return storage.slot not in self.options.unaligned
        return storage.kind not in ("extern", "part") or not storage.loose

    def _runs(self) -> Iterator[tuple[Kernel, tuple]]:
        """The kernels that are launched, in order, and what is compiled for each."""
        for step in self.steps:
            if isinstance(step, RunTogether) and step.key in self.joined:
                yield step.kernels[0], step.key
            elif isinstance(step, (RunKernel, RunTogether)):
                for run in step.runs if isinstance(step, RunTogether) else (step,):
                    yield self.launches[run.number], self.launch_keys[run.number]

    def compile_kernels(self) -> None:
        """Compile each distinct kernel once; fills ``self.code``: key -> what the target makes of it."""
        self.begin_kernels()
        self.finish_kernels()

    def begin_kernels(self) -> None:
        """Begin to compile each distinct kernel."""
        self.code: dict = {}
        self.named: dict = {}
        self.sources: list[tuple[str, str]] = []
        self.begun: list[tuple[list[tuple], list[Kernel], Callable]] = []
        by_device: dict = {}
        for k, key in self._runs():
            if key not in self.named:
                loose = "".join(f"_{i}" for i in (*key[1], *key[2:]))
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
            joined = {k.name: self.joined[key] for k, key in zip(kernels, keys) if key in self.joined}
            known = relied_on(kernels)
            finish = target_of(device).begin_kernels(kernels, aligned, **({"joined": joined} if joined else {}))
            if config.strict and relied_on(kernels) != known:
                raise AssertionError(f"the text of kernels relies on sizes: {relied_on(kernels)}, before: {known}")
            self.begun.append((keys, kernels, finish))

    def finish_kernels(self) -> None:
        """Wait for them."""
        meanwhile.now()
        begun, self.begun = self.begun, []
        for keys, kernels, finish in begun:
            found = finish()
            for k, key in zip(kernels, keys):
                self.code[key], text = found[k.name]
                self.sources.append((k.name, text))

    def name_of(self, runs: Sequence[RunKernel]) -> str:
        """What profilers call a step that is these runs."""
        return kernel_names.of_step([self.origins[run.number] for run in runs], self.options.backward)

    # the plan

    def finish(self) -> CompiledGraph:
        plan = emit(self)
        kernels = {k.name: k for k in self.named.values()}
        return CompiledGraph(plan, self.sources, kernels, [self.named[key] for _, key in self._runs()],
                             tuple(self.regs.int_symbols), tuple([n.type for n in self.graph.inputs]),
                             tuple([o.node.type for o in self.graph.outputs]),
                             describe(self, plan) if observing.observer() is not None else None)


def _untimed(call: epilogues.Call) -> Candidate | None:
    """The candidate for a call that is used where nothing is timed; None for the library."""
    return sure.choose(call) or settled(call)
