"""Random programs of views and in-place operations on arguments that may share memory, require grad, or both.

``program(seed)`` gives (function, make of its arguments, text). The same seed gives the same program.
"""

import functools
import linecache
import random

import torch

randn = functools.partial(torch.randn, dtype=torch.float64)
MAKERS = {
    "plain": lambda r: (randn(4, 4),),
    "leaf": lambda r: (randn(4, 4, requires_grad=True),),
    "computed": lambda r: (lambda w: (w * 2, w))(randn(4, 4, requires_grad=True)),
    "view of plain": lambda r: (lambda w: (w[1:], w))(randn(5, 4)),
    "view of computed": lambda r: (lambda w: (lambda h: (h[:4], h, w))(w.exp()))(randn(5, 4, requires_grad=True)),
    "view of a leaf": lambda r: (lambda w: (w[:4], w))(randn(5, 4, requires_grad=True)),
    "transposed": lambda r: (randn(4, 4).t(),),
}
ALIASES = [lambda t: t, lambda t: t[:], lambda t: t.t(), lambda t: t.detach(), lambda t: t.data,
           lambda t: t.view(2, 2, 4)[0], lambda t: t[:3], lambda t: t[1:], lambda t: t[:, 1:3], lambda t: t[::2],
           lambda t: t[2], lambda t: t.diagonal()]
VIEWS = ["{t}[1:]", "{t}[0]", "{t}.t()", "{t}[..., ::2]", "{t}.unsqueeze(0)", "{t}.detach()", "{t}.data",
         "{t}.reshape(-1)", "{t}.diagonal()", "{t}[:, 1:3]", "{t}.expand(2, *{t}.shape)", "{t}.view_as({t})",
         "{t}.squeeze()", "{t}.flatten()[1:]", "{t}.chunk(2)[1]", "{t}.unbind()[0]"]
VALUES = ["{t} * 2", "{t}.sin()", "{t}.exp()", "{t} + {u}", "{t} * {u}", "{t}.sum()", "{t}.clone()", "{t}.mean(0)",
          "torch.relu({t})", "{t} / 3 - {u}", "{t}.sigmoid() * {t}", "{t}.contiguous()"]
WRITES = ["{t}.add_(1)", "{t}.mul_({u})", "{t}.copy_({u})", "{t}.zero_()", "{t}.sin_()", "{t}.add_({u}, alpha=0.5)",
          "{t}[0] = {u}[0]", "{t}[..., 0] = 2.0", "{t}.fill_(0.5)", "{t} += {u}", "{t}.clamp_(-1, 1)",
          "{t}.mul_(0.5).add_({u})", "{t}.copy_({u} * 2)", "{t}.exp_()", "{t}.masked_fill_({t} > 0, 0.3)",
          "{t}.data.mul_(0.5)", "{t}.detach().add_(1)", "{t}.sub_({t} * 0.1)"]


def program(seed: int, steps: int = 7):
    r = random.Random(seed)
    kinds = [r.choice(list(MAKERS)) for _ in range(r.randint(1, 3))]
    aliases = [(r.randrange(len(kinds)), r.choice(ALIASES)) for _ in range(r.choice([0, 0, 1, 1, 2]))]
    names = [f"a{i}" for i in range(len(kinds) + len(aliases))]
    r.shuffle(names)
    lines, depth, live = [], 1, list(names)
    for i in range(r.randint(2, steps)):
        if depth == 2 and r.random() < 0.4:
            depth = 1
        elif depth == 1 and r.random() < 0.2:
            lines.append(f"    with torch.{r.choice(['no_grad', 'no_grad', 'enable_grad'])}():")
            depth = 2
        t, u = r.choice(live), r.choice(live)
        what = r.random()
        text = r.choice(VIEWS if what < 0.3 else VALUES if what < 0.55 else WRITES).format(t=t, u=u)
        if what < 0.55:
            lines.append("    " * depth + f"v{i} = {text}")
            live.append(f"v{i}")
        else:
            lines.append("    " * depth + text)
    out = [r.choice(live) for _ in range(r.randint(0, 3))]
    lines.append(f"    return [{', '.join(out)}]")
    text = f"def f({', '.join(sorted(names))}):\n" + "\n".join(lines) + "\n"
    file = f"<program {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope = {"torch": torch}
    exec(compile(text, file, "exec"), scope)

    def make():
        args, others = {}, []
        made = []
        for name, kind in zip(names, kinds):
            args[name], *rest = MAKERS[kind](r)
            made.append(args[name])
            others += rest
        for name, (k, take) in zip(names[len(kinds):], aliases):
            args[name] = take(made[k])
        return [args[n] for n in sorted(names)], others

    return (scope["f"], make,
            f"{dict(zip(names, kinds))} aliases {[(n, kinds[k]) for n, (k, _) in zip(names[len(kinds):], aliases)]}\n"
            f"{text}")
