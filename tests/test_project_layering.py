"""The shape of the code: which room may import which, and what none may import."""

import ast
import re
from pathlib import Path

import pytest

from jit.reasons import KINDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jit"

# Data moves to the right; nothing imports to its left. The shared ones may be imported from everywhere, and import no
# room.
SHARED = ("by_class", "collecting", "config", "devices", "logs", "errors", "failures", "meanwhile", "observing",
          "progress",
          "reasons", "recent", "shown", "torch_private", "turns", "versions")
ROOMS = ("frame", "graph", "codegen", "runtime")
TOP = ("api", "uncompiled", "arguments", "explanation", "passes", "backends", "plans", "compiling", "in_parts",
       "narrowing", "numerics", "interop", "second", "report", "saving", "commands", "__init__", "__main__")

# What codegen is given is written in these languages of the graph room, so it may read them: sizes, the nodes' types,
# and what prims and operators mean.
LANGUAGES = ("jit.graph.dim_text", "jit.graph.dim_trees", "jit.graph.dims", "jit.graph.ir", "jit.graph.op_info",
             "jit.graph.prim_info", "jit.graph.prims", "jit.graph.windows")

# Files of codegen that rewrite a graph before it is scheduled, with the graph room's builder and type rules.
REWRITES = ("jit/codegen/layout.py", "jit/codegen/collective_calls.py")

FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch.fx", "torch._functorch", "torch.export", "torch.jit",
             "torch._subclasses", "torch.compile")

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room, shared module or top module that a dotted name under jit belongs to."""
    parts = module.split(".")
    if parts[0] != "jit":
        return None
    return parts[1] if len(parts) > 1 else "__init__"


def imports(tree: ast.AST, path: Path):
    """(line, dotted name) of each import in a file, wherever it stands; ``from a import b`` gives both a and a.b."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join(base + ([node.module] if node.module else []))
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def crossings(path: Path, text: str) -> list[str]:
    """What is wrong with the imports of a file, a line each."""
    here, found = room_of(module_of(path)), []
    for line, name in imports(ast.parse(text), path):
        allowed = ("torch.fx",) if here == "interop" else ()
        if any(name == bad or name.startswith(bad + ".") for bad in FORBIDDEN if bad not in allowed):
            found.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
        there = room_of(name)
        if there == "interop" and here not in ("interop", "__init__"):  # and there by name only, when it is asked for
            found.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {name}")
        if there is None or there == here or here in TOP or (there == "__init__" and name == "jit"):
            continue
        if there in SHARED and here not in SHARED:
            continue
        if here in ROOMS and there in ROOMS and ROOMS.index(there) > ROOMS.index(here):
            continue
        if here in SHARED and there in SHARED:
            continue
        if here == "codegen" and there == "graph" and str(path.relative_to(ROOT)) in REWRITES:
            continue
        if here == "codegen" and any(name == language or name.startswith(language + ".") for language in LANGUAGES):
            continue
        found.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {name}")
    return found


def test_no_import_goes_left_or_to_pytorchs_compiler():
    found = [problem for path in FILES for problem in crossings(path, path.read_text())]
    assert not found, "\n".join(found)


def test_every_room_exists():
    assert {room_of(module_of(p)) for p in FILES} >= {*ROOMS, *SHARED}


@pytest.mark.parametrize(
    "where, text",
    [
        ("jit/graph/x.py", "from jit.frame import decode"),
        ("jit/graph/x.py", "from ..frame.decode import f"),
        ("jit/runtime/x.py", "def f():\n    import jit.codegen.loops"),
        ("jit/codegen/triton/x.py", "from ...graph import tracer"),
        ("jit/codegen/x.py", "from jit.graph.registry import op"),
        ("jit/runtime/x.py", "from jit.graph import dims"),
        ("jit/config.py", "from jit import runtime"),
        ("jit/frame/x.py", "from jit import api"),
        ("jit/frame/x.py", "import torch._dynamo"),
        ("jit/graph/x.py", "from torch import fx"),
        ("jit/api.py", "from torch import fx"),
        ("jit/api.py", "from .interop import to_graph_module"),
        ("jit/interop/x.py", "import torch._dynamo"),
        ("jit/graph/x.py", "from torch._subclasses.fake_tensor import FakeTensor"),
        ("jit/graph/x.py", "import importlib\nimportlib.import_module('torch._inductor.config')"),
    ],
)
def test_the_check_sees(where, text):
    assert crossings(ROOT / where, text)


@pytest.mark.parametrize(
    "where, text",
    [
        ("jit/frame/x.py", "from jit.graph import tracer\nfrom ..runtime import native\nfrom jit import logs, config"),
        ("jit/codegen/triton/x.py",
         "from ..loops import Kernel\nfrom jit.graph.dims import Dim\nfrom ...runtime import plan\nimport torch"),
        ("jit/api.py", "from jit.frame import capture"),
        ("jit/interop/x.py", "from torch import fx\nfrom ..graph.ir import Graph"),
    ],
)
def test_the_check_allows(where, text):
    assert not crossings(ROOT / where, text)


def test_files_say_what_they_are():
    bare = [str(p.relative_to(ROOT))
            for p in FILES if p.read_text().strip() and not ast.get_docstring(ast.parse(p.read_text()))]
    assert not bare, f"no module docstring: {bare}"


def test_no_leftovers():
    words = ("TO" + "DO", "FIX" + "ME", "HA" + "CK", "XX" + "X")
    sources = [p for folder in ("jit", "tests", "examples",
                                "benchmarks") for s in ("*.py", "*.cpp", "*.h") for p in (ROOT / folder).rglob(s)]
    found = [f"{p.relative_to(ROOT)}:{n}: {line.strip()}" for p in sources
             for n, line in enumerate(p.read_text().splitlines(),
                                      1) if any(w in line.split() or w + ":" in line for w in words)]
    assert not found, "\n".join(found)


def raised(tree):
    """(line, kind or None) of each ``Unsupported(...)``, ``NeedsEager(...)`` and ``super().__init__(..., kind=...)`` of
    a subclass."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            kind = next((k.value for k in node.keywords if k.arg == "kind"), None)
            if name in ("Unsupported", "NeedsEager") or name == "__init__" and kind is not None:
                yield node.lineno, kind.value if isinstance(kind, ast.Constant) else None


def test_reasons_of_breaks_agree():
    """Each kind of graph break that is raised is a row of jit/reasons.py and of the page, and has a program in which it
    happens."""
    found = [(f"{path.relative_to(ROOT)}:{line}",
              kind) for path in FILES for line, kind in raised(ast.parse(path.read_text()))]
    strange = [f"{where}: kind={kind!r} is no row of jit/reasons.py" for where, kind in found if kind not in KINDS]
    assert not strange, "\n".join(strange)
    assert set(KINDS) - {kind for _, kind in found} == set(), "never raised"
    page = (ROOT / "docs" / "graph_breaks.md").read_text().split("## The kinds")[1]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page, re.M)
    assert rows == [(kind, f"{reason.meaning} | {reason.hint}") for kind, reason in KINDS.items()]
    programs = re.findall(r'^@?breaks\("([a-z-]+)"', (ROOT / "tests" / "test_frame_break_reasons.py").read_text(), re.M)
    assert sorted(programs) == sorted(KINDS)


def imported(path: Path, everywhere: bool) -> set:
    """The modules of the package that a file imports: when it is loaded, or anywhere but for the sake of types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = [n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name)
              and n.test.id == "TYPE_CHECKING"]
    body = [n for n in tree.body if n not in typing
            and (everywhere or isinstance(n, (ast.Import, ast.ImportFrom, ast.If, ast.Try)))]
    names = {name for node in body for _, name in imports(node, path)}
    known = {module_of(f) for f in FILES}
    found = {name if name in known else name.rpartition(".")[0] for name in names}
    return {name for name in found if name in known} - {module_of(path)}


def circles(graph: dict) -> list:
    """The sets of modules that import each other, directly or by way of others."""

    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for name in graph[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        return seen

    ahead = {name: reached(name) for name in graph}
    groups = {frozenset(n for n in ahead[name] if name in ahead[n]) for name in graph if name in ahead[name]}
    return sorted(groups, key=len)


@pytest.mark.parametrize("everywhere", [False, True])
def test_no_circle_of_imports(everywhere):
    """When the modules are loaded, and with the imports inside functions."""
    assert circles({module_of(f): imported(f, everywhere) for f in FILES}) == []


MOST_LATE = 22  # imports inside functions


def late_imports(text: str) -> dict:
    """Line -> whether a comment says why, for each import inside a function: beside it, or above the run of imports
    that it is part of."""
    lines = text.splitlines()
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    imports_of = {n.lineno for f in functions for n in ast.walk(f) if isinstance(n, (ast.Import, ast.ImportFrom))}
    found = {}
    for line in sorted(imports_of):
        above = lines[line - 2].strip()
        beside = "late" in lines[line - 1].partition("#")[2]
        found[line] = beside or above.startswith("# Late") or found.get(line - 1, False)
    return found


def test_imports_inside_functions_are_few_and_say_why():
    found = {f"{path.relative_to(ROOT)}:{line}": told
             for path in FILES for line, told in late_imports(path.read_text()).items()}
    assert [place for place, told in found.items() if not told] == []
    assert len(found) <= MOST_LATE


def test_imports_inside_functions_are_found():
    text = "def f():\n    import a\n    import b  # late: because\n    # Late, too\n    import c\n    import d\n"
    assert late_imports(text) == {2: False, 3: True, 5: True, 6: True}


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
