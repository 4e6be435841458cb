"""Making a failing program small: delete statements and replace expressions for as long as it still fails."""

from __future__ import annotations

import ast
import copy
import time
import warnings

BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
FIELDS = (*BODIES, "elts", "args", "keywords", "keys", "values", "items", "generators", "ifs",
          "targets", "decorator_list", "defaults", "names", "ops")


def _lists(tree):
    """Every list of statements, handlers, cases, elements, arguments or calls in a tree, the outermost first."""
    for node in ast.walk(tree):
        for field in FIELDS:
            held = getattr(node, field, None)
            if isinstance(held, list) and held:
                yield node, field, held


def _smaller(node):
    """Simpler expressions that may stand for this one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
    if not isinstance(node, (ast.Constant, ast.Name)):
        yield ast.Constant(1)
        yield ast.Constant(None)


def _edits(tree):
    """Functions that change a tree in place, biggest changes first. Each is given as a path that is found again in a
    copy."""
    positions = list(ast.walk(tree))
    index = {id(n): i for i, n in enumerate(positions)}
    for node, field, held in _lists(tree):
        size = len(held)
        while size:
            for start in range(0, len(held), size):
                yield ("cut", index[id(node)], field, start, start + size)
            size //= 2
    for node in positions:
        for field in BODIES:
            held = getattr(node, field, None)
            if isinstance(held, list):
                for i, s in enumerate(held):
                    for inner in BODIES:
                        if (isinstance(s, ast.stmt) and not isinstance(s, (ast.FunctionDef, ast.ClassDef))
                            and getattr(s, inner, None)):
                            yield ("lift", index[id(node)], field, i, inner)
    for node in positions:
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
                for k, _ in enumerate(_smaller(value)):
                    yield ("replace", index[id(node)], name, None, k)
                if name in ("cause", "value", "exc", "msg",
                            "format_spec") and isinstance(node, (ast.Raise, ast.Assert)):
                    yield ("drop", index[id(node)], name, None, None)
            elif isinstance(value, list):
                for i, v in enumerate(value):
                    if isinstance(v, ast.expr) and isinstance(getattr(v, "ctx", ast.Load()), ast.Load):
                        for k, _ in enumerate(_smaller(v)):
                            yield ("replace", index[id(node)], name, i, k)


def _body_first(tree) -> list:
    """The edits, those of the function that is compared before those of what it uses."""
    inside = {id(n) for f in tree.body if getattr(f, "name", None) == "f" for n in ast.walk(f)}
    body = {i for i, n in enumerate(ast.walk(tree)) if id(n) in inside}
    return sorted(_edits(tree), key=lambda edit: edit[1] not in body)


def _apply(tree, edit) -> str | None:
    """The text of the tree after an edit, or None if that is no program."""
    tree = copy.deepcopy(tree)
    kind, at, field, a, b = edit
    node = list(ast.walk(tree))[at]
    held = getattr(node, field)
    if kind == "cut":
        if isinstance(node, ast.Dict):
            del node.keys[a:b], node.values[a:b]
        else:
            del held[a:b]
            if isinstance(node, ast.Compare):
                del node.comparators[a:b]
            if not held and field == "body":
                held.append(ast.Pass())
    elif kind == "lift":
        inner = getattr(held[a], b)
        held[a:a + 1] = [s for h in inner
                         for s in (h.body if isinstance(h, (ast.ExceptHandler, ast.match_case)) else [h])]
    elif kind == "drop":
        setattr(node, field, None)
    else:
        value = held if a is None else held[a]
        new = list(_smaller(value))[b]
        if a is None:
            setattr(node, field, new)
        else:
            held[a] = new
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<program>", "exec")
        return text
    except (SyntaxError, ValueError, TypeError, AttributeError, IndexError):
        return None


def _named(node) -> set:
    """The names that a node mentions: of variables, attributes, imported names, and in short texts."""
    found = set()
    for n in ast.walk(node):
        found.update(v for f in ("id", "attr", "arg") if isinstance(v := getattr(n, f, None), str))
        found.update(v for v in getattr(n, "names", []) if isinstance(v, str))
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            found.add(n.value)
    return found


def without_unused(text: str) -> str:
    """The program without the functions, classes, imports and methods that nothing names."""
    tree = ast.parse(text)
    definitions = (ast.FunctionDef, ast.ClassDef)
    needed, todo = set(), [n for n in tree.body if not isinstance(n, (*definitions, ast.Import, ast.ImportFrom))
                           or getattr(n, "name", None) in ("f", "calls")]
    kept = {id(n) for n in todo}
    while todo:
        node = todo.pop()
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        needed |= {n for b in getattr(node, "bases", []) + getattr(node, "decorator_list", []) for n in _named(b)}
        for part in parts:  # methods that are named, or that Python calls
            if part is node or not isinstance(part, ast.FunctionDef) or part.name in needed or part.name[:2] == "__":
                needed |= _named(part)
        for n in tree.body:
            if isinstance(n, definitions) and n.name in needed and id(n) not in kept:
                kept.add(id(n))
                todo.append(n)
        if not todo:  # methods that were named meanwhile
            before = len(needed)
            for n in tree.body:
                if id(n) in kept and isinstance(n, ast.ClassDef):
                    needed |= {name for part in n.body if getattr(part, "name", None) in needed
                               for name in _named(part)}
            todo = [n for n in tree.body if id(n) in kept] if len(needed) > before else []
    for n in tree.body:
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            n.names = [a for a in n.names if (a.asname or a.name.split(".")[0]) in needed]
            kept |= {id(n)} if n.names else set()
        elif isinstance(n, ast.ClassDef):
            n.body = [part for part in n.body if not isinstance(part, ast.FunctionDef) or part.name in needed
                      or part.name[:2] == "__"] or [ast.Pass()]
    tree.body = [n for n in tree.body if id(n) in kept]
    return ast.unparse(ast.fix_missing_locations(tree))


def shrink(text: str, fails, seconds: float = 60.0) -> str:
    """The smallest program found in this time for which ``fails(text)`` holds."""
    end, done = time.monotonic() + seconds, False
    while not done:
        smaller = without_unused(text)
        if len(smaller) < len(text) and fails(smaller):
            text = smaller
        done, tree = True, ast.parse(text)
        skip = 0
        while True:
            found = None
            for n, edit in enumerate(_body_first(tree)):
                if n < skip:
                    continue
                if time.monotonic() > end:
                    return text
                smaller = _apply(tree, edit)
                if smaller is not None and len(smaller) < len(text) and fails(smaller):
                    found = (n, smaller)
                    break
            if found is None:
                break
            (skip, text), done = found, False
            smaller = without_unused(text)
            if len(smaller) < len(text) and fails(smaller):
                skip, text = 0, smaller
            tree = ast.parse(text)
    return text
