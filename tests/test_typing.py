"""What a type checker makes of a program that uses the public names."""

import re
import subprocess
import sys
import textwrap

import pytest

import jit
from jit import config

mypy = pytest.importorskip("mypy", reason="mypy is one of the development tools")

PROGRAM = '''
from __future__ import annotations

from typing import Any, Callable

import jit
import torch


class Tensor: ...


class Model(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    @jit.compile
    def method(self, n: int) -> str:
        return ""

    @staticmethod
    @jit.compile(dynamic=True)
    def static(n: int) -> bytes:
        return b""


@jit.compile
def plain(x: Tensor, n: int = 1, *, name: str = "") -> Tensor:
    return x


@jit.compile(fullgraph=True, dynamic=None, backend="eager", mode="default", options={"cache_limit": 2},
             passes=[], recompile_limit=3)
def with_options(x: Tensor) -> list[Tensor]:
    return [x]


@jit.disable
def left(x: Tensor) -> int:
    return 1


@jit.disable(recursive=False, reason="it prints")
def left_too(x: Tensor) -> int:
    return 1


@jit.assume_constant_result
def constant(n: int) -> int:
    return n


@jit.allow_in_graph
def opaque(x: Tensor) -> Tensor:
    return x


@jit.nested_compile_region
def layer(x: Tensor) -> Tensor:
    return x


@jit.substitute_in_graph(len)
def length(x: list[Any]) -> int:
    return 0


@jit.set_stance("force_eager")
def slow(x: Tensor) -> Tensor:
    return x


def double(graph: jit.passes.GraphEditor) -> None:
    for node in graph.nodes:
        del node


def made(x: Tensor) -> Callable[[int], str]:
    return str


t = Tensor()
reveal_type(plain)  # def (x: Tensor, n: int =, *, name: str =) -> Tensor
reveal_type(plain(t))  # Tensor
reveal_type(with_options(t))  # list[Tensor]
reveal_type(jit.compile(made))  # def (x: Tensor) -> def (int) -> str
reveal_type(jit.compile(Model()))  # Model
reveal_type(jit.compile(lambda n: n + 1, dynamic=False)(1))  # Any
reveal_type(Model().method(3))  # str
reveal_type(Model.static(3))  # bytes
reveal_type(jit.compile(Model().method)(3))  # str
reveal_type(jit.compile_in_place(Model()))  # Model
reveal_type(left(t))  # int
reveal_type(left_too(t))  # int
reveal_type(constant(1))  # int
reveal_type(opaque(t))  # Tensor
reveal_type(layer(t))  # Tensor
reveal_type(length([]))  # int
reveal_type(slow(t))  # Tensor
reveal_type(jit.explain(plain)(t, name="a"))  # jit.explanation.Explanation
reveal_type(jit.explain(plain)(t).graph_count)  # int
reveal_type(jit.verify(plain, gradients=False)(t).ok)  # bool
reveal_type(jit.minify(plain, (t,)).operations)  # int
reveal_type(jit.config.cache_limit)  # int
reveal_type(jit.config.strict)  # bool
reveal_type(jit.config.describe())  # str
reveal_type(jit.compile_count())  # int
reveal_type(jit.is_compiling())  # bool
reveal_type(jit.wait_for_compiles(1.0))  # bool
with jit.config.patch(strict=True), jit.set_stance("fail_on_recompile"):
    jit.compile(plain, passes=[double])(t)
jit.config.cache_limit = 4
jit.graph_break("here")
jit.cudagraph_mark_step_begin()
jit.mark_dynamic(torch.ones(3), 0)
jit.mark_static(torch.ones(3))
jit.mark_unbacked(torch.ones(3), 0)
jit.is_dynamo_compiling()
jit.save(plain, "a.jit")
jit.load("a.jit", recompile=True)
jit.reset()
try:
    plain(t)
except (jit.Unsupported, jit.RecompileError, jit.PassError, jit.LoadError, jit.CompileError, jit.JitError):
    pass
graph = jit.interop.to_graph_module
plain("text")  # error: arg-type
plain(t, 1, 2)  # error: call-arg
jit.explain(plain)(1)  # error: arg-type
jit.compile(plain, dynamik=True)  # error: call-overload
jit.config.cache_limits  # error: attr-defined
jit.config.cache_limit = "4"  # error: assignment
'''


def test_every_public_name_keeps_the_types_of_a_program(tmp_path):
    text = textwrap.dedent(PROGRAM).lstrip()
    assert all(f"jit.{name}" in text or name in ("Explanation",) for name in jit.__all__)
    (tmp_path / "prog.py").write_text(text)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\npython_version = 3.11\nignore_missing_imports = true\n"
        "disallow_subclassing_any = false\n"
        "[mypy-torch.*]\nfollow_imports = skip\n[mypy-triton.*]\nfollow_imports = skip\n"
        "[mypy-jit.*]\nignore_errors = true\n")
    root = jit.__path__[0].rpartition("/")[0]
    run = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary",
                          "--show-error-codes", "prog.py"],
                         cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "MYPYPATH": root}, capture_output=True, text=True)
    told: dict[int, list[str]] = {}
    for row in run.stdout.splitlines():
        found = re.match(r"prog\.py:(\d+): (\w+): (.*)", row)
        assert found or not row, run.stdout + run.stderr
        if found and (found[2] == "error" or found[3].startswith("Revealed")):
            told.setdefault(int(found[1]), []).append(found[3])
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        said = "; ".join(told.pop(number, []))
        _, mark, expected = line.partition("  # ")
        if line.startswith("reveal_type"):
            # Versions of mypy differ in whether they name the module.
            kind = re.fullmatch(r'Revealed type is "(.*)"', re.sub(r"\b(builtins|prog)\.", "", said))
            if not kind or kind[1] != expected:
                wrong.append(f"{number}: {line}\n    {said}")
        elif mark and expected.startswith("error"):
            code = expected.removeprefix("error").removeprefix(": ")
            if not said or code and f"[{code}]" not in said:
                wrong.append(f"{number}: {line}\n    {said or 'nothing is said'}")
        elif said:
            wrong.append(f"{number}: {line}\n    {said}")
    assert not wrong, "\n".join(wrong)


def test_type_checkers_know_every_option():
    """What ``config`` declares for type checkers is what its table says."""
    with open(config.__file__, encoding="utf-8") as file:
        text = file.read()
    block = re.search(r"^if TYPE_CHECKING:\n((?:    .*\n)+)", text, re.M)
    assert block
    declared = dict(re.findall(r"^    (\w+): (\w+)$", block[1], re.M))
    assert declared == {name: config.OPTIONS[config.ALSO_CALLED.get(name, name)].type.__name__
                        for name in (*config.OPTIONS, *config.ALSO_CALLED)}
