"""Versions of Python and PyTorch: what is said to be supported agrees everywhere, and on others everything runs in
eager."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from frame_harness import compiled

from jit import versions
from jit.frame import dispatch

ONES = torch.ones(3)
ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import warnings
import jit

@jit.compile
def f(x):
    return (x + 1) * 2

class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()

model = Model()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    compiled = [jit.compile(f), jit.compile(dynamic=True)(f), jit.compile(model, mode="default"),
                jit.compile(model.forward)]
x = torch.randn(3)
assert torch.equal(compiled[0](x), (x + 1) * 2) and torch.equal(compiled[2](x), x.relu()) and compiled[2] is model
assert not told, "the decorator has warned already"
assert jit.compile_count() == 0 and not jit.is_compiling() and jit.explain(f)(x).graph_count == 0
jit.reset(), jit.graph_break(), jit.mark_dynamic(x, 0), jit.disable(f)(x)
for call, error in ((lambda: jit.compile(f, fullgraph=True), jit.CompileError),
                    (lambda: jit.verify(f), jit.CompileError),
                    (lambda: jit.compile(3), TypeError), (lambda: jit.compile(f, mode="fast"), ValueError)):
    try:
        call()
    except error as e:
        print("error", e)
    else:
        raise AssertionError(error)
import sys
assert not any(m.startswith(("jit.frame", "jit.graph", "jit.codegen")) for m in sys.modules)
assert all(hasattr(jit, name) for name in jit.__all__)
"""


def run(before: str, program: str = PROGRAM, **variables):
    """A process in which ``before`` runs between the imports of torch and jit."""
    text = f"import sys\nimport torch\nimport torch.overrides\nreal = torch.__version__\n{before}\n{program}"
    return subprocess.run([sys.executable, "-W", "always", "-c", text], capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **variables})


@pytest.mark.parametrize("before, reason", [
    ("torch.__version__ = '2.16.0+cu140'", "torch 2.16.0+cu140 was not tested"),
    ("torch.__version__ = '3.0.0a0'", "torch 3.0.0a0 was not tested"),
    ("torch.__version__ = '2.10.1'", "torch 2.10.1 is too old"),
    ("torch.__version__ = 'git-main'", "torch git-main is too old"),
    ("sys.version_info = (3, 10, 9, 'final', 0); sys.version = '3.10.9 (main)'", "Python 3.10.9 is not supported"),
    ("sys.version_info = (3, 16, 0, 'final', 0); sys.version = '3.16.0 (main)'", "Python 3.16.0 is not supported"),
    ("import sysconfig; get = sysconfig.get_config_var\n"
     "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else get(name)",
     "the free-threaded build of Python"),
    ("del torch._C._dispatch_keys", "lacks torch._C._dispatch_keys"),
    ("del torch.overrides._get_current_function_mode_stack", "lacks torch.overrides._get_current_function_mode_stack"),
])
def test_elsewhere_functions_run_in_eager_with_one_warning(before, reason):
    done = run(before)
    assert done.returncode == 0, done.stdout + done.stderr
    warned = [line for line in done.stderr.splitlines() if "UserWarning: jit:" in line]
    assert len(warned) == 1 and reason in warned[0] and versions.SUPPORTED in warned[0], done.stderr
    assert warned[0].startswith("<string>:"), "the line of the program"
    assert done.stdout.count(reason) == 2  # fullgraph=True, and verify


def test_strict_raises_instead():
    done = run("torch.__version__ = '2.16.0'", "import jit\njit.compile(lambda x: x)", JIT_STRICT="1")
    assert (done.returncode == 1
            and "CompileError: nothing can be compiled here: torch 2.16.0 was not tested" in done.stderr)


COMPILES = """
import jit
torch.__version__ = real  # which the native runtime is built for
x = torch.randn(4)
assert torch.equal(jit.compile(lambda x: x + 1, fullgraph=True)(x), x + 1) and jit.compile_count() == 1
"""


@pytest.mark.parametrize("version, variables", [("2.16.0", {"JIT_UNTESTED": "1"}), ("2.15.1+local", {})])
def test_a_later_release_is_compiled_for(version, variables):
    done = run(f"torch.__version__ = {version!r}", COMPILES, **variables)
    assert done.returncode == 0 and "Warning: jit" not in done.stderr, done.stderr


@pytest.mark.parametrize("names", [
    "_C._group_tensors_by_device_and_dtype _C._get_cudnn_benchmark _C._nn._parse_to _assert _amp_update_scale_",
    "_C._push_on_torch_function_stack _C._get_privateuse1_backend_name _C._set_sdp_use_math "
    "_fused_adam_ _C._DisableAutocast _fused_sdp_choice",
    "nn.modules.lazy.LazyModuleMixin._infer_parameters _has_compatible_shallow_copy_type _C._is_autocast_available",
])
def test_without_optional_names_the_rest_is_compiled(names):
    done = run("\n".join(f"del torch.{name}" for name in names.split()), COMPILES + """
from jit import torch_private
model = jit.compile(torch.nn.Linear(4, 4), fullgraph=True)
model(x).sum().backward()
assert torch_private.absent and not torch_private.missing
""")
    assert done.returncode == 0 and "Warning: jit" not in done.stderr, done.stderr


def test_documents_and_tools_name_the_same_versions():
    setup = (ROOT / "setup.cfg").read_text()
    pythons = [tuple(map(int, v.split(".")))
               for v in re.findall(r"Programming Language :: Python :: (\d+\.\d+)$", setup, re.M)]
    assert tuple(pythons) == versions.PYTHON
    first, last = versions.TORCH[0], versions.TORCH[-1]
    assert f"torch>={first[0]}.{first[1]}\n" in setup
    below = re.search(r"python_requires = >=3\.(\d+)$", setup, re.M)
    assert below and (3, int(below[1])) == versions.PYTHON[0]
    make = (ROOT / "Makefile").read_text()
    oldest, (major, minor) = versions.PYTHON[0], versions.PYTHON[-1]
    assert f"not {oldest} <= sys.version_info < ({major}, {minor + 1})" in make
    readme = (ROOT / "README.md").read_text()
    assert versions.SUPPORTED in readme
    rows = re.findall(r"^\| (3\.\d+)\S* \| (\d+\.\d+) \|", (ROOT / "docs/versions.md").read_text(), re.M)
    assert {tuple(map(int, torch.split("."))) for _, torch in rows} >= {first, last}
    assert {tuple(map(int, python.split("."))) for python, _ in rows} == set(versions.PYTHON)


def test_a_torch_without_the_names_that_are_used(monkeypatch):
    """Frames of our code are hidden from PyTorch's compiler by private names; without them all else works."""
    hook = torch._C._dynamo.eval_frame
    for name in ("_FrameExecStrategy", "set_code_exec_strategy"):
        if hasattr(hook, name):
            with monkeypatch.context() as patch:
                patch.delattr(hook, name)
                assert dispatch.torch_skip() is None
    monkeypatch.setattr(dispatch, "_skip_in_torch", None)

    def f(x):
        y = x + 1
        print(end="")
        return y * 2

    assert torch.equal(compiled(f)(ONES), ONES * 4)
