"""jit.save and jit.load: one file with what was compiled, for another process; and the commands that look after what is
kept on disk."""

import json
import zipfile
from pathlib import Path

import named_programs
import pytest
import torch

import jit
from jit.frame import dispatch, stored
from jit.runtime import cache, sources

HERE = Path(__file__).parent
SAVE = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch, jit, named_programs
jit.runtime.native()
jit.config.cache_dir = sys.argv[-1] + "-of-the-first"
torch.manual_seed(0)
model = jit.compile(named_programs.Model())
x = torch.arange(8.0).view(2, 4)
with torch.no_grad():
    print(model(x).tolist())
print(jit.save(model, sys.argv[-1]).functions)
"""
LOAD = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch, jit, named_programs
from jit.frame import dispatch
jit.config.cache_dir = sys.argv[-1] + "-of-the-second"
found = jit.load(sys.argv[-1])
torch.manual_seed(0)
model = jit.compile(named_programs.Model())
x = torch.arange(8.0).view(2, 4)
with torch.no_grad():
    print(model(x).tolist())
print(found.functions, found.differs, dispatch.captures_so_far())
"""


def script(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_another_process_has_what_was_saved(python, tmp_path):
    """With an empty cache of its own, and without a compiler."""
    file = str(tmp_path / "model.jit")
    saved = python(script(tmp_path, "save.py", SAVE), file).stdout.splitlines()
    loaded = python(script(tmp_path, "load.py", LOAD), file, CXX="/no/compiler").stdout.splitlines()
    assert saved[1] == "('Model',)" and loaded[1] == "('Model',) () 0"
    assert saved[0] == loaded[0]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A file with what was compiled of a function, and a process that knows nothing of it."""
    jit.reset()  # its kernels are loaded from another folder
    monkeypatch.setattr(sources, "BEGAN", 1e12)
    monkeypatch.setattr(stored, "_off", [False])
    for store in cache.STORES:
        monkeypatch.setattr(store, "added", [])
    with jit.config.patch(cache_dir=str(tmp_path / "cache")):
        compiled = jit.compile(named_programs.breaks)
        compiled(torch.ones(4))
        jit.save(compiled, tmp_path / "file.jit")
        yield tmp_path / "file.jit"


def changed(path, **values):
    """The file with other entries in its manifest."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    manifest["here"].update(values)
    contents["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def test_load_in_the_same_process(saved):
    assert jit.load(saved).functions.count("breaks") >= 1
    before, x = dispatch.captures_so_far(), torch.randn(4)
    assert torch.equal(jit.compile(named_programs.breaks)(x), named_programs.breaks(x))
    assert dispatch.captures_so_far() == before


@pytest.mark.parametrize("what, was", [("Python", "3.99.0"), ("PyTorch", "9.9.9"), ("platform", "linux riscv64"),
                                       ("jit", "another")])
def test_what_differs_is_told(saved, what, was):
    changed(saved, **{what: was})
    with pytest.raises(jit.LoadError, match=f"{what}: {was} there"):
        jit.load(saved)
    with pytest.warns(RuntimeWarning, match="compiled anew"):
        assert jit.load(saved, recompile=True).differs
    x = torch.randn(4)
    assert torch.equal(jit.compile(named_programs.breaks)(x), named_programs.breaks(x))


def test_another_processor_is_told(saved, monkeypatch):
    monkeypatch.setattr("jit.devices.cpu.Cpu.facts", lambda self, device: "another processor")
    with pytest.raises(jit.LoadError, match="cpu is another one"):
        jit.load(saved)
    before = dispatch.captures_so_far()
    with pytest.warns(RuntimeWarning, match="another processor here"):
        jit.load(saved, recompile=True)
    jit.compile(named_programs.breaks)(torch.randn(4))
    assert dispatch.captures_so_far() > before


def test_changed_sources_are_told(saved, monkeypatch):
    monkeypatch.setattr(sources, "of_module", lambda name: "changed" if name == "named_programs" else "")
    with pytest.raises(jit.LoadError, match="breaks: the module named_programs has changed"):
        jit.load(saved)


def test_files_that_are_none(tmp_path, saved):
    data = saved.read_bytes()
    for bad in (b"", b"text", data[:len(data) // 2], data[:-1]):
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(jit.LoadError, match="is not a whole file of jit.save"):
            jit.load(tmp_path / "bad")
    with pytest.raises(OSError):
        jit.load(tmp_path / "missing")


def test_what_cannot_be_saved_is_told(tmp_path, saved):
    with pytest.raises(TypeError, match="takes what jit.compile gave"):
        jit.save(named_programs.breaks, tmp_path / "x")
    with pytest.raises(jit.LoadError, match="has not been called yet"):
        jit.save(jit.compile(named_programs.breaks), tmp_path / "x")
    held = type("Local", (), {"k": 2})()
    compiled = jit.compile(lambda x, held: x * held.k)
    compiled(torch.ones(2), held)
    with pytest.raises(jit.LoadError, match="Local is not what its module has under that name"):
        jit.save(compiled, tmp_path / "x")
    assert not (tmp_path / "x").exists()


# ---- commands -------------------------------------------------------------------------------------------------------


def command(python, *arguments, **variables):
    code = f"import sys; from jit.__main__ import main; sys.exit(main({list(arguments)!r}))"
    return python(code, check=False, **variables)


def test_the_commands(python, tmp_path):
    program = script(tmp_path, "program.py", f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch, jit, named_programs
jit.runtime.native()
jit.config.cache_dir = {str(tmp_path / "cache")!r}
def main():
    compiled = jit.compile(named_programs.pointwise)
    print(compiled(torch.ones(4)).tolist(), sys.argv[1:])
    held = type("Local", (), {{"k": 2}})()
    jit.compile(lambda x, held: x * held.k)(torch.ones(2), held)
main()
sys.exit(3)
""")
    there = dict(JIT_CACHE_DIR=str(tmp_path / "cache"), JIT_ENTRY_CACHE="1")
    warm = python(f"import jit; jit.runtime.native(); jit.config.cache_dir = {str(tmp_path / 'cache')!r}; import sys; "
                  f"from jit.__main__ import main; sys.exit(main(['warm', {program!r}, 'one']))", check=False,
                  JIT_ENTRY_CACHE="1")
    assert warm.returncode == 3 and "['one']" in warm.stdout, warm.stderr
    assert "kept 1 compiled functions" in warm.stderr and "Local is not what its module has" in warm.stderr
    listed = command(python, "cache", "ls", **there)
    assert listed.returncode == 0 and "pointwise" in listed.stdout and "cpu" in listed.stdout
    assert "entries        1 files" in command(python, "cache", "stats", **there).stdout
    assert "all files are whole" in command(python, "cache", "verify", **there).stdout
    (entry,) = [p for p in (tmp_path / "cache" / "entries").rglob("*") if p.is_file()]
    entry.write_bytes(entry.read_bytes()[:-1])
    verified = command(python, "cache", "verify", **there)
    assert verified.returncode == 1 and "removed, since it was damaged" in verified.stdout and not entry.exists()
    assert command(python, "cache", "clear", **there).returncode == 0
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert "nothing is kept" in command(python, "cache", "ls", **there).stdout
    assert "examples:" in command(python, "cache", "--help", **there).stdout
    assert command(python, "warm", **there).returncode == 2
