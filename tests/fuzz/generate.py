"""From a seed to the source text of a program: ``f``, what it calls, and ``calls()``, the arguments of each call."""

from __future__ import annotations

import random
import re
import textwrap
import warnings

from .grammar import GLOBALS, KINDS, NAMES
from .prelude import CLASSES, PRELUDE
from .repair import repaired
from .statements import EXCEPTIONS, JUMPS
from .themes import THEMES, choose, tables

_HOLE = re.compile(r"<(#|[a-z]+(?:\.[a-z]+)?)>")
_ATOM = re.compile(
    r"[A-Za-z_][\w.]*|'[^']*'|\((?:[^()]|\([^()]*\))*\)|"
    r"[A-Za-z_][\w.]*(?:\((?:[^()]|\([^()]*\))*\)|\[[^][]*\])+(?:\.\w+|\((?:[^()]|\([^()]*\))*\)|\[[^][]*\])*")
PARAMETERS = ("x", "y", "n", "k", "s", "v", "d", "t", "o")

class Scope:
    """What a function's body may name: ``ready`` are its own variables that are set, ``outer`` those of functions
    around it."""

    def __init__(self, level, ready, outer=(), kind="def"):
        self.level, self.ready, self.outer, self.kind = level, set(ready), set(outer), kind
        self.given = set()  # declared nonlocal or global: assigned as they are

    def names(self, kind):
        mine = sorted(n for n in self.ready if _kind_of(n) == kind)
        return mine * 3 + sorted(n for n in self.outer if _kind_of(n) == kind)

    def targets(self, kind):
        return ([n + ("" if not self.level else f"_{self.level}") for n in NAMES[kind]]
                + sorted(n for n in self.given if _kind_of(n) == kind) * 2)


def _kind_of(name):
    base = name.split("_")[0] if not name.startswith("G_") else next(k for k, g in GLOBALS.items() if g == name)
    return next((k for k, names in NAMES.items() if base in names), base)


class Generator:
    """Makes one program. Some are ``quiet``: nothing that always breaks the graph is in them;
    ``wrong`` is the share of expressions of another kind."""

    def __init__(self, seed, themes=None):
        self.rng = random.Random(seed)
        self.themes = choose(self.rng, themes)
        self.expressions, self.leaves, self.statements = tables(self.themes)
        self.number = 0
        self.budget = 0
        self.calls = []   # expressions that call the program's own helpers: (kind, template)
        self.in_method = False
        self.quiet = self.rng.random() < 0.4
        self.wrong = self.rng.choice((0.0, 0.0, 0.01, 0.03))

    # -- expressions ------------------------------------------------------------------------------------------------

    def pick(self, rows):
        return self.rng.choices([r[0] for r in rows], [r[1] for r in rows])[0]

    def expression(self, kind, scope, depth):
        rng = self.rng
        if rng.random() < self.wrong:
            kind = rng.choice(KINDS)
        rows = self.expressions[kind] if depth > 0 else self.leaves[kind] or self.expressions[kind]
        if depth > 0 and self.calls and rng.random() < 0.25:
            mine = [c for c in self.calls if c[0] == kind]
            if mine:
                return self.fill(rng.choice(mine)[1], scope, depth - 1)
        for _ in range(5):
            template = self.pick(rows)
            if not (self.quiet and breaks(template) or self.in_method and calls_objects(template)):
                break
        else:
            template = self.pick(self.leaves[kind])
        return self.fill(template, scope, depth - 1)

    def fill(self, template, scope, depth, indent=None):
        self.number += 1
        number, made = self.number, []

        def hole(match):
            what, dot, form = match[1].partition(".")
            if what == "#":
                return str(number)
            if what == "exc":
                return self.rng.choice(EXCEPTIONS)
            if what == "raise":
                raised = self.rng.choice(["KeyError('a')", "ValueError(<int>)", "Stop", "Stop(<any>)", "IndexError"])
                return raised.replace("<int>", "3").replace("<any>", self.expression("any", scope, 0))
            if what == "out":
                return self.expression("any", scope, 1)
            if form == "new":
                name = self.rng.choice(scope.targets(what))
                made.append(name)
                return name
            if what == "any" and form:
                what = self.rng.choice([k for k in KINDS if scope.names(k)] or ["int"])
            if form == "name":
                return self.rng.choice(scope.names(what) or [self.literal(what)])
            made_of = self.expression(what, scope, depth)
            after = template[match.end():match.end() + 1]
            return f"({made_of})" if after and after in ".[(" and not _ATOM.fullmatch(made_of) else made_of

        text = _HOLE.sub(hole, template)
        scope.ready.update(made)
        return text

    def literal(self, kind):
        return {"int": "1", "list": "[1]", "dict": "{'a': 1}", "obj": "G_o", "tensor": "torch.ones(3)", "str": "'a'",
                "tuple": "(1, 2)", "set": "{1}", "fn": "abs", "gen": "iter([1, 2])", "co": "steps(2)",
                "rec": "Vec(1, 2)", "float": "0.5", "bool": "True", "sub": "sub(torch.ones(3))"}[kind]

    # -- statements -------------------------------------------------------------------------------------------------

    def block(self, scope, depth, loop=False, most=3):
        lines = []
        for _ in range(self.rng.randint(1, most)):
            lines.append(self.statement(scope, depth, loop))
            if lines[-1].split()[0] in ("break", "continue", "raise", "return"):
                break
        return "\n".join(lines)

    def statement(self, scope, depth, loop):
        rng = self.rng
        self.budget -= 1
        if loop and rng.random() < 0.12:
            return self.fill(self.pick(JUMPS["loop"]), scope, 1)
        if scope.kind == "gen" and rng.random() < 0.3:
            return self.fill(self.pick(JUMPS["gen"]), scope, 1)
        if scope.kind != "gen" and rng.random() < 0.05:
            return self.fill(self.pick(JUMPS["def"]), scope, 1)
        for _ in range(20):
            template = self.pick(self.statements)
            nested = "\n" in template or template == "<def>"
            if nested and (depth <= 0 or self.budget <= 0):
                continue
            if not (self.quiet and breaks(template) or self.in_method and calls_objects(template)):
                break
        else:
            template = "<int.new> = <int>"
        if template == "<def>":
            return self.nested_function(scope, depth)
        if "\n" not in template:
            return self.simple(template, scope)
        return self.compound(template, scope, depth, loop)

    def simple(self, template, scope):
        """A statement on one line; variables that it assigns to as ``<kind.name>`` have to be the function's own."""
        head, equals, rest = re.match(r"(.*?)( [-+*|]?= |$)(.*)", template, re.S).groups()
        if template.startswith("del ") and "[" not in template and "." not in template.replace(".name", ""):
            own = sorted(n for n in scope.ready if n not in scope.given)
            if not own:
                return "pass"
            name = self.rng.choice(own)
            if self.rng.random() < 0.9:
                scope.ready.discard(name)
            return f"del {name}"
        if equals and re.fullmatch(r"<\w+\.name>(, <\w+\.name>)*", head):
            right = self.fill(rest, scope, 2)
            return ", ".join(self.own_name(part, scope) for part in head.split(", ")) + equals + right
        if equals:  # the right side first: it must not read what the left side gives
            right = self.fill(rest, scope, 2 if self.rng.random() < 0.7 else 3)
            return self.fill(head, scope, 1) + equals + right
        return self.fill(template, scope, 2)

    def own_name(self, hole, scope):
        kind = hole[1:].split(".")[0]
        if kind == "any":
            kind = self.rng.choice(KINDS)
        names = [n for n in scope.ready if _kind_of(n) == kind]
        return self.rng.choice(sorted(names) or scope.targets(kind))

    def compound(self, template, scope, depth, loop):
        """Fill a template line by line: what is set in one branch only is taken as not set after it, most of the
        time."""
        self.number += 1
        number = str(self.number)
        before, after, out = set(scope.ready), None, []
        for line in template.split("\n"):
            if line in ("<block>", "<loop>", "<deep>"):
                body = self.block(scope, depth - 1, loop or line == "<loop>", 1 if line == "<deep>" else 3)
                out.append(textwrap.indent(body, "        " if line == "<deep>" else "    "))
                after = set(scope.ready) if after is None else after & scope.ready
                if self.rng.random() < 0.97:
                    scope.ready = set(before)
            else:
                out.append(self.fill(line.replace("<#>", number), scope, 2))
                if line.startswith(("with", "for", "if")) or not line.startswith((" ", "el", "exc", "fin", "case")):
                    before |= scope.ready
        scope.ready = before if self.rng.random() < 0.97 else after or before
        return "\n".join(out)

    def nested_function(self, scope, depth):
        """A closure, and the variable that holds it."""
        self.number += 1
        name, generator = f"f{self.number}", self.rng.random() < 0.25
        inner = Scope(scope.level + 1, [], scope.ready | scope.outer, "gen" if generator else "def")
        head = []
        captured = sorted(n for n in scope.ready if not n.startswith("G_"))
        if captured and self.rng.random() < 0.5:
            inner.given = set(self.rng.sample(captured, min(len(captured), 2)))
            head.append("nonlocal " + ", ".join(sorted(inner.given)))
        parameter = f"n_{inner.level}"
        inner.ready.add(parameter)
        default = self.expression("int", scope, 1)
        signature = self.rng.choice([f"{parameter}", f"{parameter}={default}",
                                     f"{parameter}=1, *rest, k_{inner.level}={default}, **kw"])
        body = self.block(inner, min(depth - 1, 1), most=3)
        if generator and "yield" not in body:
            body += "\nyield 1"
        tail = "" if generator else "\nreturn " + self.expression("int" if self.rng.random() < 0.8 else "any", inner, 1)
        text = textwrap.indent("\n".join([*head, body + tail]), "    ")
        decorator = self.rng.choice(["", "", "", "@counted\n", "@functools.cache\n"]) if not generator else ""
        target = self.rng.choice(scope.targets("gen" if generator else "fn"))
        scope.ready.add(target)
        use = f"{target} = {name}({self.expression('int', scope, 1)})" if generator else f"{target} = {name}"
        return f"{decorator}def {name}({signature}):\n{text}\n{use}"

    # -- functions --------------------------------------------------------------------------------------------------

    def function(self, name, signature, ready, result, budget, depth, kind="def"):
        """The text of a function of the module."""
        scope = Scope(0, ready, GLOBALS.values(), kind)
        self.budget = budget
        lines = []
        if self.rng.random() < 0.3:
            scope.given = set(self.rng.sample(sorted(GLOBALS.values()), 2))
            scope.outer -= scope.given
            scope.ready |= scope.given
            lines.append("global " + ", ".join(sorted(scope.given)))
        lines.append("log = []")
        while self.budget > 0:
            line = self.statement(scope, depth, False)
            if name == "f" and rng_wraps(self.rng, line):
                line = f"try:\n{textwrap.indent(line, '    ')}\nexcept Exception as err:\n    log.append(repr(err))"
            lines.append(line)
        if kind == "gen":
            lines.append("yield " + self.expression("int", scope, 1))
        else:
            own = sorted(n for n in scope.ready if n not in scope.given)
            chosen = ["log"] + [n for n in own if self.rng.random() < 0.8]
            lines.append("return " + (result and self.expression(result, scope, 2) or "(" + ", ".join(chosen) + ",)"))
        return f"def {name}({signature}):\n" + textwrap.indent("\n".join(lines), "    ")

    def program(self) -> str:
        rng = self.rng
        self.in_method = True
        step = textwrap.dedent(self.function("step", "self, n", ["n"], "int", rng.randint(0, 2), 1).split("\n", 1)[1])
        self.in_method = False
        parts = [PRELUDE, *(THEMES[name].prelude for name in self.themes),
                 CLASSES % textwrap.indent("self.n = (self.n + 1) % 50\n" + step, "        ")]
        shapes = [("int", "n, k=2", ["n", "k"], "<name>(<int>)"),
                  ("int", "n, *q, k=1", ["n", "q", "k"], "<name>(<int>, *<tuple>, k=<int>)"),
                  ("tensor", "x, n=1", ["x", "n"], "<name>(<tensor>, <int>)"),
                  ("tensor", "x, y", ["x", "y"], "<name>(y=<tensor>, x=<tensor>)"),
                  ("list", "v, n=0", ["v", "n"], "<name>(<list>, <int>)"),
                  ("gen", "n, v=()", ["n", "v"], "<name>(<int>, <list>)"),
                  ("obj", "o, v", ["o", "v"], "<name>(<obj>, <list>)"),
                  ("dict", "d, **e", ["d", "e"], "<name>(<dict>, b=<int>)")]
        for i in range(rng.randint(0, 3)):
            kind, signature, ready, call = rng.choice(shapes)
            text = self.function(f"help{i}", signature, ready, kind, rng.randint(1, 5), 2,
                                 "gen" if kind == "gen" else "def")
            parts.append(text)
            self.calls.append((kind, call.replace("<name>", f"help{i}")))
        parts.append(self.function("f", ", ".join(PARAMETERS), PARAMETERS, None, rng.randint(3, 14), 3))
        parts.append("G_n, G_v, G_d, G_x, G_o = 1, [1, 2], {'a': 1}, torch.arange(3.0), C(2)")
        parts.append("def calls():\n    return [\n"
                     + "".join(f"        {self.arguments()},\n" for _ in range(rng.randint(2, 3))) + "    ]")
        return "\n\n".join(p.strip("\n") for p in parts) + "\n"

    def arguments(self) -> str:
        """One call's arguments; a list, tensor or object may be given twice."""
        rng = self.rng
        tensor = ["torch.arange(3.0)", "torch.ones(3)", "torch.arange(3.0)", "torch.arange(4.0) - 1",
                  "torch.tensor([1, 2, 3])", "torch.arange(6.0).view(2, 3)", "torch.arange(6.0).view(3, 2).t()",
                  "torch.arange(6.0)[::2]", "torch.arange(3.0, dtype=torch.float64)", "torch.tensor(2.0)"]
        weights = [6, 3, 3, 2, 1, 2, 1, 1, 1, 0.5]
        more = [a for name in self.themes for a in THEMES[name].arguments]
        tensor, weights = tensor + more, weights + [sum(weights) / max(1, len(more))] * len(more)
        x, y = rng.choices(tensor, weights)[0], rng.choices(tensor, weights)[0]
        n = rng.choice(["0", "1", "2", "3", "5", "True"])
        k = rng.choice(["0", "1", "2", "-1", "1.5", "None"] if rng.random() < 0.3 else ["1", "2", "4"])
        v, d = (rng.choice(["[]", "[1]", "[1, 2]", "[3, 1, 2]", "[2, 2]"]),
                rng.choice(["{}", "{'a': 1}", "{'a': 1, 'b': 2}", "{'b': 0}"]))
        o = rng.choice(["C(1)", "C(2, [1, 2])", "D(3, [4])", "D(0, [])", "G_o"])
        t = rng.choice(["(1, 2)", "(1, 2)", "(3, 0)", "()", "(1, 'a', 2)", "Pair(1, 2)"])
        given = [x, y, n, k, rng.choice(["'ab'", "'a'", "''", "'bca'"]), v, d, t, o]
        shared = rng.random()
        if shared < 0.15:
            given[1] = rng.choice(["x", "x[1:]" if "tensor(2" not in x else "x",
                                   "x.t()" if "view" in x else "x.view(-1)"])
            return f"(lambda x: ({', '.join(['x', *given[1:]])}))({x})"
        if shared < 0.25:
            given[5], given[8] = "v", "C(1, v)"
            return f"(lambda v: ({', '.join(given)}))({v})"
        if shared < 0.32:
            given[6], given[7] = "{'a': 1, 'l': v}", "(1, v)"
            given[5] = "v"
            return f"(lambda v: ({', '.join(given)}))({v})"
        if shared < 0.37:
            given[0], given[8] = "x", "C(1, [2], x)"
            return f"(lambda x: ({', '.join(given)}))({x})"
        if shared < 0.41:
            given[5] = "G_v"
        return f"({', '.join(given)})"


def rng_wraps(rng, line) -> bool:
    """Whether a statement of the main function is put into a handler, so that what it raises does not end most
    programs."""
    return rng.random() < 0.35 and not re.search(r"\bdel \w+$", line)


def breaks(template) -> bool:
    """Whether a template is of the kind that always breaks the graph."""
    return any(word in template for word in (
        "graph_break", "off(", "print", ".item()", "float('inf')", "zlib", "heapq", "re.sub", "json", "getsizeof",
        "jit.disable", "class K", "locals()", "random", "> 0]", "> 1]", ".tolist", "torch.equal", ".data_ptr", ".data.",
        "enum", "float(np", "int(<tensor>", "<tensor>.sum() >"))


def calls_objects(template) -> bool:
    """Whether a template may call ``C.step``: not in its own body."""
    return any(word in template for word in ("<obj>(", ".step", "<fn", "class K"))


def generate(seed, themes=None) -> str:
    """The program of a seed, about some themes if they are given; one that Python does not compile is followed by the
    next of the same series."""
    for attempt in range(50):
        text = Generator(f"{seed}/{attempt}", themes).program()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, "<program>", "exec")
        except SyntaxError:
            continue
        return repaired(text, random.Random(f"repairs {seed}"))
    raise RuntimeError(f"no program for seed {seed}")
