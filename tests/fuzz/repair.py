"""Programs that mostly run to their end: what raises out of ``f`` in eager is caught, or goes, statement by statement.

An exception that ends a program hides the rest of it, so that only a share of them is left as it is. What is repaired
depends on what eager raises: one seed gives one program on one version of Python and PyTorch.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import textwrap
import traceback
import warnings


from .compare import OutOfTime, limit, load, seeded
from .themes import control

ROUNDS, SECONDS = 12, 1.0
_NAME = re.compile(r"variable '(\w+)'|name '(\w+)' is not defined")


def repaired(text: str, rng) -> str:
    """The program with the statements caught, changed or dropped that raise out of ``f``; now and then (one in seven)
    such a statement stays."""
    for _ in range(ROUNDS):
        tree = ast.parse(text)
        found = failure(text, tree)
        if found is None or rng.random() < 1 / 7:
            return text
        mended = mend(text, *found, rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(mended, "<program>", "exec")
        except SyntaxError:  # the last of a function's statements, or of its yields
            return text
        text = mended
    return text


def generated(tree):
    """The functions whose bodies are random: ``f``, the helpers, and ``C.step``."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (node.name == "f" or node.name.startswith("help")):
            yield node
        elif isinstance(node, ast.ClassDef) and node.name == "C":
            yield from (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "step")


@control.forbid()
def failure(text, tree):
    """-> (innermost random statement from which eager raises out of ``f``, the exception), or None."""
    functions = list(generated(tree))
    try:
        with limit(SECONDS):
            namespace = load(text, "program")
            calls = namespace["calls"]()
    except (Exception, OutOfTime):
        return None
    for given in calls:
        seeded()
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), limit(SECONDS):
                warnings.simplefilter("ignore")
                namespace["f"](*given)
        except (OutOfTime, control.NoTest, RecursionError):
            return None
        except Exception as error:
            for entry in reversed(traceback.extract_tb(error.__traceback__)):
                if entry.filename == "<program>":
                    inside = [s for fn in functions if fn.lineno < entry.lineno <= fn.end_lineno
                              for s in [statement_at(fn, entry.lineno)] if s]
                    if inside:
                        return inside[0], error
            return None
    return None


def statement_at(fn, line):
    """The innermost statement in a function's body that covers a line."""
    best = None
    for node in ast.walk(fn):
        if isinstance(node, ast.stmt) and node is not fn and node.lineno <= line <= node.end_lineno:
            if best is None or node.lineno > best.lineno or node.end_lineno < best.end_lineno:
                best = node
    return best


def mend(text, statement, error, rng) -> str:
    """The text with a statement replaced."""
    lines = text.split("\n")
    first, last = statement.lineno - 1, statement.end_lineno
    indent = lines[first][:len(lines[first]) - len(lines[first].lstrip())]
    if lines[first][:statement.col_offset].strip():
        source = "pass"  # behind a colon: the whole line goes
    else:
        source = textwrap.dedent("\n".join([indent + lines[first][statement.col_offset:], *lines[first + 1:last]]))
    lines[first:last] = textwrap.indent(replacement(statement, source, error, rng), indent).split("\n")
    return "\n".join(lines)


def caught(source):
    return f"try:\n{textwrap.indent(source, '    ')}\nexcept Exception as err:\n    log.append(repr(err))"


def replacement(statement, source, error, rng) -> str:
    """What stands in place of a statement that raises."""
    name = next(filter(None, _NAME.search(str(error)).groups()),
                None) if isinstance(error, NameError) and _NAME.search(str(error)) else None
    if isinstance(statement, ast.Return):
        shorter = re.sub(rf"\b{name}, |, {name}\b(?=,?\))", "", source) if name else source
        return shorter if shorter != source else "return 1"
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return "pass"
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(statement)):
        return "yield 1" if not hasattr(statement, "body") else "pass\n" + "yield 2"
    if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name) and rng.random() < 0.7:
        statement.iter = ast.List([ast.Constant(1), ast.Constant(2)], ast.Load())
        return ast.unparse(ast.fix_missing_locations(statement))
    if isinstance(statement, (ast.If, ast.While)) and rng.random() < 0.7:
        statement.test = ast.Constant(isinstance(statement, ast.If))
        return ast.unparse(ast.fix_missing_locations(statement))
    return caught(source) if rng.random() < 0.5 else "pass"
