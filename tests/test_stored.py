"""Entries on disk: a second process captures nothing and computes the same; what has changed is never used; damage does
no harm."""

import gc
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from pathlib import Path

import pytest
import stored_programs
import torch

import jit
from jit.frame import dispatch, stored, writer
from jit.runtime import cache, contents, sources

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache that is used in this process."""
    monkeypatch.setattr(stored, "_off", [False])
    monkeypatch.setattr(writer, "at_once", True)
    monkeypatch.setattr(sources, "BEGAN", time.time() + 1e6)
    with jit.config.patch(cache_dir=str(tmp_path / "cache"), entry_cache=True):
        yield tmp_path / "cache"


def rows(done):
    return {name: (captures, results) for name, captures, results in map(json.loads, done.stdout.splitlines())}


# Without the cache of a function that the first call has filled, the second process has another thing to capture.
AGAIN = {"cached"}


def test_a_second_process_captures_nothing(python, tmp_path):
    first = rows(python(str(HERE / "stored_programs.py"), str(tmp_path), timeout=300))
    second = rows(python(str(HERE / "stored_programs.py"), str(tmp_path), timeout=300))
    assert all(captures for captures, _ in first.values())
    assert {name for name, (captures, _) in second.items() if captures} <= AGAIN
    assert {name: found[1] for name, found in first.items()} == {name: found[1] for name, found in second.items()}


def test_another_world(python, tmp_path):
    """Entries of one process hold in another one only as far as what they were made of is the same."""

    def run(world):
        script = (f"import world_programs, stored_programs; stored_programs.use({str(tmp_path)!r}); "
                  "world_programs.main()")
        out = python(script, WORLD=str(world), cwd=HERE, timeout=300).stdout
        lines = (line.split(" ", 2) for line in out.splitlines())
        return {name: (same, int(captures)) for same, captures, name in lines}

    first, second, again = run(2), run(3), run(2)
    for world in (first, second, again):
        assert [name for name, (same, _) in world.items() if same != "same"] == []
    assert all(captures for _, captures in first.values())
    assert sum(captures == 0 for _, captures in again.values()) >= 110


MAIN = """
import enum, sys, collections
sys.path.append({here!r})
import torch, jit, stored_programs
import helper
from jit.frame import dispatch
GLOBAL = 2.0
TABLE = {{"k": 3.0}}

class Kind(enum.Enum):
    A = 1.0

def inner(x):
    return helper.double(x) + GLOBAL

class Model(torch.nn.Module):
    factor = 5.0
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4.0))
    def forward(self, x):
        return x * self.weight * self.factor

model = Model()

def f(x):
    return model(inner(x)) * Kind.A.value * helper.Kind.A.value + helper.PAIR.a + TABLE["k"]

stored_programs.use({folder!r})
x = torch.arange(4.0)
found, wanted = jit.compile(f)(x), f(x)
assert torch.equal(found, wanted), (found, wanted)
print(dispatch.captures_so_far())
"""
HELPER = """
import collections, enum
PAIR = collections.namedtuple("PAIR", "a b")(1.0, 9.0)

class Kind(enum.Enum):
    A = 2.0

def double(x):
    return x * 2
"""
EDITS = {
    "nothing": ("", "", 0),
    "a comment of the helper": ("# the functions", "", 1),  # a module is relied on as a whole
    "an inlined helper": ("x * 2", "x * 4", 1),
    "a member of an enumeration": ("A = 2.0", "A = 7.0", 1),
    "the fields of a named tuple": ('"a b"', '"b a"', 1),
    "the function itself": ("return model(inner(x))", "return inner(model(x))", 1),
    "a global": ("GLOBAL = 2.0", "GLOBAL = 3.0", 1),
    "an entry of a dict": ('"k": 3.0', '"k": 4.0', 1),
    "an attribute of a class": ("factor = 5.0", "factor = 6.0", 1),
    "its own enumeration": ("A = 1.0", "A = 3.0", 1),
    "a method": ("x * self.weight * self", "x + self.weight * self", 1),
    "a parameter's shape": ("torch.arange(4.0))\n    def", "torch.arange(1.0))\n    def", 1),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A folder with the program and its helper, and what a first process has kept of them."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "main.py").write_text(MAIN.format(folder=str(folder / "cache"), here=str(HERE)))
    (folder / "helper.py").write_text(HELPER + "# the functions\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    subprocess.run([sys.executable, "main.py"], cwd=folder, env=environment, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("edit", EDITS)
def test_edited_sources(python, program, edit):
    """Also with the times of the files put back."""
    old, new, captures = EDITS[edit]
    before = {}
    for file in (program / "main.py", program / "helper.py"):
        info, before[file] = os.stat(file), file.read_text()
        file.write_text(before[file].replace(old, new) if old else before[file])
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    shutil.rmtree(program / "__pycache__", ignore_errors=True)
    try:
        assert int(python(str(program / "main.py"), cwd=program).stdout) == captures
    finally:
        for file, text in before.items():
            file.write_text(text)


def test_a_file_that_was_written_after_the_process_began_is_not_relied_on(tmp_path, monkeypatch):
    file = tmp_path / "module.py"
    file.write_text("a = 1")
    assert sources.of_file(str(file)) if file.stat().st_mtime < sources.BEGAN else True
    sources.forget()
    monkeypatch.setattr(sources, "BEGAN", file.stat().st_mtime - 10)
    with pytest.raises(sources.Unknown, match="after this process began"):
        sources.of_file(str(file))
    sources.forget()


# ---- in one process -------------------------------------------------------------------------------------------------

SCALE = 2.0


def scaled(x):
    return torch.relu(x) * SCALE + 1


def twice(fn, *calls):
    """How many captures two compiled forms of a function take for these calls, which they do one after the other."""
    counts = []
    for _ in range(2):
        compiled, before = jit.compile(fn), dispatch.captures_so_far()
        for arguments in calls:
            found, wanted = compiled(*arguments), fn(*arguments)
            assert torch.equal(found, wanted)
        counts.append(dispatch.captures_so_far() - before)
    return counts


def test_the_same_function_again(folder):
    assert twice(scaled, (torch.randn(5),)) == [1, 0]


def test_sizes_that_vary(folder):
    """The second form has the entry for any size at once, and it is found for each kind of call."""
    assert twice(scaled, (torch.randn(5),), (torch.randn(7),), (torch.randn(9),), (torch.randn(0),))[1] == 0


def test_what_was_seen_to_vary_is_remembered(folder):
    compiled = jit.compile(scaled)
    compiled(torch.randn(5))
    before = dispatch.captures_so_far()
    again = jit.compile(scaled)
    again(torch.randn(5))  # from disk
    again(torch.randn(8))  # a second size: any size from here on
    again(torch.randn(11))
    assert dispatch.captures_so_far() - before == 1


def test_layouts_and_gradients(folder):
    x = torch.randn(6, 8)
    calls = [(x[:3, :4],), (x.t(),), (x[:1].expand(3, 8),), (torch.randn(2, 0),), (torch.randn(3, 4).double(),)]
    assert twice(scaled, *calls)[1] == 0
    for expected in ([1], [0]):
        weight, before = torch.nn.Parameter(torch.randn(4)), dispatch.captures_so_far()
        out = jit.compile(lambda x, w: (x * w).exp().sum())(torch.ones(3, 4), weight)
        out.backward()
        assert torch.allclose(weight.grad, 3 * weight.detach().exp())
        assert [dispatch.captures_so_far() - before] == expected


def test_second_derivatives_of_an_entry_from_disk(folder):
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        y = jit.compile(lambda x: (x**3).sum())(x)
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert torch.allclose(first, 3 * x**2) and torch.allclose(second, 6 * x)


def test_a_break_and_what_goes_on_behind_it(folder):
    seen = []

    def broken(x):
        y = x * 2
        jit.graph_break()
        seen.append(float(y.sum()))
        return y + 1

    counts = twice(broken, (torch.ones(3),))
    assert counts[0] >= 2 and counts[1] == 0 and seen == [6.0] * 4


def test_an_error_of_the_program_is_the_same(folder):
    def failing(x):
        return x.view(7)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
            jit.compile(failing)(torch.ones(3))


def test_global_state_of_the_thread(folder):
    def mode(x):
        return x * 2 if torch.is_grad_enabled() else x * 3

    def both(x):
        with torch.no_grad():
            return compiled(x)

    for expected in (2, 0):
        compiled, before = jit.compile(mode), dispatch.captures_so_far()
        x = torch.ones(2)
        assert compiled(x).tolist() == [2, 2] and both(x).tolist() == [3, 3]
        assert dispatch.captures_so_far() - before == expected


def test_options_tell_entries_apart(folder):
    jit.compile(scaled)(torch.randn(5))
    for options in (dict(dynamic=True), dict(fullgraph=True), dict(backend="eager"), dict(options={"templates": True})):
        before = dispatch.captures_so_far()
        jit.compile(scaled, **options)(torch.randn(5))
        assert dispatch.captures_so_far() - before == 1, options
    passed = []
    for _ in range(2):  # what a pass does is not known
        jit.compile(scaled, passes=[passed.append])(torch.randn(5))
    assert len(passed) == 2


def test_logs_of_compiling_and_reset_compile_anew(folder):
    jit.compile(scaled)(torch.randn(5))
    assert jit.explain(scaled)(torch.randn(5)).graph_count == 1
    before = dispatch.captures_so_far()
    jit.reset()
    jit.compile(scaled)(torch.randn(5))
    assert dispatch.captures_so_far() == before + 1


def test_an_object_that_is_two_in_another_process_is_not_taken_for_one(folder):
    held = [[1], [1]]

    def lengths(x, same):
        a, b = (held[0], held[0]) if same else held
        return x * len(a)

    assert twice(lengths, (torch.ones(2), True), (torch.ones(2), False))[1] == 0


# ---- damage ---------------------------------------------------------------------------------------------------------


def files(folder):
    return [Path(file.path) for file in cache.kept(cache.entries)]


def damaged(data, rng):
    kind = rng.randrange(5)
    if kind == 0:
        return data[:rng.randrange(len(data))]
    if kind == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1:]
    if kind == 2:
        return data + b"x" * rng.randrange(1, 100)
    if kind == 3:
        return b""
    return bytes(rng.randrange(256) for _ in range(200))


def test_damaged_files(folder):
    """Also what has a right digest and is cut short, or is something else, as of another version of the format."""
    jit.compile(scaled)(torch.randn(5))
    (file,) = files(folder)
    data, rng = file.read_bytes(), random.Random(0)
    for k in range(120):
        if k % 4:
            file.write_bytes(damaged(data, rng))
        else:
            bad = data[:rng.randrange(len(data) - 60)] if k % 8 else rng.randbytes(300)
            cache.entries.put_there(f"{file.parent.name}/{file.name}", bad)
        before, x = dispatch.captures_so_far(), torch.randn(5)
        assert torch.equal(jit.compile(scaled)(x), scaled(x))
        assert dispatch.captures_so_far() == before + 1
        for other in files(folder):
            if other != file:
                other.unlink()


def test_damaged_kernels(folder):
    jit.compile(scaled)(torch.randn(5))
    jit.reset()
    stored._off[0] = False
    for found in cache.kept(cache.kernels):
        path = Path(found.path)
        path.write_bytes(path.read_bytes()[:-50])
    x = torch.randn(5)
    assert torch.equal(jit.compile(scaled)(x), scaled(x))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user(folder):
    jit.compile(scaled)(torch.randn(5))
    for file in files(folder):
        os.chown(file, 12345, 12345)
    before, x = dispatch.captures_so_far(), torch.randn(5)
    assert torch.equal(jit.compile(scaled)(x), scaled(x)) and dispatch.captures_so_far() == before + 1


def test_a_clock_that_jumps(folder):
    jit.compile(scaled)(torch.randn(5))
    for when in (0, 1, 2**31, 4e9):
        for file in files(folder):
            os.utime(file, (when, when))
        before, x = dispatch.captures_so_far(), torch.randn(5)
        assert torch.equal(jit.compile(scaled)(x), scaled(x)) and dispatch.captures_so_far() == before
        assert cache.trim() == 0


def test_another_version_of_torch_does_not_use_them(folder, monkeypatch):
    jit.compile(scaled)(torch.randn(5))
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    sources.versions.cache_clear()
    try:
        before = dispatch.captures_so_far()
        jit.compile(scaled)(torch.randn(5))
        assert dispatch.captures_so_far() == before + 1
    finally:
        sources.versions.cache_clear()


def test_another_device_of_the_same_kind_does_not_use_them(folder, monkeypatch):
    jit.compile(scaled)(torch.randn(5))
    monkeypatch.setattr("jit.devices.cpu.Cpu.facts", lambda self, device: "another processor")
    before = dispatch.captures_so_far()
    jit.compile(scaled)(torch.randn(5))
    assert dispatch.captures_so_far() == before + 1


FULL = """
import resource, signal, sys
sys.path.insert(0, {here!r})
import torch, jit, stored_programs
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
stored_programs.use({folder!r})
jit.compile(lambda x: x * 2)(torch.ones(3))
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
for k in range(3):
    assert jit.compile(lambda x: x.sin() * 3 + k, backend="eager")(torch.ones(3)).shape == (3,)
print("right")
"""


def test_a_full_disk(python, tmp_path):
    """No file can grow beyond 64 bytes: nothing is kept, and nothing is told."""
    done = python(FULL.format(here=str(HERE), folder=str(tmp_path)))
    assert "right" in done.stdout and "Error" not in done.stderr


def test_a_folder_that_can_only_be_read(folder, tmp_path, monkeypatch):
    """Entries in a folder of ``cache_below`` are used and never written."""
    jit.compile(scaled)(torch.randn(5))
    shared = tmp_path / "shared"
    shutil.copytree(folder, shared)
    seen = {p: p.stat().st_mtime_ns for p in shared.rglob("*")}
    with jit.config.patch(cache_dir=str(tmp_path / "own"), cache_below=f"/no/such/folder{os.pathsep}{shared}"):
        before, x = dispatch.captures_so_far(), torch.randn(5)
        assert torch.equal(jit.compile(scaled)(x), scaled(x)) and dispatch.captures_so_far() == before
        jit.compile(scaled)(torch.randn(2, 5))
        assert len(cache.kept(cache.entries)) == 1
    assert seen == {p: p.stat().st_mtime_ns for p in shared.rglob("*")}
    for path in shared.rglob("*"):
        if path.is_file():
            os.chmod(path, 0o666)  # anybody could have written them
            os.chown(path, 12345, 12345) if os.geteuid() == 0 else None
    if os.geteuid() == 0:
        with jit.config.patch(cache_dir=str(tmp_path / "third"), cache_below=str(shared)):
            before = dispatch.captures_so_far()
            jit.compile(scaled)(torch.randn(5))
            assert dispatch.captures_so_far() == before + 1


def test_the_size_is_bounded(folder):
    for k in range(4):
        jit.compile(scaled, options={"cpu_pool_mb": 100 + k})(torch.randn(k + 2, 3))
    total = sum(file.size for store in cache.STORES for file in cache.kept(store))
    assert total > 0 and cache.trim(limit_mb=1) == 0
    assert cache.trim(limit_mb=0) == total
    assert not files(folder) and not [p for p in (folder / "entries").iterdir() if p.is_dir()]
    x = torch.randn(5)
    assert torch.equal(jit.compile(scaled)(x), scaled(x))


def test_killed_while_writing(folder):
    """Processes are killed at some moment of writing an entry: what is there is whole or absent."""
    compiled = jit.compile(scaled)
    compiled(torch.randn(5))
    (file,) = files(folder)
    key, data = file.parent.name, file.read_bytes()[:-40]
    rng = random.Random(0)
    for k in range(200):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    cache.entries.put_there(f"{key}/{file.name}", data)
            finally:
                os._exit(1)
        time.sleep(rng.random() * 4e-3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if k % 20 == 0:
            assert cache.entries.get(f"{key}/{file.name}") == data
    before, x = dispatch.captures_so_far(), torch.randn(5)
    assert torch.equal(jit.compile(scaled)(x), scaled(x)) and dispatch.captures_so_far() == before
    left = [p for p in file.parent.iterdir() if p.name.startswith(".new-")]
    for path in left:
        os.utime(path, (0, 0))
    cache.trim()
    assert not [p for p in file.parent.iterdir() if p.name.startswith(".new-")]


def test_many_processes_at_once(python, tmp_path):
    script = [sys.executable, str(HERE / "stored_programs.py"), str(tmp_path), "pointwise", "containers", "model"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    running = [subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    out = [process.communicate(timeout=300)[0] for process in running]
    assert all(process.returncode == 0 for process in running)
    results = [[json.loads(line)[2] for line in text.splitlines()] for text in out]
    assert len(results[0]) == 3 and all(result == results[0] for result in results)


# ---- the writer -----------------------------------------------------------------------------------------------------


def test_the_writer_waits_for_a_quiet_moment_and_the_end(monkeypatch):
    made, owner = [], type("Owner", (), {})()
    one = writer.Writer()
    one.add(lambda owner: made.append(1), owner, "one")
    assert made == []
    assert one.finish() and made == [1]
    one.add(lambda owner: 1 / 0, owner, "one")  # nobody hears of that
    one.add(lambda owner: made.append(2), owner, "one")
    end = time.monotonic() + 30
    while one.jobs and time.monotonic() < end:
        time.sleep(0.02)
    assert one.finish() and made == [1, 2]
    gone = type("Owner", (), {})()
    one.add(lambda owner: made.append(3), gone, "gone")
    del gone
    said = []
    monkeypatch.setattr(writer.log, "listener", said.append)
    assert one.finish() and made == [1, 2]
    assert said == ["gone is not kept: nothing of the program holds what jit.compile gave any more"]


def test_a_process_that_ends_at_once_has_written_its_entries(python, tmp_path):
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(HERE)!r})
        import torch, jit, stored_programs, named_programs
        from jit.frame import writer, dispatch
        stored_programs.use({str(tmp_path)!r})
        writer.at_once = False
        compiled = jit.compile(named_programs.pointwise)
        compiled(torch.randn(4))
        print(dispatch.captures_so_far())
    """)
    assert [int(python(script).stdout) for _ in range(2)] == [1, 0]


def test_what_is_to_be_written_keeps_no_module_alive(folder, monkeypatch):
    monkeypatch.setattr(writer, "at_once", False)
    monkeypatch.setattr(writer, "QUIET_S", 60.0)
    module = torch.nn.Linear(3, 2)
    compiled, seen = jit.compile(module), weakref.ref(module)
    compiled(torch.ones(1, 3))
    del module, compiled
    gc.collect()
    assert seen() is None and writer.finish() and not files(folder)


def test_contents_that_cannot_change():
    import collections
    import functools
    import operator
    import re

    for a, b in ((re.compile("a"), re.compile("b")), (operator.itemgetter(1), operator.itemgetter(2)),
                 (functools.partial(max, 1), functools.partial(max, 2)),
                 (collections.deque([1], 2), collections.deque([1], 3)), (type("T", (str,), {})("a"), "b")):
        assert contents.contents(a) and contents.contents(a) != contents.contents(b)
    for free in ([1], {}, object(), type("P", (), {})(), lambda: 0, len, torch.ones(2), jit, stored_programs.plain):
        assert contents.contents(free) is None
    with pytest.raises(contents.Untold):
        contents.contents(__import__("threading").Lock())


def test_records_are_plain_data(folder):
    jit.compile(scaled)(torch.randn(5))
    key = f"{files(folder)[0].parent.name}/{files(folder)[0].name}"
    candidate = stored.Candidate(key)
    assert pickle.loads(pickle.dumps(candidate.header)) == candidate.header
    assert candidate.header.name == "scaled" and __name__ in candidate.header.modules
