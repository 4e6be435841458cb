"""setup.cfg, the pinned requirements and the Makefile agree with what is in the checkout."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("demo", "test", "bench", "clean", "doctor", "docs")


@pytest.fixture(scope="module")
def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower().replace("-", "_")


def pinned() -> dict[str, str]:
    files = sorted(ROOT.glob("requirements*.txt"))
    return {name_of(line): line for file in files for line in lines(file.read_text())}


def test_every_requirement_is_pinned_exactly():
    pattern = r'[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.+]*(; python_version (<|>=) "3\.\d+")?'
    every = [line for file in ROOT.glob("requirements*.txt") for line in lines(file.read_text())]
    assert every and all(re.fullmatch(pattern, line) for line in every), every


def test_all_that_setup_cfg_names_is_pinned(setup_cfg):
    wanted = lines(setup_cfg["options"]["install_requires"])
    for extra in setup_cfg["options.extras_require"].values():
        wanted += lines(extra)
    assert {name_of(w) for w in wanted} <= set(pinned())


def test_triton_is_asked_for_on_linux_only(setup_cfg):
    (triton,) = [r for r in lines(setup_cfg["options"]["install_requires"]) if name_of(r) == "triton"]
    assert 'platform_system == "Linux"' in triton


def test_package_data_covers_the_native_sources(setup_cfg):
    patterns = lines(setup_cfg["options.package_data"]["jit.runtime"])
    runtime = ROOT / "jit" / "runtime"
    packed = {p for pattern in patterns for p in runtime.glob(pattern)}
    present = {p for p in (ROOT / "jit").rglob("*") if p.suffix in (".cpp", ".h", ".cc", ".hpp", ".cu", ".inc")}
    assert present and present <= packed, f"not in package_data: {sorted(map(str, present - packed))}"


def test_every_folder_with_python_is_a_package():
    missing = {str(p.parent.relative_to(ROOT))
               for p in (ROOT / "jit").rglob("*.py") if not (p.parent / "__init__.py").exists()}
    assert not missing, f"without __init__.py, so not installed: {missing}"


def test_version_is_the_same_everywhere(setup_cfg, python):
    assert python("import jit; print(jit.__version__)").stdout.strip() == setup_cfg["metadata"]["version"]


def test_wheel_holds_what_a_run_needs(tmp_path):
    """The files of a built distribution: every module and every native source, and nothing from tests or examples."""
    done = subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build", "--build-base", str(tmp_path),
         "egg_info", "--egg-base", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = [p for p in tmp_path.iterdir() if p.name.startswith("lib")]
    found = {str(p.relative_to(built)) for p in built.rglob("*") if p.is_file()}
    kinds = (".py", ".cpp", ".h", ".css", ".js", ".typed")
    wanted = {str(p.relative_to(ROOT)) for p in (ROOT / "jit").rglob("*") if p.suffix in kinds}
    assert found == wanted


def test_makefile_has_the_targets():
    text = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", text, re.MULTILINE) for target in TARGETS)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_make_names_a_python_that_is_missing_or_too_old(tmp_path):
    done = subprocess.run(["make", "check-python", "PYTHON=no-such-python", "VENV=none"], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode and "jit: no no-such-python on the PATH" in done.stderr
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\ntest "$1" = -V && echo Python 3.8.1 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = subprocess.run(["make", "check-python", f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and "is Python 3.8.1; Python 3.11 to 3.15 is needed" in done.stderr


@pytest.fixture
def made(tmp_path):
    """An environment as ``make`` leaves it, whose Python is a script: ``made("exit 1")("docs-tools")`` runs make."""

    def environment(script):
        (tmp_path / "bin").mkdir(exist_ok=True)
        python = tmp_path / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        (tmp_path / ".ready").touch()
        return lambda *targets: subprocess.run(["make", *targets, f"VENV={tmp_path}", f"PYTHON={sys.executable}"],
                                               cwd=ROOT, capture_output=True, text=True)

    return environment


def test_tests_run_without_the_tools_of_the_site(made):
    """Where they cannot be installed that is a message, and for the site itself an error."""
    make = made("exit 1")
    done = make("docs-tools")
    assert done.returncode == 0 and "jit: pip could not install requirements-docs.txt" in done.stderr, done.stderr
    done = make("docs")
    assert done.returncode and "jit: the site needs what requirements-docs.txt lists" in done.stderr, done.stderr
    assert re.search(r"^test:.* docs-tools\b", (ROOT / "Makefile").read_text(), re.M)


def test_the_tools_of_the_site_are_installed_once(made, tmp_path):
    make = made(f'echo "$@" >> {tmp_path}/calls')
    assert make("docs-tools").returncode == make("docs-tools").returncode == 0
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("-m pip install ") and call.endswith(" -r requirements-docs.txt")


def test_make_help_lists_the_targets():
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert all(f"make {t}" in text for t in TARGETS) and "VENV=none" in text


@pytest.mark.parametrize("script", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "benchmarks").glob("[a-z]*.py")))
def test_benchmarks_have_help(python, script):
    assert python(script, "--help").stdout.startswith("usage: ")
