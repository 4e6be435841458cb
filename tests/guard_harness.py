"""Guard programs of records that are written by hand, with the facts that tell them in words."""

import contextlib

from jit.runtime import facts
from jit.runtime import guards as G
from jit.runtime import native

LOCAL = (-1, "local", 0)


def program(accessors, checks, binds=()):
    return G.program(accessors, [worded(accessors, *c) for c in checks], binds)


def worded(accessors, at, kind="", payload=None):
    """A check with the fact that tells it in words."""
    name = lambda other: G.path(accessors, other)  # noqa: E731
    with contextlib.suppress(Exception):  # of records that are wrong on purpose
        if kind in ("same", "distinct", "no_alias"):
            fact = facts.KINDS[kind](name(payload))
        elif kind == "shares":
            fact = facts.Shares(name(payload[0]), payload[1])
        elif kind == "apart":
            fact = facts.Apart(*(tuple(map(name, side)) for side in payload))
        elif kind in ("subclass", "instance"):
            fact = facts.KINDS[kind](*payload)
        elif kind == "global_state":
            fact = facts.GlobalState()
            fact.value = payload
        elif kind in ("dims", "at"):
            return at, kind, payload
        else:
            fact = facts.KINDS[kind](payload)
        return at, kind, payload, fact
    return at, kind, payload


def one(kind, payload=None):
    """A program with one check on local 0."""
    return program([LOCAL], [(0, kind, payload)])


class Plain:
    def __init__(self, **kw):
        self.__dict__.update(kw)


class Slots:
    __slots__ = ("a",)


def of_arguments(made, module, locals_):
    """The watchable facts of a program as facts about arguments: what it reaches from objects that it knows is reached
    from further locals here, and what it reaches from the names of ``module`` from that. Returns the program and its
    locals. There are enough checks for the runtime to watch each argument."""
    accessors, locals_ = [(-1, "local", len(locals_))], [*locals_, module]
    for parent, kind, *payload in made.accessors:
        if kind in ("const", "weak"):
            obj = payload[0]() if kind == "weak" else payload[0]
            if obj is vars(module):
                accessors.append((0, "dict", None))
            else:
                accessors.append((-1, "local", len(locals_)))
                locals_.append(obj)
        else:
            accessors.append((parent if parent < 0 else parent + 1, kind, *payload[:1]))
    checks = []
    for at, kind, payload, *_ in made.checks:
        if kind in ("same", "distinct"):
            checks.append((at + 1, kind, payload + 1))
        elif kind not in ("no_alias", "apart", "shares", "room", "writable", "global_state", "dims"):
            checks.append((at + 1, kind, payload))
    return native().GuardProgram(tuple(accessors), tuple(checks) * 12), tuple(locals_)
