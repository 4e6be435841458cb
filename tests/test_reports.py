"""What ``jit.explain`` tells: the source line by line, what each kernel and library call reads, writes and computes,
what was not fused and why, memory, times, and why a function was compiled again."""

import math
import time

import jit
import pytest
import torch
from jit import observing, spelling
from jit.report import model, text
from torch import nn


def steps_of(told, direction=model.FORWARD):
    return [step for region in told.report.regions for plan in region.plans if plan.direction == direction
            for step in plan.steps]


def lines_of(told, name):
    (source,) = [s for s in told.report.sources if s.name.endswith(name)]
    return {line.text.strip(): line for line in source.lines}


def helper(x):
    if x.shape[0] > 100:
        return x * 2
    return x.t().cumsum(1)


def broken(x):
    y = (x * 3).relu()
    jit.graph_break()
    # a comment
    for k in range(2):
        y = y + k
    return y.sum(0) + helper(y).mean()


def test_the_source_line_by_line():
    told = jit.explain(broken)(torch.randn(8, 4))
    lines = lines_of(told, "broken")
    kinds = {text: line.kind for text, line in lines.items()}
    assert kinds["y = (x * 3).relu()"] == model.CAPTURED and lines["y = (x * 3).relu()"].operations >= 2
    assert kinds["jit.graph_break()"] == model.BREAK and "jit.graph_break" in lines["jit.graph_break()"].note
    assert kinds["# a comment"] == "" and kinds["for k in range(2):"] == model.FOLLOWED
    assert lines["y = (x * 3).relu()"].regions != lines["y = y + k"].regions
    inlined = lines_of(told, "helper")
    assert inlined["if x.shape[0] > 100:"].kind == model.FOLLOWED
    assert inlined["return x * 2"].kind == "" and inlined["return x.t().cumsum(1)"].kind == model.CAPTURED
    (source,) = [s for s in told.report.sources if s.name.endswith("helper")]
    assert source.inlined and source.place.line == helper.__code__.co_firstlineno


@torch.no_grad()
@pytest.mark.parametrize("shape", [(128, 64), (3, 5), (1, 7), (0, 4)])
def test_bytes_and_operations_of_a_kernel(shape):
    told = jit.explain(lambda x: (x * 2 + 1).relu())(torch.randn(shape))
    steps, size = steps_of(told), 4 * math.prod(shape)
    assert len(steps) == bool(size)
    for step in steps:
        assert (step.kind, step.read, step.written) == (model.KERNEL, size, size)
        assert step.operations == 3 * math.prod(shape) and step.places[0].file == __file__


@torch.no_grad()
def test_what_is_expanded_is_read_once_and_views_share_their_memory():
    told = jit.explain(lambda x, y: x[:, :8] + y.expand(16, 8) + x[:, 8:])(torch.randn(16, 16), torch.randn(1, 8))
    (step,) = steps_of(told)
    assert step.read == 4 * (16 * 16 + 8) and step.written == 4 * 16 * 8


@torch.no_grad()
def test_library_calls():
    told = jit.explain(lambda a, b: torch.linalg.solve(a @ b + 10 * torch.eye(32), b))(torch.randn(32, 32),
                                                                                       torch.randn(32, 32))
    calls = {step.name: step for step in steps_of(told) if step.kind == model.LIBRARY}
    product = next(step for name, step in calls.items() if "mm" in name)
    assert product.operations == 2 * 32 ** 3 and product.why
    assert all(step.why for step in calls.values()) and any("linalg" in name for name in calls)


def test_what_was_not_fused_and_why():
    def program(x):
        return x.cumsum(1).softmax(-1).sum(0), x.t().contiguous() * 2

    told = jit.explain(program)(torch.randn(64, 32))
    apart = [a for region in told.report.regions for plan in region.plans for a in plan.apart]
    count = len(steps_of(told))
    assert apart and all(a.why and 0 <= a.first < a.second < count for a in apart)
    assert any("order" in a.why or "reduce" in a.why for a in apart)
    passed = jit.explain(lambda x: (lambda y: y.cos() / y.sort(1).values)(x.sin()))(torch.randn(64, 32))
    assert [a.moved for region in passed.report.regions for plan in region.plans for a in plan.apart] == [64 * 32 * 4]
    fused = jit.explain(lambda x: (x * 2).exp() + 1)(torch.randn(64, 32))
    assert not [a for region in fused.report.regions for plan in region.plans for a in plan.apart]


@torch.no_grad()
def test_memory():
    def program(x):
        return (x.softmax(-1).t() @ x).sum()

    told = jit.explain(program)(torch.randn(256, 128))
    ((memory,),) = [[plan.memory for plan in region.plans] for region in told.report.regions]
    assert memory.inputs == 256 * 128 * 4 and memory.results == 4
    assert max(memory.live) >= 256 * 128 * 4 + 128 * 128 * 4 and len(memory.live) == len(steps_of(told))


@pytest.mark.parametrize("n", [1, 5, 64])
def test_what_is_kept_for_the_backward(n):
    told = jit.explain(lambda x: x.exp().sum())(torch.randn(n, 32, requires_grad=True))
    ((forward, backward),) = [region.plans for region in told.report.regions]
    assert (forward.memory.saved, forward.memory.results) == (4 * 32 * n, 4 * 32 * n + 4)
    assert backward.memory.saved == 0 and backward.memory.inputs == 4 * 32 * n + 4
    assert f"{4 * 32 * n} B of them kept" in told.text() or n > 5


def test_the_dtypes_of_what_is_kept_are_told():
    told = jit.explain(lambda x: x.sort(-1)[0].sum())(torch.randn(64, 32, requires_grad=True))
    forward = told.report.regions[0].plans[0]
    assert ("sort", "int64", 64 * 32 * 8, 1) in [(r.computes, r.dtype, r.size, r.count)
                                                 for r in forward.memory.returned]
    assert "16.0 KiB of sort (1 tensor of int64) at test_reports.py:" in " ".join(told.text().split())


def test_a_break_that_several_graphs_end_at_is_told_once():
    def f(x):
        for _ in range(3):
            x = torch.sin(x)
            jit.graph_break()
        return x

    told = jit.explain(f)(torch.ones(3))
    often = sum(b.kind == "graph-break" for b in told.break_reasons)
    text = told.text().partition("-- Graph breaks")[2]
    assert often > 1 and text.count("was called") == 1 and f"({often} times)" in text, text


def test_functions_of_libraries_are_told_apart():
    told = jit.explain(Layer())(torch.randn(4, 16))
    library = {source.name: source.library for source in told.report.sources}
    assert library["Layer.forward"] is False and library["Linear.forward"] is True
    assert "Linear.forward" not in told.text() and "Linear.forward" in told.text(everything=True)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down(torch.tanh(h) * torch.sigmoid(h) + 0.1 * h.sin() * h.cos())


@pytest.mark.parametrize("layers, train", [(2, False), (2, True), (24, False), (24, True)])
def test_all_launches_are_told(layers, train):
    torch.manual_seed(0)
    program = nn.Sequential(*[Layer() for _ in range(layers)])
    with torch.set_grad_enabled(train):
        told = jit.explain(lambda x: program(x).square().mean())(torch.randn(4, 16))
    steps = steps_of(told) + steps_of(told, model.BACKWARD)
    assert sum(step.times for step in steps if step.kind == model.KERNEL) == told.launch_count
    assert sum(step.times for step in steps_of(told) if step.kind == model.LIBRARY) == 2 * layers
    assert bool(steps_of(told, model.BACKWARD)) == train
    names = {name for region in told.report.regions for plan in region.plans for name, _ in plan.kernels}
    assert names == {step.source for step in steps if step.kind == model.KERNEL}


def test_phases_are_no_longer_than_the_whole():
    begin = time.perf_counter()
    told = jit.explain(Layer())(torch.randn(4, 16))
    took = time.perf_counter() - begin
    phases = dict(told.report.phases)
    assert phases["capture"] > 0 and phases["schedule"] > 0 and sum(phases.values()) <= took
    assert observing.observer() is None


def test_nothing_is_observed_after_an_error():
    with pytest.raises(ZeroDivisionError):
        jit.explain(lambda x: x * (1 / 0))(torch.ones(3))
    assert observing.observer() is None


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_fits(width):
    told = jit.explain(broken)(torch.randn(8, 4))
    lines = told.text(width).splitlines()
    assert max(map(len, lines)) <= width and str(told).startswith("broken: 2 graphs, 1 break")
    assert any("# " in line and "jit.graph_break()" in line for line in lines)
    assert len(told.text(width, everything=True).splitlines()) > len(lines)


def test_it_is_saved(tmp_path):
    told = jit.explain(broken)(torch.randn(8, 4))
    told.save(tmp_path / "report.html")
    told.save(tmp_path / "report.txt")
    page = (tmp_path / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>") and "broken" in page
    assert "broken" in (tmp_path / "report.txt").read_text()
    with pytest.raises(OSError):
        told.save(tmp_path / "none" / "report.html")


# -- compiled again ---------------------------------------------------------------------------------------------------


class Config:
    def __init__(self):
        self.kind = "a"


CONFIG = Config()


def of_config(x):
    return x * 2 if CONFIG.kind == "a" else x * 3


def change_config(compiled):
    compiled(torch.ones(3))
    CONFIG.kind = "b"
    compiled(torch.ones(3))
    CONFIG.kind = "a"


AGAIN = {
    "size": (lambda x: x * 2, lambda f: (f(torch.ones(3, 2)), f(torch.ones(4, 2))), "size of dim 0",
             "mark_dynamic(x, 0)"),
    "size 1": (lambda x: x * 2, lambda f: (f(torch.ones(1, 2)), f(torch.ones(4, 2))), "size of dim 0",
               "nothing needs to be done: sizes of 0 and 1"),
    "number": (lambda x, n: x * n, lambda f: (f(torch.ones(3), 2), f(torch.ones(3), 3)), "n: expected 2, found 3",
               "nothing needs to be done: n is a number"),
    "rank": (lambda x: x * 2, lambda f: (f(torch.ones(3)), f(torch.ones(3, 2))), "rank", "number of dimensions"),
    "dtype": (lambda x: x * 2, lambda f: (f(torch.ones(3)), f(torch.ones(3).double())), "dtype", "convert x"),
    "layout": (lambda x: x * 2, lambda f: (f(torch.ones(3, 3)), f(torch.ones(3, 3).t())), "stride", "contiguous()"),
    "gradients": (lambda x: x * 2, lambda f: (f(torch.ones(3)), f(torch.ones(3, requires_grad=True))), "requires_grad",
                  "with gradients"),
    "text": (lambda x, kind: x * (2 if kind == "a" else 3), lambda f: (f(torch.ones(3), "a"), f(torch.ones(3), "b")),
             "kind: expected 'a', found 'b'", "values of kind few"),
    "length": (lambda xs: xs[0] * len(xs), lambda f: (f([torch.ones(3)]), f([torch.ones(3)] * 2)), "length",
               "length of xs"),
    "attribute": (of_config, change_config, "kind", "few"),
}


@pytest.mark.parametrize("name", AGAIN)
def test_why_it_was_compiled_again_and_what_to_write(name):
    program, calls, differed, cure = AGAIN[name]
    compiled = jit.compile(program)
    calls(compiled)
    (again,) = jit.explain(compiled)(*([torch.ones(3)] if name == "length" else torch.ones(3),),
                                     *{"text": ["a"], "number": [2]}.get(name, [])).report.recompiles
    assert again.number == 2 and differed in again.differed and cure in again.cure


def half(x):
    return x.size(0) // 2


def test_a_condition_on_sizes_says_which_line_needs_it():
    def program(x):
        y = x + 1
        if half(x) > 8:
            return y * 2
        return y

    compiled = jit.compile(program, dynamic=True)
    compiled(torch.ones(6))
    compiled(torch.ones(60))
    line = program.__code__.co_firstlineno + 2
    (again,) = jit.explain(compiled)(torch.ones(6)).report.recompiles
    assert again.differed.endswith(f"does not hold (s0 = x.size(0)), which {__file__}:{line} needs"), again.differed


def test_so_does_one_of_an_entry_that_was_read_from_disk(python, tmp_path):
    (tmp_path / "branches.py").write_text(
        "import torch, jit, sys\ndef program(x):\n    return x * 2 if x.size(0) > 16 else x + 1\n"
        "f = jit.compile(program, dynamic=True)\nfor n in map(int, sys.argv[1:]):\n    f(torch.ones(n))\n")
    options = {"JIT_ENTRY_CACHE": "1", "JIT_CACHE_DIR": str(tmp_path / "cache"), "JIT_LOGS": "recompiles,cache"}
    file = str(tmp_path / "branches.py")
    python(file, "6", **options)
    said = python(file, "6", "60", **options).stderr
    assert "read from disk" in said and f"does not hold (s0 = x.size(0)), which {file}:3 needs" in said, said


def test_a_number_that_python_needs_and_one_without_dynamic():
    """What is said of a number depends on whether code can be for any value of it."""
    keyed = jit.compile(lambda x, n: x * {1: 2.0, 2: 3.0, 3: 4.0}[n])
    fixed = jit.compile(lambda x, n: x * n, dynamic=False)
    for compiled, said in ((keyed, "Python itself has to know the value of n"), (fixed, "leave out dynamic=False")):
        for n in (1, 2, 3):
            compiled(torch.ones(3), n)
        assert said in jit.explain(compiled)(torch.ones(3), 1).report.recompiles[-1].cure


def test_what_follows_from_a_break_is_said_to():
    def program(x):
        for _ in range(4):
            x = torch.sin(x) + 1
            jit.graph_break()
        return x

    said, compiled = [], jit.compile(program)
    jit.logs.channel("recompiles").listener = said.append
    try:
        compiled(torch.ones(3))
    finally:
        jit.logs.channel("recompiles").listener = None
    assert said and any("it follows from a graph break: mend that one" in text for text in said), said


def test_cures_help():
    """Doing what is said, the function is compiled once."""
    compiled, x = jit.compile(lambda x: x * 2), torch.ones(3, 2)
    jit.mark_dynamic(x, 0)
    compiled(x)
    compiled(torch.ones(4, 2))
    assert not jit.explain(compiled)(x).report.recompiles
    compiled = jit.compile(lambda x: x * 2)
    for x in (torch.ones(3, 3), torch.ones(3, 3).t()):
        compiled(x.contiguous())
    assert not jit.explain(compiled)(torch.ones(3, 3)).report.recompiles


def test_of_a_module_in_the_programs_own_names():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = jit.compile(module)
    compiled(torch.ones(2, 4))
    module[0].weight.requires_grad_(False)
    compiled(torch.ones(2, 4))
    told = jit.explain(compiled)(torch.ones(2, 4))
    (again,) = told.report.recompiles
    assert again.differed.startswith("self[0].weight") and told.graph_count == 1
    assert any(guard.about == "self[0].weight" for region in told.report.regions for guard in region.guards)


class Owner:
    scale = 2

    @jit.compile
    def call(self, x):
        return x * self.scale


def test_of_a_method():
    owner = Owner()
    owner.call(torch.ones(3))
    owner.call(torch.ones(4, 2))
    told = jit.explain(owner.call)(torch.ones(3))
    assert told.graph_count == 1 and told.report.recompiles[-1].cure


def behind_a_break(x):
    y = x * 2
    jit.graph_break()
    return y.sum()


def test_a_value_that_has_no_name_is_not_marked():
    compiled = jit.compile(behind_a_break)
    for shape in ((3, 2), (4, 2)):
        compiled(torch.ones(shape))
    for again in jit.explain(compiled)(torch.ones(3, 2)).report.recompiles:
        assert "a value in use" not in again.cure or "mark_dynamic" not in again.cure


def test_guards_say_whether_a_call_checks_them():
    module = nn.Linear(4, 4)
    guards = [g for r in jit.explain(lambda x: module(x))(torch.ones(2, 4)).report.regions for g in r.guards]
    checked = {g.about: g.watched for g in guards}
    assert checked["x"] is False and checked[""] is False and any(g.watched for g in guards)


def test_the_warning_at_the_limit_says_what_to_write():
    compiled = jit.compile(lambda x: x * 2, options={"cache_limit": 3})
    with pytest.warns(UserWarning, match="x: dtype: expected .* To avoid it: convert x to one dtype"):
        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.float16):
            compiled(torch.ones(2, dtype=dtype))


# -- what is compiled already -----------------------------------------------------------------------------------------


def test_a_compiled_function_is_the_function_behind_it():
    calls = []

    @jit.compile
    def program(x):
        calls.append(torch.compiler.is_compiling() or jit.is_compiling())
        return x * 2

    program(torch.ones(3))
    assert calls == [True]
    eager = jit.disable(program)
    eager(torch.ones(3))
    assert calls == [True, False]
    assert jit.verify(program)(torch.ones(3)).ok
    assert jit.explain(program)(torch.ones(3)).graph_count == 1


@pytest.mark.parametrize("n, expected", [(1, "1 thing"), (2, "2 things")])
def test_words(n, expected):
    assert spelling.counted(n, "thing") == expected
    assert [text.ordinal(k) for k in (1, 2, 3, 4, 11, 12, 21, 102)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "102nd"]


def test_the_entries_of_a_compiled_function_are_told():
    """Which there are, how often they were used, and what keeps each from serving the call."""
    def f(x, n):
        y = x * n
        jit.graph_break()
        return y + 1

    compiled = jit.compile(f, dynamic=False)
    assert jit.explain(compiled)(torch.randn(3), 2).report.entries == ()
    for _ in range(3):
        compiled(torch.randn(3), 2)
    compiled(torch.randn(5), 2)
    told = jit.explain(compiled)(torch.randn(5), 2)
    own = [e for e in told.report.entries if e.differs is not None]
    assert [(e.number, e.calls, e.differs == "") for e in own] == [(0, 2, False), (1, 0, True)]
    assert "x" in own[0].differs and "5" in own[0].differs
    assert len(told.report.entries) == 4  # what goes on behind the break has two as well
    assert "entry 1: has served 0 calls; it would serve this one" in " ".join(told.text(200).split())
    assert [e.differs == "" for e in jit.explain(compiled)(torch.randn(4), 2).report.entries[:2]] == [False, False]


def test_the_entries_of_modules_and_methods_are_told(tmp_path):
    class Model(nn.Module):
        def forward(self, x, *more, scale=1.0, **options):
            return x * scale

        @jit.compile
        def twice(self, x):
            return 2 * x

    model = Model()
    compiled = jit.compile(model)
    compiled(torch.ones(3), scale=2.0)
    told = jit.explain(compiled)(torch.ones(3), scale=2.0)
    assert [e.differs for e in told.report.entries] == [""]
    told.save(tmp_path / "page.html")
    assert "nothing: it would serve this call" in (tmp_path / "page.html").read_text()
    model.twice(torch.ones(3))
    assert [e.differs for e in jit.explain(model.twice)(torch.ones(3)).report.entries] == [""]
    (entry,) = jit.explain(model.twice)(torch.ones(3, dtype=torch.float64)).report.entries
    assert "float64" in entry.differs or "Double" in entry.differs


def test_a_report_says_what_it_is_about():
    def f(x):
        return x * 2

    class Model(nn.Module):
        def forward(self, x):
            return x * 3

    for what, code in (f, f.__code__), (jit.compile(f), f.__code__), (Model(), Model.forward.__code__):
        place = jit.explain(what)(torch.ones(2)).report.place
        assert (place.file, place.line) == (code.co_filename, code.co_firstlineno)


def test_what_is_looked_up_by_indices_is_read_as_far_as_it_is_found():
    """Of a large table the rows that are asked for, and not more of it than there is."""
    def f(table, rows):
        return torch.nn.functional.embedding(rows, table) * 2

    table, few, many = torch.randn(5000, 16), torch.randint(5000, (10,)), torch.randint(5000, (40_000,))
    (step,) = steps_of(jit.explain(f)(table, few))
    assert step.read == 10 * 16 * 4 + 10 * 8 and step.written == 10 * 16 * 4
    (step,) = steps_of(jit.explain(f)(table, many))
    assert step.read == 5000 * 16 * 4 + 40_000 * 8


def test_the_arithmetic_of_attention_is_known():
    q = torch.randn(2, 4, 32, 16, requires_grad=True)
    told = jit.explain(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q))(q)
    product = 2 * 2 * 4 * 32 * 32 * 16
    assert sum(s.operations for s in steps_of(told) if "attention" in s.name) == 2 * product
    assert sum(s.operations for s in steps_of(told, model.BACKWARD) if "attention" in s.name) == 5 * product


def test_arithmetic_of_library_calls_is_what_torch_counts():
    from torch.utils import flop_counter

    x, images = torch.randn(2, 6, 20), torch.randn(2, 6, 9, 8)
    programs = [
        (torch.nn.functional.linear, x, torch.randn(5, 20)), (torch.matmul, x, torch.randn(20, 3)),
        (lambda x, w: torch.nn.functional.conv1d(x, w, stride=2, groups=2), x, torch.randn(4, 3, 5)),
        (lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), images, torch.randn(4, 6, 3, 2)),
        (lambda x, w: torch.nn.functional.conv3d(x, w, dilation=2), images[None], torch.randn(4, 2, 2, 3, 2)),
        (lambda x, w: torch.nn.functional.conv_transpose1d(x, w, groups=3), x, torch.randn(6, 5, 2)),
        (lambda x, w: torch.nn.functional.conv_transpose2d(x, w, stride=2), images, torch.randn(6, 5, 3, 2)),
        (lambda x, w: torch.nn.functional.conv_transpose3d(x, w), images[None], torch.randn(2, 5, 1, 3, 2)),
    ]
    for fn, *given in programs:
        with flop_counter.FlopCounterMode(display=False) as counted:
            fn(*given)
        (step,) = steps_of(jit.explain(fn)(*given))
        assert step.operations == counted.get_total_flops() > 0, fn
    q, k, v = torch.randn(2, 3, 40, 16), torch.randn(2, 3, 50, 16), torch.randn(2, 3, 50, 8)
    (step,) = steps_of(jit.explain(torch.nn.functional.scaled_dot_product_attention)(q, k, v))
    assert step.operations == flop_counter.sdpa_flop_count(q.shape, k.shape, v.shape)
