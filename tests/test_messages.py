"""Messages name the program's own lines and names: of a break inside a library, of what goes on behind it, of modules,
globals, and of backends that fail."""

import enum
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import types
import warnings

import pytest
import torch

import jit
from jit import telling
from jit.errors import BackendError
from jit.frame import dispatch, entries
from jit.spelling import meant

ROOT = pathlib.Path(__file__).resolve().parent.parent


def line_of(fn, text):
    """(file, line) of the only line of a function with this text."""
    lines, first = inspect.getsourcelines(fn)
    (found,) = [first + k for k, line in enumerate(lines) if text in line and "line_of(" not in line]
    return fn.__code__.co_filename, found


def dumped(x):
    return json.dumps({"sum": float(x.sum())})  # in the library


def in_a_library(x):
    y = x * 2
    text = dumped(y)
    return y + len(text) * 0


def test_a_break_in_a_library_names_the_line_that_calls_it():
    records = jit.explain(in_a_library)(torch.ones(3)).break_reasons
    inside = [r for r in records if r.file == json.encoder.__file__]
    assert len(inside) > 1, records  # also of what goes on behind the first one
    for record in inside:
        assert record.user == (*line_of(dumped, "in the library"), "dumped")
        assert f"called from {record.user[0]}:{record.user[1]} in dumped" in str(record)
        assert not re.search(r"\ba\d_\d\b|\.stack", record.why), record.why


def test_a_break_in_the_program_has_no_other_line():
    def program(x):
        jit.graph_break()
        return x + 1

    (record,) = jit.explain(program)(torch.ones(3)).break_reasons
    assert record.user is None and "called from" not in str(record)


def test_the_report_has_the_line_that_calls(tmp_path):
    told = jit.explain(in_a_library)(torch.ones(3))
    file, line = line_of(dumped, "in the library")
    source = next(s for s in told.report.sources if s.name == "dumped")
    assert {made.number: made.kind for made in source.lines}[line] == "break"
    assert f"called from {file}:{line} in dumped" in told.text(140)
    told.save(tmp_path / "page.html")
    assert "Called from " in (tmp_path / "page.html").read_text()


def test_an_error_in_a_library_names_both_lines_and_nothing_of_the_compiler():
    with pytest.raises(jit.Unsupported) as caught:
        jit.compile(in_a_library, fullgraph=True)(torch.ones(3))
    file, line = line_of(dumped, "in the library")
    assert f"\n  called from {file}:{line} in dumped\n" in str(caught.value)
    inside = [entry for entry in caught.traceback if "/jit/frame/" in str(entry.path)]
    assert {entry.path.name for entry in inside} == {"dispatch.py"}
    with jit.config.patch(strict=True), pytest.raises(jit.Unsupported) as caught:  # for those who work on it
        jit.compile(in_a_library, fullgraph=True)(torch.ones(3))
    assert any(entry.path.name == "executor.py" for entry in caught.traceback)


def test_a_value_that_is_read_later_names_the_line_that_made_it():
    def program(x):
        chosen = x[x > 0]  # made here
        y = chosen.reshape(chosen.numel(), 1)
        return y.sum()

    (record,) = jit.explain(program)(torch.ones(3)).break_reasons
    assert record.line == line_of(program, "chosen.numel")[1]
    assert record.why.endswith(f"(the value comes from line {line_of(program, 'made here')[1]})")


class Kind(enum.Enum):
    FIRST, SECOND = 1, 2


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls % 2:
            return x + 1
        return x * self.calls


def test_a_module_goes_by_its_class_and_forward():
    compiled = jit.compile(Counts())
    with jit.config.patch(cache_limit=1), pytest.warns(UserWarning, match="from now on") as told:
        for _ in range(4):
            compiled(torch.ones(3))  # the call
    code = Counts.forward.__code__
    text = str(told[0].message)
    assert text.startswith(f"jit: Counts.forward ({code.co_filename}:{code.co_firstlineno}) was compiled 1 times")
    assert (told[0].filename, told[0].lineno) == line_of(test_a_module_goes_by_its_class_and_forward, "# the call")
    assert "calls" in text and "torch.tensor" in text


limit, settings = 3, {"scale": 2.0}


def of_globals(x):
    return torch.clamp(x, max=limit) * settings["scale"]


def test_globals_and_modules_go_by_their_names():
    guards = jit.explain(of_globals)(torch.ones(3)).guards
    module = __name__
    for text in (f"{module}.limit: == 3", f"{module}.settings['scale']: == 2.0", "torch.clamp: is "):
        assert any(guard.startswith(text) for guard in guards), guards
    assert f"{module}.torch: is the module torch" in guards
    assert not any(re.search(r"(method|method_descriptor|wrapper_descriptor|module) at 0x", guard) for guard in guards)


FUNCTIONS = []
for _ in range(4):
    FUNCTIONS.append(lambda x: x * 2)  # one inside of a function would go by what it does


def test_a_new_function_at_each_call_names_its_line():
    compiled = jit.compile(lambda x, fn: fn(x) + 1)
    with jit.config.patch(cache_limit=1), pytest.warns(UserWarning, match="from now on") as told:
        for fn in FUNCTIONS:
            compiled(torch.ones(3), fn)
    code = FUNCTIONS[0].__code__
    text = str(told[0].message)
    assert f"<lambda> ({code.co_filename}:{code.co_firstlineno})" in text and "make the object once" in text


def test_so_many_recompiles_are_remembered_and_no_more():
    compiled = jit.compile(lambda x, n: x * 2 if n == "never" else x, recompile_limit=64)
    for k in range(dispatch._MOST_AGAIN + 5):
        compiled(torch.ones(3), f"text {k}")
    again = [a for _, a in entries.why_again(compiled)]
    assert len(again) <= dispatch._MOST_AGAIN
    compiled = jit.compile(lambda x: x * 2, recompile_limit=64)
    for k in range(1, dispatch._MOST_AGAIN + 6):
        x = torch.ones(k + 1, 2)
        jit.mark_static(x, 0)
        compiled(x)
    again = [a for _, a in entries.why_again(compiled)]
    assert [a.number for a in again] == list(range(6, dispatch._MOST_AGAIN + 6))


def test_what_is_chosen_by_is_not_to_be_made_once():
    compiled = jit.compile(lambda x, flag: x * 2 if flag is Kind.FIRST else x - 1 if flag is Kind.SECOND else x)
    for flag in (Kind.FIRST, Kind.SECOND, None):
        compiled(torch.ones(3), flag)
    cures = [again.cure for _, again in entries.why_again(compiled)]
    assert len(cures) == 2 and all(cure.startswith("keep the values of flag few") for cure in cures), cures


def test_a_mode_is_told_in_words():
    compiled = jit.compile(lambda x: torch.relu(x))
    x = torch.ones(3)
    compiled(x)
    with torch.no_grad():
        compiled(x)
    assert entries.why_again(compiled)[0][1].differed == "grad mode: expected on, found off"
    compiled = jit.compile(lambda x: x @ x)
    for on in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            compiled(torch.ones(3, 3))
    assert "CPU autocast dtype: expected off, found bfloat16" in entries.why_again(compiled)[0][1].differed


# -- backends ---------------------------------------------------------------------------------------------------------


def raising(graph, examples):
    raise KeyError("no rule")  # raised


def giving(results):
    def backend(graph, examples):
        return lambda *tensors: results

    return backend


def test_a_backend_that_raises_is_named_and_not_taken_for_the_compiler():
    compiled = jit.compile(lambda x: torch.tanh(x), backend=raising)
    with pytest.warns(UserWarning) as told:
        result = compiled(torch.ones(3))
    torch.testing.assert_close(result, torch.tanh(torch.ones(3)))
    (text,) = [str(w.message) for w in told]
    file, line = line_of(raising, "# raised")
    code = raising.__code__
    assert text.startswith(f"jit: the backend 'raising' ({code.co_filename}:{code.co_firstlineno}) raised KeyError at "
                           f"{file}:{line}: 'no rule'. ")
    assert "please report it" not in text
    for options in (dict(fullgraph=True), {}):
        with jit.config.patch(strict=not options), pytest.raises(BackendError, match="'raising'") as caught:
            jit.compile(lambda x: torch.tanh(x), backend=raising, **options)(torch.ones(3))
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("results, said", [
    ([], "0 results came from it, and the graph has 1"),
    ([torch.ones(3), torch.ones(3)], "2 results came from it, and the graph has 1"),
    (None, "result 0 is of type NoneType, and in the graph a tensor"),
    ([torch.ones(3).double()], "result 0 is torch.float64 with 1 dimensions, and in the graph torch.float32"),
    ([torch.ones(2)], "the size of dimension 0 of result 0 is 2, and in the graph 3"),
], ids=["none", "two", "no tensor", "dtype", "size"])
def test_a_backend_that_gives_other_results_is_told_of_once(results, said):
    x = torch.randn(3)
    compiled = jit.compile(lambda x: torch.tanh(x), backend=giving(results))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), torch.tanh(x))
    (text,) = [str(w.message) for w in told]
    assert said in text and "'giving.<locals>.backend'" in text
    with jit.config.patch(strict=True), pytest.raises(BackendError, match=re.escape(said)):
        compiled(x)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, known, wanted", [
    ("reduce_overhead", ("default", "reduce-overhead"), " (did you mean 'reduce-overhead'?)"),
    ("Graph-Break", ("graph", "graph_breaks"), " (did you mean 'graph_breaks'?)"),
    ("inductor", ("jit", "eager"), ""), (3, ("jit",), ""),
])
def test_what_was_meant(name, known, wanted):
    assert meant(name, known) == wanted


def test_what_is_a_library():
    assert all(map(telling.is_library, (json.__file__, torch.__file__, jit.__file__, "<frozen runpy>",
                                        "/x/lib/python3.12/site-packages/timm/a.py")))
    assert not any(map(telling.is_library, (__file__, "<string>", "<stdin>", "/home/me/train.py")))


def test_where_no_program_is_executed_the_function_s_line_is_named():
    """As in the thread in the background."""
    told = []

    def work():
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            telling.warn("said", otherwise=("train.py", 7))
        told.extend(found)

    code = work.__code__.replace(co_filename=telling.BEHIND)  # not of a program
    thread = threading.Thread(target=types.FunctionType(code, globals(), "work", None, work.__closure__))
    thread.start()
    thread.join()
    assert [(str(w.message), w.filename, w.lineno) for w in told] == [("said", "train.py", 7)]


def kept(x, w):
    y = torch.sort(x @ w, -1).values  # sorted
    return (torch.sort(y * 2, -1).values * y).sum()


def test_the_report_says_what_is_kept_for_the_backward():
    told = jit.explain(kept)(torch.randn(64, 32, requires_grad=True), torch.randn(32, 32))
    (forward,) = [p for r in told.report.regions for p in r.plans if p.direction == "forward"]
    assert sum(r.size for r in forward.memory.returned) == forward.memory.results
    sizes = [r.size for r in forward.memory.returned]
    assert sizes == sorted(sizes, reverse=True)
    _, line = line_of(kept, "# sorted")
    at_line = {(r.computes, r.dtype): r.count for r in forward.memory.returned if r.place and r.place.line == line}
    assert at_line.get(("sort", "int64")), forward.memory.returned  # its indices
    text = " ".join(told.text(140).split())
    assert f"KiB of sort (1 tensor of int64) at test_messages.py:{line}" in text, text


# -- jit.verify -------------------------------------------------------------------------------------------------------


def test_verify_names_the_pass_that_changes_the_result():
    def pattern(x):
        return torch.tanh(x)

    def wrong(x):
        return torch.tanh(x) * 1.1

    def right(x):
        return torch.sigmoid(x * 2) * 2 - 1

    for replacement, ok in ((right, True), (wrong, False)):
        p = jit.passes.Replacement(pattern, replacement, [(torch.ones(1),)])
        told = jit.verify(lambda x: (x + 1, torch.tanh(x) + 1), passes=[p])(torch.randn(64))
        assert told.ok == ok and bool(told.by_passes) != ok, told
    code = wrong.__code__
    assert told.by_passes[0].startswith(f"the pass 'wrong' ({code.co_filename}:{code.co_firstlineno}) changes")
    assert told.by_passes[0] in str(told) and "computes: result[1] by " in told.by_passes[0]


def test_verify_says_when_only_rounding_differs():
    def program(x):
        return torch.sigmoid(x * 1.7) * x + x / 3

    x = torch.randn(4096, dtype=torch.bfloat16)
    told = jit.verify(program)(x)
    differ = int((program(x) != jit.compile(program)(x)).sum())
    assert told.ok and differ and told.rounding.startswith(f"the result: {differ} of 4096 values are not eager's")
    with jit.config.patch(match_eager_rounding=True):
        assert not jit.verify(program)(x).rounding
    assert not jit.verify(program)(x.float()).rounding


RATES = """
import torch, jit
@jit.compile
def decayed(x):
    return x * 0.9
for dtype in torch.float32, torch.float64:
    decayed(torch.ones(3, dtype=dtype))
"""


def test_what_differs_is_told_in_a_second_process_too(tmp_path):
    """Entries from disk are told as those are that are compiled."""
    (tmp_path / "rates.py").write_text(RATES)
    environment = {**os.environ, "JIT_LOGS": "recompiles", "JIT_CACHE_DIR": str(tmp_path / "cache"),
                   "JIT_ENTRY_CACHE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    told = [subprocess.run([sys.executable, "rates.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                           env=environment).stderr for _ in range(2)]
    assert "decayed (" in told[0] and "is compiled again:" in told[0]
    assert "takes another entry from disk:" in told[1] and "float64" in told[1], told[1]


def test_a_size_that_was_marked_as_static_is_told_so():
    compiled = jit.compile(lambda x: x * 2)
    for size in (4, 5):
        x = torch.ones(size)
        jit.mark_static(x, 0)
        compiled(x)
    ((_, again),) = entries.why_again(compiled)
    assert "leave out the mark_static of dim 0 of x" in again.cure


def test_the_id_of_a_break_is_the_same_by_whatever_path(tmp_path, monkeypatch):
    from jit.frame.breaks import BreakReason

    (tmp_path / "program.py").write_text("")
    monkeypatch.chdir(tmp_path)
    files = "program.py", str(tmp_path / "program.py")
    ids = {BreakReason("print", "why", "hint", file, 3, "f").id for file in files}
    assert len(ids) == 1
