"""The wheels: what is in them and said of them; the one with the native runtime on a machine without g++ and with
empty caches; both in a virtual environment that has nothing else but what they ask for."""

import configparser
import email
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jit import versions
from jit.errors import NoCompiler
from jit.runtime import build

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """(the pure one, the native one)"""
    build.library_path()  # it is built; the wheel takes that
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "tools/wheel.py", "--into", str(folder)], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    made = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(made) == sorted(folder.iterdir()) and len(made) == 2
    return made


@pytest.fixture(scope="module")
def wheel(wheels):
    return wheels[1]


@pytest.fixture(scope="module")
def unpacked(wheel):
    zipfile.ZipFile(wheel).extractall(wheel.parent / "unpacked")
    return wheel.parent / "unpacked"


@pytest.fixture
def without_compiler(unpacked, tmp_path):
    """Run a script, or a command of ``python -m jit``, with the unpacked wheel, no g++ and empty caches."""
    (tmp_path / "bin").mkdir()

    def run(*arguments, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JIT_") and k != "CXX"}
        environment.update(PATH=str(tmp_path / "bin"), HOME=str(tmp_path), JIT_CACHE_DIR=str(tmp_path / "cache"),
                           PYTHONPATH=str(unpacked), **variables)
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, text=True, capture_output=True,
                              env=environment)

    return run


def sources() -> set[str]:
    """What of the checkout a wheel has in it."""
    kinds = (".py", ".cpp", ".h", ".css", ".js", ".typed")
    return {str(p.relative_to(ROOT)) for p in (ROOT / "jit").rglob("*") if p.suffix in kinds}


def test_what_is_in_them(wheels):
    assert {"jit/py.typed", "jit/report/page.css", "jit/report/page.js", "jit/runtime/native/plan.cpp"} <= sources()
    pure, native = ({n for n in zipfile.ZipFile(w).namelist() if ".dist-info/" not in n} for w in wheels)
    assert pure == sources()
    assert native - pure == {f"jit/runtime/prebuilt/{f}" for f in ("key", "_jit_native.so", "_jit_native.so.sha256")}
    assert pure <= native and not (ROOT / "jit" / "runtime" / "prebuilt").exists()


def test_the_wheels_say_for_what_they_were_made(wheels):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert re.fullmatch(r"jit-[\d.]+-py3-none-any\.whl", wheels[0].name)
    assert f"-{tag}-{tag}-linux_" in wheels[1].name and "+torch" in wheels[1].name


def metadata(wheel):
    (name,) = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(name))


def test_what_is_said_of_them(wheels):
    """What a package index shows: its description is the README as Markdown, its licence an SPDX expression."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    version = settings["metadata"]["version"]
    told = metadata(wheels[0])
    assert told["Version"] == version and metadata(wheels[1])["Version"].startswith(version + "+torch")
    assert told["License-Expression"] == "MIT" and told["License"] is None and told["License-File"] == "LICENSE"
    assert "\n" not in told["Summary"] and told["Author"] and told["Keywords"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload(decode=True).decode().strip() == (ROOT / "README.md").read_text().strip()
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in zipfile.ZipFile(wheels[0]).namelist())
    classifiers = told.get_all("Classifier")
    pythons = [c.rpartition(" :: ")[2] for c in classifiers if re.fullmatch(r".*Python :: 3\.\d+", c)]
    assert pythons == [".".join(map(str, v)) for v in versions.PYTHON]
    assert told["Requires-Python"] == f">={pythons[0]}"
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed", "Topic :: Software Development :: Compilers"} <= (
        set(classifiers))
    assert not any(c.startswith("License ::") for c in classifiers), "the expression says it; indexes refuse both"


PROGRAM = """
import warnings
import torch, jit
from jit.runtime import native
print("prebuilt" if "prebuilt" in native().__file__ else native().__file__)
x = torch.randn(4, 4)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    product = jit.compile(lambda a, b: a @ b)
    assert torch.equal(product(x, x), x @ x)
print(len(told), jit.compile_count())
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for k in range(3):
        f = jit.compile(lambda a: (a + k).sin().sum())
        assert torch.equal(f(x), (x + k).sin().sum())
        assert torch.equal(f(x), (x + k).sin().sum())
for w in told:
    print(w.category.__name__, w.message)
try:
    jit.compile(lambda a: a.cos() + 1, fullgraph=True)(x)
except jit.errors.CompileError as error:
    print("raises", error)
"""


def test_it_runs_without_a_compiler_and_says_what_does_not(without_compiler):
    done = without_compiler("-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "prebuilt" and lines[1] == "0 1", lines
    assert lines[2].startswith("RuntimeWarning jit: no GNU C++ compiler was found: functions that need CPU kernels run "
                               "in eager. GPU kernels, and functions of library calls alone, need none"), lines
    assert lines[3].startswith("raises no GNU C++ compiler") and len(lines) == 4, lines


def test_gpu_kernels_are_compiled_without_a_compiler(without_compiler):
    pytest.importorskip("triton")
    done = without_compiler("-c", f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
import torch, triton_kernels
from jit.codegen.triton import compile as triton_compile, emit
made = emit.emit(triton_kernels.CASES["swiglu"](torch.float32, 2).kernel)
print(len(triton_compile.build_sources({{"k": made}}, 90)["k"].cubin) > 1000, emit.__file__)
""")
    assert done.returncode == 0 and done.stdout.startswith("True "), done.stdout + done.stderr
    assert "unpacked" in done.stdout


def test_commands_say_what_is_used(without_compiler):
    done = without_compiler("-m", "jit", "build")
    assert done.returncode == 0 and done.stdout.startswith("prebuilt, came with the package: "), done
    done = without_compiler("-m", "jit", "doctor")
    assert "ok    native runtime: prebuilt, came with the package: " in done.stdout, done.stdout
    assert "warn  compiler: no C++ compiler: functions that need CPU kernels run in eager" in done.stdout, done.stdout
    assert "FAIL  compiler" not in done.stdout and "FAIL  openmp" not in done.stdout, done.stdout


def test_another_key_is_not_used(unpacked, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "PREBUILT", str(unpacked / "jit" / "runtime" / "prebuilt"))
    assert build.prebuilt() == build.library_path() == str(unpacked / "jit" / "runtime" / "prebuilt" / "_jit_native.so")
    monkeypatch.setattr(build.torch, "__version__", "2.99.0")
    assert build.prebuilt() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompiler, match="native runtime, without which nothing can be compiled.*make wheel"):
        build.library_path()


def test_a_damaged_one_is_not_used(unpacked, monkeypatch, tmp_path):
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    for file in (unpacked / "jit" / "runtime" / "prebuilt").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(build, "PREBUILT", str(folder))
    assert build.prebuilt() is not None
    with open(folder / "_jit_native.so", "r+b") as f:
        f.seek(1000)
        f.write(b"damage")
    assert build.prebuilt() is None


# -- installed ------------------------------------------------------------------------------------------------------


def needed(names: list[str]) -> set[Path]:
    """The files and folders, in this environment, of packages and of all that these ask for."""
    found, seen, todo = set(), set(), list(names)
    while todo:
        name = re.match(r"[\w.-]+", todo.pop()).group()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform, or one that torch was built with
        todo += [r for r in package.requires or () if "extra" not in r.partition(";")[2]]
        for file in package.files or ():
            if file.parts[0] != "..":
                found.add(Path(package.locate_file(file.parts[0])))
    return found


class Environment:
    """A virtual environment without anything of this one's but links to what the wheel asks for: torch is too large to
    be installed for a test. ``run`` starts its Python in another folder than the checkout's."""

    def __init__(self, folder: Path, requirements: list[str]) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.python, self.folder = str(folder / "venv" / "bin" / "python"), folder
        (self.packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (folder / "links").mkdir()
        for path in needed(requirements):
            (folder / "links" / path.name).symlink_to(path)
        (self.packages / "links.pth").write_text(f"{folder / 'links'}\n")

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JIT_") and k != "PYTHONPATH"}
        environment.update(JIT_CACHE_DIR=str(self.folder / "cache"), **variables)
        return subprocess.run([self.python, *arguments], cwd=self.folder, text=True, capture_output=True, timeout=300,
                              env=environment)

    def pip(self, *arguments: str) -> str:
        """What pip says: this environment's, at work on the other one."""
        done = subprocess.run([sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check",
                               *arguments], cwd=self.folder, text=True, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    pytest.importorskip("pip")
    told = metadata(wheels[0]).get_all("Requires-Dist")
    return Environment(tmp_path_factory.mktemp("installed"), [r for r in told if "extra ==" not in r])


USE = """
import jit, torch

@jit.compile(fullgraph=True)
def f(x):
    return torch.softmax(x * 2, -1).sum()

x = torch.randn(4, 8)
torch.testing.assert_close(f(x), torch.softmax(x * 2, -1).sum())
print(jit.compile_count(), jit.__file__)
"""


def test_installed_with_the_native_runtime(wheel, environment):
    """It is installed, used and taken away again; what it needs beside its requirements is the standard library."""
    before = sorted(environment.packages.iterdir())
    environment.pip("install", "--no-deps", "--no-index", str(wheel))
    shown = environment.pip("show", "jit")
    assert "Name: jit\n" in shown and "bytecode" in shown and f"Location: {environment.packages}" in shown, shown
    done = environment.run("-m", "jit", "doctor")
    assert done.returncode == 0 and done.stdout.endswith("ready\n"), done.stdout + done.stderr
    assert "native runtime: prebuilt, came with the package" in done.stdout
    (environment.folder / "use.py").write_text(USE)
    done = environment.run("use.py")
    assert done.stdout.split() == ["1", str(environment.packages / "jit" / "__init__.py")], done.stdout + done.stderr
    done = environment.run("-m", "jit", "show", "-c", "torch.exp(x)", "--args", "x=torch.ones(3)", "--stage", "graph")
    assert done.returncode == 0 and "torch.exp(" in done.stdout, done.stderr
    done = environment.run("-m", "jit", "report", "--html", "page.html", "use.py")
    assert done.returncode == 0, done.stderr
    page = (environment.folder / "page.html").read_text()
    assert "softmax" in page and (ROOT / "jit/report/page.js").read_text().strip()[:200] in page
    environment.pip("uninstall", "--yes", "jit")
    assert sorted(environment.packages.iterdir()) == before
    assert "No module named 'jit'" in environment.run("-c", "import jit").stderr


def test_installed_from_the_pure_wheel(wheels, environment):
    """The runtime that this user has built before is found: its key is of the sources, torch, Python and the compiler,
    not of a folder."""
    environment.pip("install", "--no-deps", "--no-index", str(wheels[0]))
    (environment.folder / "use.py").write_text(USE)
    shared = {"JIT_CACHE_DIR": os.environ["JIT_CACHE_DIR"]} if "JIT_CACHE_DIR" in os.environ else {}
    done = environment.run("-m", "jit", "build", **shared)
    assert done.stdout == f"built: {build.library_path()}\n", done.stdout + done.stderr
    done = environment.run("use.py", JIT_ENTRY_CACHE="0", **shared)
    assert done.returncode == 0 and done.stdout.startswith("1 "), done.stdout + done.stderr
    environment.pip("uninstall", "--yes", "jit")
