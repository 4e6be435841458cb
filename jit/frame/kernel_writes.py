"""Which arguments a Triton kernel may write, told from its source.

A pointer is written where an expression that it is part of is the address of a store or an atomic operation. Names are
followed through assignments, loops, and calls of other ``triton.jit`` functions; what comes out of a load is a value
and no address. Where something is not understood, all that takes part in it counts as written.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterable
from typing import Any

from ..runtime.user_kernels import innermost

_STORES = ("store", "scatter", "reduce")  # how methods of descriptors of memory that change it begin, with "atomic"
_LOADS = frozenset(("load", "gather", "numel", "arange", "program_id", "num_programs", "zeros", "full"))
# Of ``triton.language`` that do more than to compute, which nobody may do twice or leave out.
_LOUD = frozenset(("device_print", "device_assert", "debug_barrier", "inline_asm_elementwise"))
_LANGUAGE = ("triton.language.", "triton.tools.")
MOST_DEPTH = 32


class Found:
    """Of one kernel.

    Attributes:
        written: names of parameters that it may write through.
        loud: whether it may do something besides, such as to print.
    """

    def __init__(self, written: Iterable[str], loud: bool) -> None:
        self.written, self.loud = frozenset(written), loud


def writes_of(kernel: Any) -> Found:
    """What a kernel, or what is wrapped around it, does."""
    return _writes(innermost(kernel))


@functools.lru_cache(512)
def _writes(fn: Any) -> Found:
    walk = _walk(fn, {}, 0)
    return Found(walk.written, walk.loud)


def _tree(fn: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent("".join(inspect.getsourcelines(fn)[0])))
    except (OSError, TypeError, SyntaxError):  # no source is there
        return None
    found = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    # The text may have changed since, or be that of something else.
    same = found is not None and [a.arg for a in found.args.args] == _parameters(fn)
    return found if same and found.name == fn.__name__ else None


def _parameters(fn: Any) -> list[str]:
    return list(inspect.signature(fn).parameters)


def _walk(fn: Any, given: dict[str, frozenset], depth: int) -> _Walk:
    """A walk through a function whose parameters are made of ``given``; each of itself without."""
    names = _parameters(fn)
    walk = _Walk(fn, given or {name: frozenset((name,)) for name in names}, depth)
    tree = _tree(fn)
    if tree is None or depth > MOST_DEPTH:
        walk.written.update(*walk.names.values())
        walk.loud = True
        return walk
    while True:  # what comes round a loop is of names that stand behind it
        before = (len(walk.written), sum(map(len, walk.names.values())), len(walk.names))
        for statement in tree.body:
            walk.visit(statement)
        if before == (len(walk.written), sum(map(len, walk.names.values())), len(walk.names)):
            return walk


class _Walk(ast.NodeVisitor):
    """``names``: name -> the pointers that it may be made of. ``visit`` gives those of an expression."""

    def __init__(self, fn: Any, names: dict[str, frozenset], depth: int) -> None:
        self.fn, self.names, self.depth = fn, dict(names), depth
        self.written: set[str] = set()
        self.result: frozenset = frozenset()
        self.loud = False

    def generic_visit(self, node: ast.AST) -> frozenset:
        found: frozenset = frozenset()
        for child in ast.iter_child_nodes(node):
            found |= self.visit(child) or frozenset()
        return found

    def visit_Name(self, node: ast.Name) -> frozenset:
        return self.names.get(node.id, frozenset())

    def _bind(self, target: ast.AST, made_of: frozenset) -> None:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self.names[name.id] = self.names.get(name.id, frozenset()) | made_of

    def visit_Assign(self, node: ast.Assign) -> frozenset:
        made_of = self.visit(node.value)
        for target in node.targets:
            if (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    and len(target.elts) == len(node.value.elts)):
                for t, v in zip(target.elts, node.value.elts):
                    self._bind(t, self.visit(v))
            else:
                self._bind(target, made_of)
        return frozenset()

    def visit_AugAssign(self, node: ast.AugAssign) -> frozenset:
        self._bind(node.target, self.visit(node.value))
        return frozenset()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> frozenset:
        if node.value is not None:
            self._bind(node.target, self.visit(node.value))
        return frozenset()

    def visit_NamedExpr(self, node: ast.NamedExpr) -> frozenset:
        made_of = self.visit(node.value)
        self._bind(node.target, made_of)
        return made_of

    def visit_For(self, node: ast.For) -> frozenset:
        self._bind(node.target, self.visit(node.iter))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        return frozenset()

    def visit_Return(self, node: ast.Return) -> frozenset:
        if node.value is not None:
            self.result |= self.visit(node.value)
        return frozenset()

    def visit_Compare(self, node: ast.Compare) -> frozenset:
        self.generic_visit(node)
        return frozenset()  # truth values

    def visit_Call(self, node: ast.Call) -> frozenset:
        given = [self.visit(a) for a in node.args]
        named = {k.arg: self.visit(k.value) for k in node.keywords}
        everything = frozenset().union(*given, *named.values())
        callee = _resolved(node.func, self.fn)
        if isinstance(node.func, ast.Attribute) and callee is None:
            return self._method(node.func, everything)
        plain = _jitted(callee)
        if plain is not None:
            return self._function(plain, node, given, named, everything)
        name = getattr(callee, "__name__", "")
        if _is_language(callee):
            self.loud |= name in _LOUD
            if name.startswith("atomic") or name.startswith("store") or name in _LOUD and name != "device_print":
                self._write(given[0] if given and name not in _LOUD else everything)
                return frozenset()
            return frozenset() if name in _LOADS else everything
        if callee in (range, min, max, len, abs, int, float, bool, print, float, getattr, isinstance):
            self.loud |= callee is print
            return everything
        self._write(everything)
        self.loud = True
        return everything

    def _write(self, made_of: frozenset) -> None:
        self.written |= made_of

    def _method(self, node: ast.Attribute, everything: frozenset) -> frozenset:
        """A method of a value: ``x.to(...)``, ``descriptor.store(...)``."""
        owner = self.visit(node.value)
        if node.attr.startswith(_STORES) and (owner or node.attr == "store") or node.attr.startswith("atomic"):
            self._write(owner)
            return frozenset()
        return frozenset() if node.attr in _LOADS else owner | everything

    def _function(self, fn: Any, node: ast.Call, given: list[frozenset], named: dict[str | None, frozenset],
                  everything: frozenset) -> frozenset:
        """A call of another kernel function."""
        names = _parameters(fn)
        if (None in named or any(isinstance(a, ast.Starred) for a in node.args) or len(given) > len(names)
                or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in inspect.signature(fn).parameters.values())):
            self._write(everything)
            self.loud = True
            return everything
        inner = dict.fromkeys(names, frozenset()) | dict(zip(names, given))
        inner.update((k, v) for k, v in named.items() if k is not None)
        walk = _walk(fn, inner, self.depth + 1)
        self.written |= walk.written
        self.loud |= walk.loud
        return walk.result


def _resolved(node: ast.expr, fn: Any) -> Any:
    """The object that a name, or a dotted name, in a function stands for; None where it is none from outside."""
    if isinstance(node, ast.Name):
        if fn.__closure__ and node.id in fn.__code__.co_freevars:
            cell = fn.__closure__[fn.__code__.co_freevars.index(node.id)]
            try:
                return cell.cell_contents
            except ValueError:  # it is not set yet
                return None
        builtins = fn.__globals__.get("__builtins__", {})
        known = builtins if isinstance(builtins, dict) else vars(builtins)
        return fn.__globals__.get(node.id, known.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, fn)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _is_language(callee: Any) -> bool:
    module = getattr(callee, "__module__", None) or getattr(getattr(callee, "fn", None), "__module__", None) or ""
    return f"{module}.".startswith(_LANGUAGE) or module == "triton"


def _jitted(callee: Any) -> Any:
    """The function under a ``triton.jit`` function, but for those of Triton's own language."""
    if callee is None or _is_language(callee) or inspect.isfunction(callee) or not hasattr(callee, "arg_names"):
        return None
    plain = getattr(callee, "fn", None)
    return plain if inspect.isfunction(plain) and not _is_language(plain) else None
