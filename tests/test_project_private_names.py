"""Private names of PyTorch stand in one file, jit/torch_private.py, and what differs between versions in C++ in one
header."""

import ast
import re
from pathlib import Path

import pytest
import torch

from jit import torch_private

PACKAGE = Path(torch_private.__file__).parent
LIST = PACKAGE / "torch_private.py"

# Attributes of PyTorch's objects that nothing of ours is called.
ATTRIBUTES = ("_cdata", "_schema", "_is_view", "_backward_hooks", "_post_accumulate_grad_hooks", "_dispatch_keys",
              "_current_level")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(text: str):
    """(line, dotted name) of each private name below torch, or below what is imported from it."""
    tree, below, inner = ast.parse(text), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    below[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    if any(map(is_private, alias.name.split("."))):
                        yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                below[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if any(map(is_private, f"{node.module}.{alias.name}".split("."))):
                    yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            parts, at = [], node
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                inner.add(at)
                at = at.value
            if set(parts) & set(ATTRIBUTES):
                yield node.lineno, ".".join(["...", *reversed(parts)])
            elif isinstance(at, ast.Name) and at.id in below and any(map(is_private, parts)):
                yield node.lineno, ".".join([below[at.id], *reversed(parts)])
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
              and len(node.args) > 1):
            target, name = node.args[:2]
            if (isinstance(target, ast.Name) and target.id in below and isinstance(name, ast.Constant)
                and is_private(str(name.value))):
                yield node.lineno, f"{below[target.id]}.{name.value}"


def test_no_other_file_uses_a_private_name():
    found = [f"{path.relative_to(PACKAGE)}:{line}: {name}" for path in sorted(PACKAGE.rglob("*.py")) if path != LIST
             for line, name in private_uses(path.read_text())]
    assert not found, "put it in jit/torch_private.py, with what happens without it:\n" + "\n".join(found)


@pytest.mark.parametrize("text", [
    "import torch\ntorch._C._set_grad_enabled(True)",
    "import torch\ntorch._foreach_neg_([])",
    "import torch.nn.functional as F\nF._Reduction.get_enum('sum')",
    "from torch.optim import optimizer\noptimizer._get_value(1)",
    "from torch.masked import _ops",
    "from torch._C import TensorBase",
    "import torch\nhasattr(torch, '_assert')",
    "x.untyped_storage()._cdata",
    "op._schema.arguments",
])
def test_the_check_sees(text):
    assert list(private_uses(text))


@pytest.mark.parametrize("text", ["import torch\ntorch.Tensor.__add__", "self._C._x",
                                  "from jit import torch_private\ntorch_private._look_up('x')"])
def test_the_check_allows(text):
    assert not list(private_uses(text))


def test_each_name_says_what_it_is_for():
    rows = re.findall(r"(?:required|optional)\(f?\"[^\"]+\", (.)", LIST.read_text())
    assert len(rows) > 40 and set(rows) == {'"'}


def test_private_operators_that_graphs_call_are_listed():
    """By name, in calls like ``b.call("_to_copy", ...)``; each exists in this PyTorch."""
    pattern = re.compile(r"call(?:_aten|_op)?\((?:b, )?\"(_[a-z]\w*)\"")
    called = {name for path in PACKAGE.rglob("*.py") for name in pattern.findall(path.read_text())}
    assert called and called <= torch_private.OPERATORS, called - torch_private.OPERATORS
    assert not [name for name in torch_private.OPERATORS if not hasattr(torch.ops.aten, name)]


def test_this_torch_has_all_of_them():
    assert not torch_private.missing and not torch_private.absent
