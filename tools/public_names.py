"""The public names, for the API page of the documentation's site: those of ``jit/api.py``.

``jit/__init__.py`` takes them from there, or, on a version of Python or PyTorch that is not known, from
``jit/uncompiled.py``. What reads docstrings without running code sees both, and keeps the last; here it is told to keep
those that stand first.
"""

from __future__ import annotations

import ast
from typing import Any

from griffe import Alias, Extension, Module


class FirstBranch(Extension):
    """Of names that both ways of an ``if`` import, those of the first."""

    def on_module_members(self, *, node: Any, mod: Module, **kwargs: Any) -> None:
        for branch in getattr(node, "body", ()):
            if mod.path != "jit" or not isinstance(branch, ast.If) or not branch.orelse:
                continue
            for statement in branch.body:
                if isinstance(statement, ast.ImportFrom):
                    for name in statement.names:
                        target = f"{mod.path}.{statement.module}.{name.name}"
                        mod.set_member(name.asname or name.name, Alias(name.asname or name.name, target, parent=mod))
